"""Packing rows into optimiser steps and padded micro-batches.

Invariants: equal rows and seed give equal batches. Rows are padded on the right, so a causal model needs no attention
mask: no real token ever attends to padding. Only trained tokens leave the micro-batch, as flat arrays.

Letters: B rows of a micro-batch, L its padded length, n its trained tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym_rtmc.trainer.learner.rows import LearningRow

ATTENTION_LENGTH = 4096
"""Length at which attention (L² per row) is taken to cost as much as the rest of the model (L per row)."""
LAUNCH_TOKENS = 128
"""What starting one more micro-batch costs, in tokens: the exchange rate between padding and many small batches."""


@dataclass(frozen=True)
class MicroBatch:
    """Padded ids and, flat, what is known of each trained token.

    Shapes: `ids` (B, L); all others (n,). `position` points into the flattened (B·L) hidden states that *predict* the
    token, `target` is the token, `sequence` and `turn` number the units it belongs to across the whole step.
    `real_tokens` counts the ids that are not padding.
    """

    ids: Tensor
    position: Tensor
    target: Tensor
    advantages: Tensor
    sampler_logprobs: Tensor
    old_logprobs: Tensor
    weights: Tensor
    sequence: Tensor
    turn: Tensor
    real_tokens: int

    def to(self, device: torch.device | str) -> MicroBatch:
        """Return the micro-batch on a device."""
        moved: dict[str, Any] = {name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def plan_microbatches(lengths: Sequence[int] | NDArray[np.int64], token_budget: int) -> list[list[int]]:
    """Group rows of similar length; return lists of row numbers, longest rows first.

    Each micro-batch holds at most `token_budget` padded tokens (a longer row stands alone). Among all ways to cut the
    rows, sorted by length, the one with the least cost is found exactly, where B rows padded to L cost
    `LAUNCH_TOKENS + B·(L + L²/ATTENTION_LENGTH)` tokens.
    """
    sizes = np.asarray(lengths, np.int64)
    if token_budget < 1 or (sizes < 1).any():
        raise ValueError("the token budget and every row need at least one token")
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    longest = sizes[order].astype(np.float64)  # of the batch that starts at a row: rows are sorted
    row_cost = longest + longest**2 / ATTENTION_LENGTH
    capacity = np.maximum(token_budget // sizes[order], 1)
    best = np.zeros(len(sizes) + 1)
    start_of = np.zeros(len(sizes) + 1, np.int64)
    first = 0
    for end in range(1, len(sizes) + 1):
        while end - first > capacity[first]:  # capacity grows along the order, so the feasible starts are a suffix
            first += 1
        starts = np.arange(first, end)
        cost = best[starts] + LAUNCH_TOKENS + (end - starts) * row_cost[starts]
        pick = int(np.argmin(cost))
        best[end], start_of[end] = cost[pick], starts[pick]
    cuts = [len(sizes)]
    while cuts[-1] > 0:
        cuts.append(int(start_of[cuts[-1]]))
    cuts.reverse()
    return [order[a:b].tolist() for a, b in itertools.pairwise(cuts)]


def balanced_split(
    lengths: Sequence[int] | NDArray[np.int64], parts: int, seed: Sequence[int] = (0,)
) -> list[list[int]]:
    """Split rows at random into `parts` of about equal Σ L²; empty parts are left out.

    Serves optimiser steps within an update and data-parallel workers. Rows are dealt from the longest to the shortest,
    each to the part with the least work so far, ties among equal lengths and parts broken by `seed`.
    """
    sizes = np.asarray(lengths, np.int64)
    rng = np.random.default_rng(list(seed))
    tie = rng.permutation(len(sizes))
    work = np.zeros(parts)
    members: list[list[int]] = [[] for _ in range(parts)]
    for row in np.lexsort((tie, -sizes)):
        part = int(np.lexsort((rng.permutation(parts), work))[0])
        members[part].append(int(row))
        work[part] += float(sizes[row]) ** 2
    return [sorted(rows) for rows in members if rows]


def turn_units(rows: Sequence[LearningRow]) -> list[NDArray[np.int64]]:
    """Number the trained tokens' turns across a batch of rows. Shape of each entry: (trained tokens of the row,).

    A turn's sampled tokens always lie in one row, so no unit spans two rows.
    """
    units: list[NDArray[np.int64]] = []
    used = 0
    for row in rows:
        names, inverse = np.unique(row.turn[row.sampled_mask], return_inverse=True)
        units.append(used + inverse)
        used += len(names)
    return units


def collate(
    rows: Sequence[LearningRow],
    batch: Sequence[int],
    *,
    advantages: Sequence[NDArray[np.float32]],
    old_logprobs: Sequence[NDArray[np.float32]],
    weights: Sequence[NDArray[np.float32]],
    turns: Sequence[NDArray[np.int64]],
) -> MicroBatch:
    """Pad the rows numbered `batch` and gather their trained tokens.

    Shapes: entry i of `advantages`, `old_logprobs`, `weights` and `turns` is (trained tokens of row i,). Nothing is
    predicted from a row's last token, so it is not fed: L = longest row − 1. Padding is id 0, any valid id would do.
    """
    length = max(len(rows[i]) for i in batch) - 1
    ids = np.zeros((len(batch), length), np.int64)
    position: list[NDArray[np.int64]] = []
    for line, i in enumerate(batch):
        row = rows[i]
        ids[line, : len(row) - 1] = row.ids[:-1]
        position.append(line * length + np.flatnonzero(row.sampled_mask) - 1)

    def gather(parts: Sequence[NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.concatenate([parts[i] for i in batch]))

    return MicroBatch(
        ids=torch.from_numpy(ids),
        position=torch.from_numpy(np.concatenate(position)),
        target=torch.from_numpy(np.concatenate([rows[i].ids[rows[i].sampled_mask] for i in batch])),
        advantages=gather(advantages),
        sampler_logprobs=torch.from_numpy(np.concatenate([rows[i].logprobs[rows[i].sampled_mask] for i in batch])),
        old_logprobs=gather(old_logprobs),
        weights=gather(weights),
        sequence=torch.from_numpy(np.repeat(list(batch), [int(rows[i].sampled_mask.sum()) for i in batch])),
        turn=gather(turns),
        real_tokens=sum(len(rows[i]) - 1 for i in batch),
    )
