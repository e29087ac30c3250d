"""Policy losses on flat arrays of trained tokens.

Invariants: a loss is Σ_i w_i · l_i over trained tokens, where the weights w express the aggregation and are fixed for
a whole optimiser step, so the sum does not depend on how the step is cut into micro-batches. A log-probability that is
not finite gives ratio 1 and is counted; it never makes a loss NaN.

Letters: n trained tokens; ρ = π/π_old, A advantage, sg stop-gradient.

Sources: PPO clip arXiv 1707.06347, asymmetric clip and token mean (DAPO) 2503.14476, dual clip 1912.09729, GSPO and its
token form 2507.18071, CISPO 2506.13585, constant normaliser (Dr.GRPO) 2503.20783.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym_rtmc.trainer.learner.loss_config import LossConfig
from agentgym_rtmc.trainer.learner.rows import LearningRow


@dataclass(frozen=True)
class TokenLosses:
    """Losses of single tokens, before weighting. Shapes: all (n,); `loss` has a gradient, the others have none.

    `clipped` marks tokens where the bound is active; `unusable` those where one of the three log-probabilities is not
    finite.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    mismatch: Tensor
    unusable: Tensor


def token_losses(
    logprobs: Tensor,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    config: LossConfig,
    *,
    sequence: Tensor,
    turn: Tensor,
) -> TokenLosses:
    """Return the loss of every trained token. Shapes: all arguments (n,); `sequence` and `turn` are unit numbers.

    ppo:   max(−Aρ, −A·clip(ρ)), and min(that, −A·c) where A < 0 (dual clip).
    gspo:  the same with ρ = exp(mean over the unit of log π/π_old) as value and, as gradient, ρ·∇log π of the token
           itself (GSPO's token form). Where A is constant in a unit this is the gradient of the plain form; where it
           is not, each turn keeps its own credit instead of sharing the sequence's mean.
    cispo: −sg[clip(ρ)]·A·log π.
    All are multiplied by the detached mismatch weight min(π_old/π_sampler, cap). Log-ratios are clamped to
    ±`log_ratio_limit`.
    """
    unusable = ~torch.isfinite(logprobs) | ~torch.isfinite(old_logprobs)
    usable_logprobs = torch.where(torch.isfinite(logprobs), logprobs, torch.zeros_like(logprobs))
    old = torch.where(unusable, usable_logprobs.detach(), old_logprobs)
    log_ratio = usable_logprobs - old
    if config.kind in ("gspo", "gspo_turn"):
        mean = _unit_mean(log_ratio.detach(), sequence if config.kind == "gspo" else turn)
        log_ratio = mean + usable_logprobs - usable_logprobs.detach()
    ratio = torch.exp(log_ratio.clamp(-config.log_ratio_limit, config.log_ratio_limit))
    low, high = config.clip_range()
    bounded = ratio.clamp(low, high)
    if config.kind == "cispo":
        loss = -bounded.detach() * advantages * usable_logprobs
        clipped = bounded.detach() != ratio.detach()
    else:
        loss = torch.maximum(-advantages * ratio, -advantages * bounded)
        if config.dual_clip:
            loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * config.dual_clip), loss)
        clipped = (loss.detach() != -advantages * ratio.detach()) & (advantages != 0)
    mismatch = _mismatch(old.detach(), sampler_logprobs, config)
    return TokenLosses(loss * mismatch, ratio.detach(), clipped, mismatch, unusable | ~torch.isfinite(sampler_logprobs))


def _unit_mean(values: Tensor, unit: Tensor) -> Tensor:
    """Return for each token the mean over its unit. Shapes: (n,), (n,) -> (n,)."""
    names, index = torch.unique(unit, return_inverse=True)
    total = values.new_zeros(len(names)).index_add_(0, index, values)
    return (total / torch.bincount(index, minlength=len(names)))[index]


def _mismatch(old: Tensor, sampler: Tensor, config: LossConfig) -> Tensor:
    """Return min(π_old/π_sampler, cap), 1 where it is off or the sampler's log-probability is unknown. Shape: (n,)."""
    if not config.mismatch_cap:
        return torch.ones_like(old)
    gap = (old - sampler).clamp(-config.log_ratio_limit, config.log_ratio_limit)
    weight = torch.exp(gap).clamp(max=config.mismatch_cap)
    return torch.where(torch.isfinite(sampler), weight, torch.ones_like(weight))


def token_weights(rows: Sequence[LearningRow], config: LossConfig) -> list[NDArray[np.float32]]:
    """Return the weight of every trained token of an optimiser step. Shape of entry i: (trained tokens of row i,).

    token_mean: 1/n. turn_mean: 1/(turns · tokens of the turn). sequence_mean: 1/(episodes · tokens of the episode).
    constant: 1/(episodes · constant_length). All but the last sum to 1. An episode whose template forked counts once.
    """
    owner = np.concatenate([np.full(int(row.sampled_mask.sum()), row.episode) for row in rows])
    if config.aggregation == "turn_mean":
        # Two columns name a turn; a stride keeps them one integer.
        turns = np.concatenate([row.turn[row.sampled_mask] for row in rows])
        unit = owner * (int(turns.max()) + 1) + turns
    else:
        unit = owner
    _, index, size = np.unique(unit, return_inverse=True, return_counts=True)
    if config.aggregation == "token_mean":
        weights = np.full(len(owner), 1 / len(owner))
    elif config.aggregation == "constant":
        weights = np.full(len(owner), 1 / (len(size) * config.constant_length))
    else:
        weights = 1 / (len(size) * size[index])
    ends = np.cumsum([int(row.sampled_mask.sum()) for row in rows])[:-1]
    return [part.astype(np.float32) for part in np.split(weights, ends)]
