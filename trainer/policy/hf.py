"""Sampling from any causal language model of transformers, many conversations at a time.

Invariants:
- Ids in, ids out: what comes back depends on the prompt's ids, the weights and the sample key, not on the company in
  the batch nor on what was cached before (float rounding apart: a uniform within an ulp of a boundary may tip).
- Weights are read from safetensors files only, and code that comes with a model runs only when the user says so.
- Where the fast cache is unsound for an architecture - found by asking its attention and by comparing logits with a
  plain forward pass at the start - the sampler falls back, and `cache_note` and a warning say why.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from agentgym_rtmc.errors import ConfigError, SamplerError
from agentgym_rtmc.trainer.policy.base import SampledTokens, SampleRequest, SamplingParams
from agentgym_rtmc.trainer.policy.noise import draw, uniforms
from agentgym_rtmc.trainer.policy.plain_engine import PlainEngine
from agentgym_rtmc.trainer.policy.slot_engine import SlotEngine
from agentgym_rtmc.trainer.policy.slots import UnsuitableArchitectureError

DType = Literal["auto", "float32", "bfloat16", "float16"]


def pick_device(device: str = "auto") -> torch.device:
    """Resolve `auto` to cuda where there is one, else cpu. Raises ConfigError for a device this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"policy.device: {device!r} cannot be used here ({error}); try 'auto' or 'cpu'") from error
    return chosen


def load_model(
    name: str | Path,
    *,
    dtype: DType = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    offline: bool = False,
) -> PreTrainedModel:
    """Load a causal LM from a folder or by hub id, in evaluation mode.

    `dtype` auto is the checkpoint's own on an accelerator and float32 on a CPU (where bfloat16 is many times slower).
    Raises ConfigError when there is no such model or it holds no safetensors weights.
    """
    chosen = pick_device(device)
    wanted = getattr(torch, dtype) if dtype != "auto" else (torch.float32 if chosen.type == "cpu" else "auto")
    try:
        with without_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                str(name), dtype=wanted, use_safetensors=True, **_source(name, trust_remote_code, offline)
            )
    except (OSError, ValueError) as error:
        raise _load_error("model", name, offline, error) from error
    torch.nn.Module.to(model, chosen)
    model.train(False)
    loaded: PreTrainedModel = model
    return loaded


def load_tokenizer(
    name: str | Path, *, trust_remote_code: bool = False, offline: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or by hub id. Raises ConfigError when there is none."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(name), **_source(name, trust_remote_code, offline)
        )
    except (OSError, ValueError) as error:
        raise _load_error("tokenizer", name, offline, error) from error
    # An empty vocabulary is what transformers makes of a folder without tokenizer files.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise _load_error("tokenizer", name, offline, ValueError("its vocabulary is empty"))
    return tokenizer


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Loading draws bars of its own across whatever the caller shows."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _source(name: str | Path, trust_remote_code: bool, offline: bool) -> dict[str, bool]:
    return {"trust_remote_code": trust_remote_code, "local_files_only": offline or Path(name).is_dir()}


def _load_error(what: str, name: str | Path, offline: bool, error: Exception) -> ConfigError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(name).is_dir():
        advice = "the folder needs config.json, tokenizer.json and *.safetensors as save_pretrained writes them"
    elif offline:
        advice = "policy.offline is on, so only folders and models already in the hub cache can be loaded"
    else:
        advice = "pass a folder, or the id of a model that this machine can reach or has in its hub cache"
    return ConfigError(f"policy.model: no {what} could be loaded from {str(name)!r} ({reason}); {advice}")


