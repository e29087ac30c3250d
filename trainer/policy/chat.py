"""A tokenizer's chat template as exact ids: the first prompt whole, afterwards only what is new.

Invariants:
- What a model sampled is never tokenised again. The next prompt is rendered as text; where the text so far is a prefix
  of it, only the rest (the template's end of turn, the observation, the opening of the next turn) becomes ids, else
  the conversation forks: its whole prompt becomes ids anew.
- Nothing that a message says can act as one of the template's control tokens: their spellings inside messages are
  tokenised as ordinary text.
- What is learnt is what the template does, found by rendering probes, not by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.trainer.transcript import Conversation, Message

ObservationRole = Literal["auto", "user", "tool"]

# Unicode's noncharacters are reserved for use inside a program. This one splits the spelling of a control token.
_SPLIT = "\ufdd0"
_PROBE = "probe4e1c"


@dataclass(frozen=True)
class Prompt:
    """What to put before the next turn: the ids that are new, or a whole prompt where `forked`."""

    context_ids: tuple[int, ...]
    forked: bool


@dataclass(frozen=True)
class TemplateTraits:
    """What a chat template does. `end_id` is the token it closes an assistant's turn with (None: no single token)."""

    system_role: bool
    tool_role: bool
    keeps_turns: bool
    keeps_reasoning: bool
    end_id: int | None

    def notes(self) -> list[str]:
        """What a user should know before a long run; empty when everything is as one would wish."""
        found = []
        if not self.keeps_turns:
            found.append("the chat template rewrites past turns: every turn forks and is trained on as a whole prompt")
        elif not self.keeps_reasoning:
            found.append("the chat template drops earlier <think> blocks: turns after one fork")
        if self.end_id is None:
            found.append("the chat template ends a turn with no token of its own: only the end-of-text token stops it")
        return found


class Chat:
    """Renders conversations with a tokenizer's chat template and keeps count of `forks`.

    `observation_role` decides what becomes of messages of role `tool`: `auto` keeps the role where the template knows
    it and turns it into `user` elsewhere. `options` are passed to the template (such as `enable_thinking`).
    Raises ConfigError where there is no template or it cannot render a plain dialogue.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        observation_role: ObservationRole = "auto",
        options: Mapping[str, Any] | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "policy.model: the tokenizer has no chat template; use an instruction-tuned model, or put a "
                "chat_template.jinja into its folder"
            )
        self.tokenizer = tokenizer
        self.forks = 0
        self._options = dict(options or {})
        specials = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        specials |= set(tokenizer.all_special_tokens)
        spellings = sorted(filter(None, specials), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        self._rendered: dict[str, tuple[list[Message], str]] = {}
        self._system_role = self._tool_role = True
        self.traits = self._examine()
        self._system_role = self.traits.system_role
        if observation_role == "tool" and not self.traits.tool_role:
            raise ConfigError("policy.observation_role: the chat template has no role 'tool'; set 'user' or 'auto'")
        self._tool_role = self.traits.tool_role and observation_role != "user"
        stops = {self.traits.end_id, tokenizer.eos_token_id, *stop_ids} - {None}
        if not stops:
            raise ConfigError("policy.model: neither the chat template nor the tokenizer has a token that ends a turn")
        self.stop_ids = tuple(sorted(int(i) for i in stops if i is not None))

    # -- prompts ------------------------------------------------------------------------------------------------

    def prompt(self, conversation: Conversation) -> Prompt:
        """What to put before the next turn of a conversation (which stays as it is)."""
        text = self.render(conversation.messages)
        rest = self._rest(conversation, text) if conversation.ids else text
        self._rendered[conversation.session] = (list(conversation.messages), text)
        if rest is None:
            self.forks += 1
        return Prompt(tuple(self.encode(text if rest is None else rest)), rest is None)

    def _rest(self, conversation: Conversation, text: str) -> str | None:
        """What follows the ids so far in the rendered text, or None where they do not stand for a prefix of it."""
        messages = conversation.messages
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is None:
            return None
        # The ids stand for the prompt of the last turn (rendered then, most likely) and what was said in it.
        known, before = self._rendered.get(conversation.session, ([], ""))
        if known != messages[:last]:
            before = self.render(messages[:last])
        past = before + self._mark(messages[last]["content"])
        if not text.startswith(past):
            return None
        rest = text[len(past) :]
        if conversation.ids[-1] in self.stop_ids:
            # The model ended its turn itself; a turn cut by length gets its end here, as context.
            end = str(self.tokenizer.convert_ids_to_tokens(conversation.ids[-1]))
            return rest[len(end) :] if rest.startswith(end) else None
        return rest

    def forget(self, session: str) -> None:
        """Drop what is remembered of a conversation."""
        self._rendered.pop(session, None)

    # -- text and ids -------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """The template's text, with control tokens spelled inside messages marked as text (see `encode`)."""
        marked = [
            {"role": str(message["role"]), "content": self._mark(message["content"])}
            for message in self._adapted(messages)
        ]
        return str(
            self.tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=prompt, **self._options)
        )

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text; nothing is added to it."""
        ids: list[int] = []
        for part in text.split(_SPLIT):
            if part:
                ids += self.tokenizer.encode(part, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without control tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def turn(self, text: str) -> list[int]:
        """The ids of a finished turn of the assistant, its end token included, as a model would sample them."""
        if self.traits.end_id is None:
            raise ConfigError("the chat template closes turns with no token of its own, so none can be demonstrated")
        return [*self.encode(self._mark(text)), self.traits.end_id]

    def _mark(self, content: str) -> str:
        content = content.replace(_SPLIT, "")
        if self._control is None:
            return content
        return self._control.sub(lambda match: match[0][:1] + _SPLIT + match[0][1:], content)

    def _adapted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages in roles that the template knows."""
        adapted: list[Message] = []
        system = ""
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "system" and not self._system_role:
                system = content
                continue
            if role == "tool" and not self._tool_role:
                role = "user"
            if system and role == "user":
                content, system = f"{system}\n\n{content}", ""
            adapted.append({"role": role, "content": content})
        return adapted

    # -- probes -------------------------------------------------------------------------------------------------

    def _examine(self) -> TemplateTraits:
        """Find out what the template does by rendering small dialogues."""
        ask: Message = {"role": "user", "content": "ask"}
        answer: Message = {"role": "assistant", "content": _PROBE}
        try:
            opening, closed = self.render([ask]), self.render([ask, answer, ask])
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"policy.model: the chat template cannot render a dialogue: {error}") from error
        first = self.encode(closed.partition(_PROBE)[2])[:1]
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        thought: Message = {"role": "assistant", "content": f"<think>\nwhy\n</think>\n\n{_PROBE}"}
        template = str(self.tokenizer.chat_template)
        return TemplateTraits(
            system_role=self._renders([{"role": "system", "content": _PROBE}, ask]),
            tool_role=bool(re.search(r"""["']tool["']""", template))
            and self._renders([ask, {"role": "assistant", "content": "call"}, {"role": "tool", "content": _PROBE}]),
            keeps_turns=closed.startswith(opening + _PROBE),
            keeps_reasoning=self.render([ask, thought, ask]).startswith(opening + thought["content"]),
            end_id=first[0] if first and first[0] in special else None,
        )

    def _renders(self, messages: list[Message]) -> bool:
        """Whether the template takes these messages and shows the probe."""
        try:
            return _PROBE in self.render(messages)
        except (TemplateError, TypeError, ValueError):
            return False
