"""Conversations as messages and, beside them, the exact token ids the model saw and produced.

Invariants: nothing is ever re-tokenised. A segment's ids only grow: context ids (template, observations) and sampled
ids in turn. Where a chat template rewrites its past, the ids fork: a new segment starts with a whole prompt, the old
one stays as it was and is still trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.episodes import Episode, Turn


class Message(TypedDict):
    """One message of a conversation, in the form chat templates take."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass
class Conversation:
    """The running dialogue of one episode.

    `ids` are the exact ids of the current segment, empty for a text-only policy. `messages` grows by one assistant and
    one observation message a turn.
    """

    session: str
    messages: list[Message]
    ids: list[int] = field(default_factory=list)

    @classmethod
    def opened(cls, session: str, system_prompt: str, observation: str) -> Conversation:
        """A conversation before its first turn."""
        system: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        return cls(session, [*system, {"role": "user", "content": observation}])

    def observe(self, observation: str, role: Literal["user", "tool"] = "user") -> None:
        """Take in what the environment answered."""
        self.messages.append({"role": role, "content": observation})

    def record(
        self, text: str, context_ids: Sequence[int] | None, token_ids: Sequence[int] | None, forked: bool
    ) -> None:
        """Take in a completion: the assistant's message and the ids that belong to it."""
        self.messages.append({"role": "assistant", "content": text})
        if context_ids is not None and token_ids is not None:
            if forked:
                self.ids.clear()
            self.ids += [*context_ids, *token_ids]


@dataclass(frozen=True)
class Segment:
    """One sequence to learn from. Shapes: all (tokens,). `turn[i]` is the index of the turn that sampled token i, -1
    for context; `logprobs` are the sampler's, 0 for context."""

    ids: NDArray[np.int64]
    turn: NDArray[np.int64]
    logprobs: NDArray[np.float32]


def segments(turns: Sequence[Turn]) -> list[Segment]:
    """Rebuild the exact token sequences of an episode from its turns (one, or more where a template forked).

    Turns without token ids make no segment; a conversation cannot mix both kinds (ValueError).
    """
    tokens = [turn.token_ids is not None and turn.context_ids is not None for turn in turns]
    if not any(tokens):
        return []
    if not all(tokens):
        raise ValueError("some turns of the episode carry token ids and some do not")
    parts: list[tuple[list[int], list[int], list[float]]] = []
    for index, turn in enumerate(turns):
        context, sampled = turn.context_ids or (), turn.token_ids or ()
        if turn.forked or not parts:
            parts.append(([], [], []))
        ids, owner, logprobs = parts[-1]
        ids += [*context, *sampled]
        owner += [-1] * len(context) + [index] * len(sampled)
        logprobs += [0.0] * len(context) + list(turn.logprobs or [0.0] * len(sampled))
    return [Segment(np.asarray(a, np.int64), np.asarray(b, np.int64), np.asarray(c, np.float32)) for a, b, c in parts]


def sampled_tokens(episode: Episode) -> NDArray[np.int64]:
    """Number of sampled tokens by turn. Shape: (turns,)."""
    return np.asarray([len(turn.token_ids or ()) for turn in episode.turns], np.int64)