def context_of(model: PreTrainedModel, default: int = 4096) -> int:
    """The most tokens a model's positions allow, as its configuration says."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(value := getattr(config, name, None), int) and value > 0:
            return int(value)
    return default


class HFSampler:
    """A `TokenSampler` over a transformers model that it may share with a learner.

    `max_context`: the most tokens a conversation may hold (None: what the model's configuration says).
    `cache_bytes` bounds the memory of the cache between and during turns; more rows than fit run in several waves.
    After the weights changed call `weights_changed` (same module) or `load_weights` (a copy): caches are dropped.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_context: int | None = None,
        cache_bytes: int = 2 << 30,
        prefill_tokens: int = 8192,
        weights_version: int = 0,
        slot_cache: bool = True,
    ) -> None:
        limit = context_of(model)
        if max_context is not None and not 0 < max_context <= limit:
            raise ConfigError(f"policy.max_context: {max_context} is not within 1 … {limit}, the model's positions")
        self.model = model
        self.max_context = max_context or limit
        self.weights_version = weights_version
        self.cache_note = ""
        self._engine: SlotEngine | PlainEngine
        problem = self._slot_problem() if slot_cache else "switched off"
        if problem:
            self.cache_note = f"no cache is kept between turns: {problem}"
            if slot_cache:
                warnings.warn(f"{type(model).__name__}: {self.cache_note}; sampling is slower", stacklevel=2)
            self._engine = PlainEngine(model)
        else:
            self._engine = SlotEngine(model, self.max_context, cache_bytes, prefill_tokens)

    @property
    def prefilled(self) -> int:
        """Prompt tokens run so far: what was not found in a cache."""
        return self._engine.prefilled

    def sample(
        self, requests: Sequence[SampleRequest], params: SamplingParams, stop_ids: Sequence[int]
    ) -> list[SampledTokens]:
        """Sample a turn for each request (see `TokenSampler`). At most one request a session.

        A prompt that fills the context gives no token and "length". Raises ValueError for an empty prompt or a session
        that occurs twice, SamplerError when the machine fails (out of memory).
        """
        if len({request.session for request in requests}) != len(requests):
            raise ValueError("two requests name the same session; a conversation has one next turn")
        prompts = [np.asarray(request.prompt_ids, np.int64) for request in requests]
        if any(not len(prompt) for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued")
        nothing = SampledTokens(np.empty(0, np.int64), np.empty(0, np.float32), "length")
        results = [nothing] * len(requests)
        todo = [i for i, prompt in enumerate(prompts) if len(prompt) < self.max_context]
        if not todo or params.max_tokens < 1:
            return results
        columns = min(self.max_context, max(len(prompts[i]) for i in todo) + params.max_tokens)
        stops = np.asarray(sorted(set(stop_ids)), np.int64)
        training = self.model.training
        if training:
            self.model.train(False)
        try:
            with torch.inference_mode(), self._engine.active():
                size = self._engine.capacity(columns)
                for start in range(0, len(todo), size):
                    part = todo[start : start + size]
                    drawn = self._wave([requests[i] for i in part], [prompts[i] for i in part], columns, params, stops)
                    for i, tokens in zip(part, drawn, strict=True):
                        results[i] = tokens
        except torch.OutOfMemoryError as error:
            self._engine.clear()
            raise SamplerError(f"out of memory while sampling: {error}; lower policy.cache_bytes") from error
        finally:
            if training:
                self.model.train()
        return results

    def release(self, sessions: Sequence[str]) -> None:
        """Forget the caches of episodes that ended."""
        self._engine.release(sessions)

    def weights_changed(self, version: int) -> None:
        """Take note that the shared module has new weights: what was cached no longer holds."""
        self._engine.clear()
        self.weights_version = version

    def load_weights(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy a state dict into the module and drop the caches."""
        self.model.load_state_dict(dict(state))
        self.weights_changed(version)

    def _wave(
        self,
        requests: Sequence[SampleRequest],
        prompts: Sequence[NDArray[np.int64]],
        columns: int,
        params: SamplingParams,
        stops: NDArray[np.int64],
    ) -> list[SampledTokens]:
        """Sample rows that fit together: all at token t at the same time, the finished ones dropped."""
        limits = np.minimum(params.max_tokens, self.max_context - np.asarray([len(prompt) for prompt in prompts]))
        most = int(limits.max())
        noise = torch.from_numpy(np.stack([uniforms(request.key, most) for request in requests], 1))
        noise = noise.to(self.model.device)  # (tokens, rows)
        ids = np.zeros((len(requests), most), np.int64)
        logprobs = np.zeros((len(requests), most), np.float32)
        counts = np.zeros(len(requests), np.int64)
        stopped = np.zeros(len(requests), bool)
        running = np.arange(len(requests))
        logits = self._engine.begin([request.session for request in requests], prompts, columns)
        for t in range(most):
            new, new_logprobs = draw(logits, noise[t, torch.from_numpy(running).to(noise.device)], params)
            ids[running, t] = new.numpy(force=True)
            logprobs[running, t] = new_logprobs.numpy(force=True)
            counts[running] = t + 1
            stopped[running] = np.isin(ids[running, t], stops)
            going = ~stopped[running] & (t + 1 < limits[running])
            running = running[going]
            if not len(running):
                break
            logits = self._engine.step(new[torch.from_numpy(going).to(new.device)], running)
        return [
            SampledTokens(ids[i, :n].copy(), logprobs[i, :n].copy(), "stop" if stopped[i] else "length")
            for i, n in enumerate(counts)
        ]

    def _slot_problem(self) -> str:
        """Why slots would be unsound for this model ('' if they are sound): tried on two ragged rows for two turns."""
        vocabulary = self.model.config.get_text_config().vocab_size
        rng = np.random.default_rng(0)
        first, then = (rng.integers(0, vocabulary, 24) for _ in range(2))
        size = min(24, self.max_context - 1)
        training = self.model.training
        self.model.train(False)
        try:
            engine = SlotEngine(self.model, self.max_context, 1 << 30, 1 << 30)
            with torch.inference_mode():
                with engine.active():
                    engine.begin(["a", "b"], [first[: size // 2], then[: size // 3]], size + 1)
                    engine.step(torch.tensor([first[size // 2]], device=self.model.device), np.asarray([0]))
                    prompts = [first[: size - 2], then[: size // 2]]
                    cached = engine.begin(["a", "b"], prompts, size + 1).double()
                plain = [self.model(input_ids=torch.from_numpy(p)[None].to(self.model.device)) for p in prompts]
            expected = torch.stack([output.logits[0, -1] for output in plain]).double()
        except UnsuitableArchitectureError as error:
            return str(error)
        except (TypeError, RuntimeError, ValueError, KeyError, IndexError, AttributeError) as error:
            return f"the trial failed ({type(error).__name__}: {str(error)[:200]})"
        finally:
            self.model.train(training)
        gap = float((cached - expected).abs().max() / expected.std())
        exact = self.model.dtype == torch.float32
        if not gap <= (1e-3 if exact else 0.1):
            return f"logits differ from a plain forward pass by {gap:.2g} standard deviations"
        return ""
