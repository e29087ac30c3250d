"""The trainable policy: conversations in, completions with exact ids and log-probabilities out.

Invariants: the ids before a turn are the conversation's own ids plus the context that `Chat` adds; the ids of a turn
are the sampler's. Nothing sampled is tokenised again, and a turn cut by length gets no end token from us.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.trainer.policy.base import (
    Completion,
    SampledTokens,
    SampleKey,
    SampleRequest,
    SamplingParams,
    TokenSampler,
)
from agentgym_rtmc.trainer.policy.chat import Chat, ObservationRole, Prompt
from agentgym_rtmc.trainer.policy.config import PolicyConfig
from agentgym_rtmc.trainer.policy.hf import HFSampler, load_model, load_tokenizer
from agentgym_rtmc.trainer.transcript import Conversation


class TokenPolicy:
    """A `Policy` made of a `TokenSampler` and a tokenizer with a chat template.

    `stop_ids` are further ids that end a turn, beside the template's end of turn and the tokenizer's end of text.
    Counts, over its life: `forks` (prompts that a rewritten past forced anew) and `full_contexts` (turns not taken
    because the context was full). What is unfortunate about the template is warned of once, here.
    """

    def __init__(
        self,
        sampler: TokenSampler,
        tokenizer: PreTrainedTokenizerBase,
        *,
        observation_role: ObservationRole = "auto",
        template_options: Mapping[str, Any] | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.sampler = sampler
        self.tokenizer = tokenizer
        self.chat = Chat(tokenizer, observation_role=observation_role, options=template_options, stop_ids=stop_ids)
        self.max_context: int | None = sampler.max_context
        self.full_contexts = 0
        for note in self.chat.traits.notes():
            warnings.warn(note, stacklevel=2)

    @property
    def model(self) -> PreTrainedModel:
        """The module that samples, which a learner may train in place. Raises ConfigError if it lives elsewhere."""
        model = getattr(self.sampler, "model", None)
        if not isinstance(model, PreTrainedModel):
            raise ConfigError(f"{type(self.sampler).__name__} holds no model in this process to train")
        return model

    def set_version(self, version: int) -> None:
        """Take note that the weights are now those of update `version`: the sampler drops its caches."""
        changed = getattr(self.sampler, "weights_changed", None)
        if changed is None:
            raise ConfigError(f"{type(self.sampler).__name__} cannot take new weights")
        changed(version)

    @property
    def forks(self) -> int:
        """Turns whose past the template had rewritten."""
        return self.chat.forks

    def complete(
        self, conversations: Sequence[Conversation], keys: Sequence[SampleKey], params: SamplingParams
    ) -> list[Completion]:
        """Take a turn in each conversation (see `Policy`)."""
        version = self.sampler.weights_version
        results = [Completion("", "length", (), (), (), weights_version=version)] * len(conversations)
        requests: list[SampleRequest] = []
        asked: list[tuple[int, Prompt]] = []
        for i, (conversation, key) in enumerate(zip(conversations, keys, strict=True)):
            prompt = self.chat.prompt(conversation)
            ids = [*(() if prompt.forked else conversation.ids), *prompt.context_ids]
            if len(ids) >= self.sampler.max_context:
                self.full_contexts += 1
                continue
            requests.append(SampleRequest(ids, key, conversation.session))
            asked.append((i, prompt))
        drawn = self.sampler.sample(requests, params, self.chat.stop_ids) if requests else []
        for (i, prompt), tokens in zip(asked, drawn, strict=True):
            results[i] = self._completion(prompt, tokens, version)
        return results

    def end_episode(self, session: str) -> None:
        """Forget a conversation that is over."""
        self.chat.forget(session)
        self.sampler.release([session])

    def close(self) -> None:
        """Nothing outlives the object."""

    def _completion(self, prompt: Prompt, tokens: SampledTokens, version: int) -> Completion:
        ids = tokens.ids.tolist()
        said = ids[:-1] if tokens.finish_reason == "stop" else ids
        return Completion(
            text=self.chat.decode(said),
            finish_reason=tokens.finish_reason,
            token_ids=tuple(ids),
            logprobs=tuple(tokens.logprobs.tolist()),
            context_ids=prompt.context_ids,
            forked=prompt.forked,
            weights_version=version,
        )


def load_policy(config: PolicyConfig, name: str | Path) -> TokenPolicy:
    """Load model and tokenizer from a folder or hub id and make them a policy, sampling as configured."""
    tokenizer = load_tokenizer(name, trust_remote_code=config.trust_remote_code, offline=config.offline)
    model = load_model(
        name,
        dtype=config.dtype,
        device=config.device,
        trust_remote_code=config.trust_remote_code,
        offline=config.offline,
    )
    sampler = HFSampler(
        model,
        max_context=config.max_context,
        cache_bytes=int(config.cache_gib * 2**30),
        slot_cache=config.slot_cache,
    )
    # A checkpoint's own list of end tokens may be longer than the tokenizer's.
    ends = getattr(model.generation_config, "eos_token_id", None)
    stops = [ends] if isinstance(ends, int) else list(ends or ())
    return TokenPolicy(sampler, tokenizer, template_options=config.template_options, stop_ids=stops)
