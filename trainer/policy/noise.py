"""Sampling noise and the draw itself.

Invariants: a uniform is a pure function of (seed, episode, turn, token): a counter-based generator (Philox, Salmon et
al. 2011) is keyed by seed and episode, its counter holds the turn, and token t takes the t-th number. A token is drawn
by inverting the cumulative distribution at that uniform, so equal logits and equal keys give equal tokens whatever
else is in the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams

_WORD = (1 << 64) - 1


def uniforms(key: SampleKey, count: int) -> NDArray[np.float64]:
    """Return the uniforms in [0, 1) of the first `count` tokens of a turn. Shape: (count,).

    Asking for more tokens only appends: the first ones stay as they are.
    """
    # Numpy fills blocks of four words and counts them in the lowest word, so turns (second word) never overlap.
    philox = np.random.Philox(
        key=np.asarray([key.seed & _WORD, key.episode & _WORD], np.uint64),
        counter=np.asarray([0, key.turn & _WORD, 0, 0], np.uint64),
    )
    return np.random.Generator(philox).random(count)


def draw(logits: torch.Tensor, uniform: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Shapes: `logits` (rows, vocabulary), `uniform` float64 (rows,); returns ids int64 (rows,) and their
    log-probabilities float32 (rows,) at temperature 1 without truncation.
    """
    logprobs = torch.log_softmax(logits, -1, dtype=torch.float32)
    if params.temperature == 0:
        ids = logits.argmax(-1)
    else:
        scaled = logprobs.double()
        weights = (scaled if params.temperature == 1 else scaled / params.temperature).softmax(-1)
        cumulative = _truncated(weights, params).cumsum(-1)
        total = cumulative[:, -1:]
        # Rounding must not lift the target to the total: the search would run past the last token with any weight.
        target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        ids = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)


def _truncated(weights: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Zero what top-k and top-p cut (top-k first, at least one token stays); ties go to the lower id."""
    if params.top_k <= 0 and params.top_p >= 1:
        return weights
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    if 0 < params.top_k < ordered.shape[-1]:
        ordered[:, params.top_k :] = 0
    if params.top_p < 1:
        ordered = ordered / ordered.sum(-1, keepdim=True)
        before = ordered.cumsum(-1) - ordered
        beyond = before >= params.top_p
        beyond[:, 0] = False
        ordered = ordered.masked_fill(beyond, 0)
    return torch.zeros_like(weights).scatter_(-1, order, ordered)
