"""Learning rows: the exact token sequences of credited episodes, with one advantage per trained token.

Invariants: ids come from the transcript, nothing is re-tokenised. A row is one segment of one episode; its last token
is trained. What does not take part in the loss - turns cut by length, invalid episodes, rows without any credit - is
left out here, in one place, and counted in `RowCounts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.transcript import sampled_tokens, segments


@dataclass(frozen=True)
class LearningRow:
    """One sequence to learn from.

    Shapes: all arrays (tokens,). `sampled_mask` marks the trained tokens, never the first of a row; `turn` is the index
    of the turn that sampled a token, -1 for context; `advantages` are 0 outside the mask. `logprobs` are the sampler's,
    NaN where the sampler gave none (the learner then takes ratio 1). `episode` numbers the episode in the batch.
    """

    ids: NDArray[np.int64]
    sampled_mask: NDArray[np.bool_]
    turn: NDArray[np.int64]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    episode: int
    segment: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class RowCounts:
    """What became of the episodes: `rows` kept, and everything left out with its reason."""

    rows: int = 0
    rows_zero_advantage: int = 0
    rows_untrained: int = 0
    episodes_invalid: int = 0
    episodes_without_tokens: int = 0
    turns_masked: int = 0
    tokens_masked: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the counts as flat metrics."""
        return {name: float(value) for name, value in asdict(self).items()}


def build_rows(
    episodes: Sequence[Episode],
    advantages: Sequence[NDArray[np.floating]],
    *,
    level: Literal["turn", "token"] = "turn",
    mask_length: bool = True,
    keep_zero: bool = False,
) -> tuple[list[LearningRow], RowCounts]:
    """Turn episodes and their advantages into rows, in the order of the episodes.

    Shapes: `advantages[i]` is (turns of episode i,), or (sampled tokens of episode i,) with `level="token"`. One value
    per turn is given to each of the turn's sampled tokens.

    Left out: invalid episodes; turns the sampler aborted and, with `mask_length`, turns cut by the token limit (their
    tokens stay as context); rows whose trained tokens all have advantage 0, unless `keep_zero`. A row is cut after its
    last trained token, since nothing behind it can change the loss.
    Raises CreditError when lengths do not match or an advantage is not finite.
    """
    if len(episodes) != len(advantages):
        raise CreditError(f"{len(episodes)} episodes but {len(advantages)} arrays of advantages")
    rows: list[LearningRow] = []
    counts = RowCounts()
    for number, (episode, given) in enumerate(zip(episodes, advantages, strict=True)):
        if not episode.valid:
            counts.episodes_invalid += 1
            continue
        parts = segments(episode.turns)
        if not parts:
            counts.episodes_without_tokens += 1
            continue
        per_token = _per_token(episode, np.asarray(given, np.float64), level)
        left_out = [_left_out(turn.finish_reason, mask_length) for turn in episode.turns]
        counts.turns_masked += sum(left_out)
        blind = [turn.logprobs is None for turn in episode.turns]
        used = 0
        for index, part in enumerate(parts):
            sampled = part.turn >= 0
            values = np.zeros(len(part.ids), np.float32)
            values[sampled] = per_token[used : used + int(sampled.sum())]
            used += int(sampled.sum())
            trained = sampled & ~np.asarray(left_out)[part.turn]
            counts.tokens_masked += int((sampled & ~trained).sum())
            trained[:1] = False  # nothing precedes the first token, so nothing predicts it
            if not trained.any():
                counts.rows_untrained += 1
                continue
            if not keep_zero and not values[trained].any():
                counts.rows_zero_advantage += 1
                continue
            end = int(np.flatnonzero(trained)[-1]) + 1
            logprobs = np.where(sampled & np.asarray(blind)[part.turn], np.float32(np.nan), part.logprobs)
            rows.append(
                LearningRow(
                    ids=part.ids[:end],
                    sampled_mask=trained[:end],
                    turn=part.turn[:end],
                    advantages=np.where(trained, values, np.float32(0))[:end],
                    logprobs=logprobs[:end],
                    episode=number,
                    segment=index,
                )
            )
    counts.rows = len(rows)
    return rows, counts


def _left_out(finish_reason: str, mask_length: bool) -> bool:
    return finish_reason == "abort" or (mask_length and finish_reason == "length")


def _per_token(episode: Episode, values: NDArray[np.float64], level: Literal["turn", "token"]) -> NDArray[np.float64]:
    """Return one advantage per sampled token of the episode. Shape: (sampled tokens,)."""
    lengths = sampled_tokens(episode)
    expected = len(lengths) if level == "turn" else int(lengths.sum())
    if values.shape != (expected,):
        raise CreditError(
            f"advantages of episode {episode.id!r} have shape {values.shape}, expected ({expected},): one per "
            + ("turn" if level == "turn" else "sampled token")
        )
    if not np.isfinite(values).all():
        raise CreditError(f"advantages of episode {episode.id!r} are not finite; check rewards and estimator")
    return np.repeat(values, lengths) if level == "turn" else values
