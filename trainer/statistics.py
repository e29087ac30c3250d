"""Intervals for success rates whose samples come in clusters (several episodes of one task).

Invariant: an interval never claims more certainty than independent tasks allow: repeated samples of one task narrow it
only as far as they really differ from task to task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """A mean, or a difference of means, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_interval(mean: float, n: float, z: float = Z_95) -> Interval:
    """Wilson's score interval for a proportion `mean` of `n` (possibly fractional) independent trials.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927). With n = 0 the interval is [0, 1].

    >>> str(wilson_interval(0.5, 100))
    '0.500 [0.404, 0.596]'
    """
    if n <= 0:
        return Interval(mean, 0.0, 1.0)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half))


def clustered_interval(clusters: Sequence[Sequence[float]]) -> Interval:
    """Mean over clusters of the cluster means, with a Wilson interval at the effective sample size.

    `clusters`: one sequence of outcomes in [0, 1] per task. The effective size is m(1-m)/SE², SE the standard error of
    the mean of the cluster means (ddof 1), capped by the number of outcomes; where no cluster mean differs from
    another, it is the number of clusters.

    >>> str(clustered_interval([[1, 0], [0, 0], [1, 1], [0, 1]]))
    '0.500 [0.188, 0.812]'
    """
    if not clusters:
        return Interval(float("nan"), 0.0, 1.0)
    means = np.asarray([np.mean(cluster) for cluster in clusters], np.float64)
    mean = float(means.mean())
    variance = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
    spread = mean * (1 - mean)
    size = spread / variance if variance > 0 and spread > 0 else float(len(means))
    return wilson_interval(mean, min(size, float(sum(len(cluster) for cluster in clusters))))


def paired_difference(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, samples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean over clusters of (mean after - mean before), with a percentile bootstrap that resamples whole clusters.

    Cluster i of both is the same task (or program). Clusters without an outcome on either side are left out; with fewer
    than two the interval is [-1, 1], as wide as differences of rates get.
    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    >>> str(paired_difference([[0, 0], [0, 1], [1, 1], [0, 0]], [[1, 0], [1, 1], [1, 1], [0, 1]]))
    '0.375 [0.125, 0.500]'
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} clusters before and {len(after)} after are not pairs")
    pairs = [(np.mean(old), np.mean(new)) for old, new in zip(before, after, strict=True) if len(old) and len(new)]
    change = np.asarray([new - old for old, new in pairs], np.float64)
    if len(change) < 2:
        return Interval(float(change.mean()) if len(change) else float("nan"), -1.0, 1.0)
    rng = np.random.default_rng(seed)
    # Drawing how often each cluster occurs equals drawing clusters, without a (samples, clusters) array of indices.
    counts = rng.multinomial(len(change), np.full(len(change), 1 / len(change)), size=samples)
    means = counts @ change / len(change)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(change.mean()), float(low), float(high))
