"""Running sums behind the learner's metrics.

Invariants: sums over trained tokens, so a metric does not depend on how an update is cut into micro-batches. Values
that are not finite are left out and counted, never averaged in.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentgym_rtmc.trainer.learner.losses import TokenLosses
from agentgym_rtmc.trainer.learner.packing import MicroBatch


class StepGauge:
    """What the optimiser steps of one update looked like."""

    def __init__(self) -> None:
        self._tokens = self._fed = self._real = 0
        self._entropy = self._clipped = self._ratio = self._mismatch = 0.0
        self._ratio_max = -math.inf
        self._unusable = 0
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._skipped = 0

    def add(self, micro: MicroBatch, losses: TokenLosses, entropy: Tensor) -> None:
        """Take in a micro-batch."""
        self._tokens += len(micro.target)
        self._fed += micro.ids.numel()
        self._real += micro.real_tokens
        self._entropy += float(entropy.nan_to_num(0.0, 0.0, 0.0).sum())
        self._clipped += int(losses.clipped.sum())
        self._ratio += float(losses.ratio.sum())
        self._ratio_max = max(self._ratio_max, float(losses.ratio.max()))
        self._mismatch += float(losses.mismatch.sum())
        self._unusable += int(losses.unusable.sum())

    def close_step(self, loss: float, norm: float, taken: bool) -> None:
        """Take in the end of an optimiser step."""
        if taken:
            self._losses.append(loss)
            self._norms.append(norm)
        else:
            self._skipped += 1

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the update."""

        def share(total: float) -> float:
            return total / self._tokens if self._tokens else math.nan

        return {
            "loss": _mean(self._losses),
            "entropy": share(self._entropy),
            "clip_fraction": share(self._clipped),
            "ratio_mean": share(self._ratio),
            "ratio_max": self._ratio_max if self._tokens else math.nan,
            "mismatch_weight_mean": share(self._mismatch),
            "logprobs_unusable": float(self._unusable),
            "grad_norm": _mean(self._norms),
            "steps": float(len(self._losses)),
            "steps_skipped": float(self._skipped),
            "tokens_trained": float(self._tokens),
            "tokens_fed": float(self._fed),
            "padding_share": 1 - self._real / self._fed if self._fed else math.nan,
        }


class GapGauge:
    """Trainer against sampler: log-probabilities of the same tokens, before the first step of an update.

    With d = log π_trainer − log π_sampler over tokens drawn by the sampler: mean and max of |d|, and the k3 estimate
    mean(exp(d) − 1 − d) of KL(sampler ‖ trainer), never negative.
    """

    def __init__(self) -> None:
        self.measured = False
        self._count = 0
        self._sum = self._max = self._k3 = 0.0

    def add(self, trainer: NDArray[np.float32], sampler: NDArray[np.float32]) -> None:
        """Take in log-probabilities. Shapes: (n,), (n,)."""
        gap = trainer.astype(np.float64) - sampler.astype(np.float64)
        gap = gap[np.isfinite(gap)]
        if len(gap):
            self._count += len(gap)
            self._sum += float(np.abs(gap).sum())
            self._max = max(self._max, float(np.abs(gap).max()))
            self._k3 += float((np.expm1(np.minimum(gap, 50.0)) - gap).sum())

    def close(self) -> None:
        """Stop measuring: the weights are about to change."""
        self.measured = True

    def metrics(self) -> dict[str, float]:
        """Return the gap's metrics, NaN where the sampler gave no log-probabilities."""
        known = self._count > 0
        return {
            "logprob_gap_mean": self._sum / self._count if known else math.nan,
            "logprob_gap_max": self._max if known else math.nan,
            "logprob_gap_kl": self._k3 / self._count if known else math.nan,
        }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
