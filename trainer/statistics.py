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
    """A mean in [0, 1] with its 95 % interval."""

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
