"""Slow, literal references: each definition written out over dictionaries, one episode and one turn at a time.

An episode is a `Run`. Everything here works on one group of runs and knows nothing of arrays or of the code under test.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev


@dataclass
class Run:
    states: list
    actions: list
    rewards: list
    valid: bool = True
    coarser: tuple = ()
    values: tuple = ()

    @property
    def total(self):
        return math.fsum(self.rewards)


def zeros(group):
    return [[0.0] * len(run.rewards) for run in group]


def valid_of(group):
    return [run for run in group if run.valid]


def by_run(group, value):
    """Spread one value per run over its turns; zeros for invalid runs and for lonely groups."""
    if len(valid_of(group)) < 2:
        return zeros(group)
    return [[value(run) if run.valid else 0.0 for _ in run.rewards] for run in group]


def to_go(run, gamma):
    gains = []
    for t in range(len(run.rewards)):
        gains.append(math.fsum(gamma**l * r for l, r in enumerate(run.rewards[t:])))
    return gains


def no_variance(group):
    totals = [run.total for run in valid_of(group)]
    return max(totals) - min(totals) <= 1e-12 * max(1.0, *map(abs, totals))


def grpo(group):
    totals = [run.total for run in valid_of(group)]
    return by_run(group, lambda run: (run.total - fmean(totals)) / (stdev(totals) + 1e-6))


def dr_grpo(group):
    totals = [run.total for run in valid_of(group)]
    return by_run(group, lambda run: run.total - fmean(totals))


def rloo(group):
    def value(run):
        others = [other.total for other in valid_of(group) if other is not run]
        return run.total - fmean(others)

    return by_run(group, value)


def first_visits(run, gamma, keys=None):
    """(state, action) -> return after its first occurrence in the run."""
    gains, seen = to_go(run, gamma), {}
    for t, pair in enumerate(zip(keys or run.states, run.actions, strict=True)):
        seen.setdefault(pair, gains[t])
    return seen


def statistics(runs, gamma):
    """Q(s, a), N(s) and V(s) of some runs."""
    returns = defaultdict(list)
    for run in runs:
        for pair, gain in first_visits(run, gamma).items():
            returns[pair].append(gain)
    q = {pair: fmean(gains) for pair, gains in returns.items()}
    n, v = defaultdict(int), {}
    for (s, _), gains in returns.items():
        n[s] += len(gains)
    for s in n:
        v[s] = math.fsum(len(g) * q[p] for p, g in returns.items() if p[0] == s) / n[s]
    return q, n, v


def prior_value(run, t, reference, gamma, prior):
    if prior == "success_rate":
        return fmean(other.total for other in reference)
    mean = fmean(to_go(other, gamma)[0] for other in reference)
    if prior == "discounted":
        return mean
    return (mean - math.fsum(gamma**l * run.rewards[l] for l in range(t))) / gamma**t


def rtmc(
    group,
    gamma=0.99,
    prior="return_to_go",
    prior_strength=2.0,
    leave_one_out=False,
    normalize=False,
    skip_zero_variance=True,
):
    runs, result = valid_of(group), zeros(group)
    if len(runs) < 2 or (skip_zero_variance and no_variance(group)):
        return result
    q, _, _ = statistics(runs, gamma)
    for run, row in zip(group, result, strict=True):
        if not run.valid:
            continue
        reference = [other for other in runs if other is not run] if leave_one_out else runs
        _, n, v = statistics(reference, gamma)
        for t, (s, a) in enumerate(zip(run.states, run.actions, strict=True)):
            weight = n.get(s, 0) + prior_strength
            if weight == 0:
                continue
            v0 = prior_value(run, t, reference, gamma, prior)
            row[t] = q[s, a] - (n.get(s, 0) * v.get(s, 0.0) + prior_strength * v0) / weight
    if normalize:
        spread = pstdev([a for run, row in zip(group, result, strict=True) if run.valid for a in row])
        result = [[a / max(spread, 0.1) for a in row] for row in result]
    return result
