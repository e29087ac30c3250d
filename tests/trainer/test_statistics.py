from __future__ import annotations

import numpy as np
import pytest

from agentgym_rtmc.trainer import statistics
from agentgym_rtmc.trainer.statistics import clustered_interval, paired_difference, wilson_interval


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.9])
def test_wilson_solves_its_equation_and_covers(rate: float) -> None:
    for hits in range(41):
        interval = wilson_interval(hits / 40, 40)
        for edge in {interval.low, interval.high} - {0.0, 1.0}:  # (p̂ − p)² = z² p(1 − p)/n at both ends
            assert (hits / 40 - edge) ** 2 == pytest.approx(statistics.Z_95**2 * edge * (1 - edge) / 40)
    drawn = np.random.default_rng(0).binomial(40, rate, 4000)
    covered = np.mean([(i := wilson_interval(hits / 40, 40)).low <= rate <= i.high for hits in drawn])
    assert 0.92 < covered < 0.98


@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_clustered_interval_covers_where_tasks_differ(spread: float) -> None:
    """200 tasks of 4 samples; with spread, tasks are much alike inside, and the naive interval would be too short."""
    rng = np.random.default_rng(1)
    easy = 1 / (1 + np.exp(-rng.normal(0, spread, 200_000)))
    covered = 0
    for _ in range(300):
        outcomes = rng.binomial(1, rng.choice(easy, 200)[:, None], (200, 4))
        interval = clustered_interval(outcomes.tolist())
        covered += interval.low <= easy.mean() <= interval.high
    assert 0.90 < covered / 300 <= 1.0


def test_paired_difference_covers_and_uses_the_pairs() -> None:
    rng = np.random.default_rng(2)
    covered, widths = 0, []
    for trial in range(200):
        level = rng.uniform(0, 0.8, 60)
        before, after = (rng.binomial(1, rate[:, None], (60, 4)).tolist() for rate in (level, level + 0.1))
        interval = paired_difference(before, after, samples=500, seed=trial)
        covered += interval.low <= 0.1 <= interval.high
        widths.append(interval.high - interval.low)
    assert 0.88 < covered / 200 < 0.99
    shuffled = paired_difference(before, [after[i] for i in rng.permutation(60)], samples=500)
    assert np.mean(widths) < 0.8 * (shuffled.high - shuffled.low)


def test_odd_pairs() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        paired_difference([[1]], [])
    assert str(paired_difference([[1], []], [[0], [1]])) == "-1.000 [-1.000, 1.000]"
    same = paired_difference([[1, 0], [0, 1]], [[0, 1], [1, 0]])
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    assert paired_difference([[0.0]] * 3, [[1.0]] * 3, seed=1) == paired_difference([[0.0]] * 3, [[1.0]] * 3, seed=2)
