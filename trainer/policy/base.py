"""Policies: from a conversation to a completion; token samplers: from ids to ids.

Invariants: text is for environments, tokens are for learning. Only a policy backed by a `TokenSampler` can be trained.
A completion is stamped with the version of the weights that produced it. Sampling noise depends only on the
`SampleKey` of a row and the index of the token, never on the company in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.episodes import FinishReason
from agentgym_rtmc.trainer.transcript import Conversation


@dataclass(frozen=True)
class SampleKey:
    """What the noise of one turn is keyed by: equal keys and equal weights sample equal tokens."""

    seed: int
    episode: int
    turn: int


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy; `top_p` 1 and `top_k` 0 are off. `max_tokens` caps one turn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256


@dataclass(frozen=True)
class Spent:
    """What a turn used, as whoever is paid for it counts: tokens read and written, and their cost where known."""

    tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Completion:
    """One turn of a policy. Shapes: `token_ids` and `logprobs` (sampled tokens,), the end token included if sampled.

    `logprobs` are those of the sampling distribution at temperature 1 without truncation (what the learner compares).
    `context_ids` are the ids put before the sampled ones since the last turn (or a whole prompt when `forked`).
    """

    text: str
    finish_reason: FinishReason
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    context_ids: tuple[int, ...] | None = None
    forked: bool = False
    weights_version: int | None = None
    spent: Spent | None = None


class Policy(Protocol):
    """Anything that can take a turn. `max_context` is the most tokens a conversation may hold (None: unknown)."""

    max_context: int | None

    def complete(
        self, conversations: Sequence[Conversation], keys: Sequence[SampleKey], params: SamplingParams
    ) -> list[Completion]:
        """Return one completion per conversation, in order. Does not change the conversations.

        A conversation whose next prompt leaves no room for a token gets `Completion("", "length", ...)` without
        sampled tokens. Raises SamplerError when the sampler itself fails.
        """
        ...

    def close(self) -> None:
        """Release what the policy holds."""
        ...


@dataclass(frozen=True)
class SampleRequest:
    """One row for a sampler. `session` names the episode so that a sampler may keep its cache between turns."""

    prompt_ids: Sequence[int]
    key: SampleKey
    session: str


@dataclass(frozen=True)
class SampledTokens:
    """What a sampler drew. Shapes: `ids` int64 (n,), `logprobs` float32 (n,), n <= max_tokens."""

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    finish_reason: FinishReason


class TokenSampler(Protocol):
    """Ids in, ids and log-probabilities out. `stop_ids` end a turn and are part of what was sampled."""

    weights_version: int
    max_context: int

    def sample(
        self, requests: Sequence[SampleRequest], params: SamplingParams, stop_ids: Sequence[int]
    ) -> list[SampledTokens]:
        """Sample a turn for each request. A sampler's cache is an optimisation: results depend on the ids alone."""
        ...

    def release(self, sessions: Sequence[str]) -> None:
        """Forget the caches of episodes that ended."""
        ...
