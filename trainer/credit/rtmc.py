"""RTMC, Rollout-Tree Monte Carlo (arXiv 2604.11037): Q(s, a) minus a smoothed V(s), read off the merged states.

Letters: N(s, a) valid episodes that visit the pair, Q(s, a) the mean of their returns-to-go after the first visit,
N(s) = sum_a N(s, a), V(s) = sum_a N(s, a) Q(s, a) / N(s), n0 the prior's strength, V0 its value.
    A = Q(s, a) - (N(s) V(s) + n0 V0) / (N(s) + n0)
Invariants: where a state has no company the prior is the only comparison, so such a step gets n0 / (1 + n0) of its
distance from V0, and exactly 0 without a prior; there is no separate fallback.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Floats, sums
from agentgym_rtmc.trainer.credit.registry import Credit, estimator
from agentgym_rtmc.trainer.credit.returns import returns_to_go, varied
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.visits import (
    baseline_means,
    pair_totals,
    promised,
    start_values,
    state_totals,
)

Prior = Literal["return_to_go", "discounted", "success_rate"]
PRIORS = ("return_to_go", "discounted", "success_rate")
STD_FLOOR = 0.1
"""Least divisor of `normalize`."""


@estimator("rtmc", scope="group")
def rtmc(
    tree: RolloutTree,
    *,
    gamma: float = 0.99,
    prior: Prior = "return_to_go",
    prior_strength: float = 2.0,
    leave_one_out: bool = False,
    normalize: bool = False,
    skip_zero_variance: bool = True,
) -> Credit:
    """Q(s, a) - V'(s) with V smoothed towards a prior of `prior_strength` pseudo-visits. Shape: (steps,).

    prior: "success_rate" as published (mean R; refused unless every R lies in [0, 1]); "discounted", the mean of G at
    turn 0; "return_to_go", what that mean still promises at this point of this episode, which compares like with like
    under step rewards and discounting. leave_one_out: an episode's own returns stay out of V and V0.
    normalize: divide by the group's standard deviation of A over steps, at least 0.1, without centring.
    skip_zero_variance: zeros where all returns of a group are equal; counted in the report.

    At s the pair (s, a) has Q = 1 and (s, b) has Q = 0, so V = 1/2; V0 = 1/2 as well. The state t is nobody else's:
    2/3 of the distance of its return 1 from 1/2.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["b"]], [[0, 1], [0]])
    >>> rtmc(tree, gamma=1.0).advantages.round(3).tolist()
    [0.5, 0.333, -0.5]
    >>> rtmc(tree, gamma=1.0, prior_strength=0).advantages.tolist()
    [0.5, 0.0, -0.5]
    """
    checks.discount("gamma", gamma)
    checks.strength("prior_strength", prior_strength)
    checks.choice("prior", prior, PRIORS)
    gains = returns_to_go(tree, gamma)
    pairs = pair_totals(tree, tree.levels[0], gains)
    n, total = state_totals(tree, tree.levels[0], pairs, gains, leave_one_out=leave_one_out)
    if prior_strength:
        total += prior_strength * prior_values(tree, gains, gamma, prior, leave_one_out)
        n += prior_strength
    nobody = np.flatnonzero(n == 0)  # no prior, and no other visitor
    n[nobody] = 1.0
    total /= n
    advantages = (pairs.total / np.maximum(pairs.n, 1.0))[tree.pairs.ids]
    advantages -= total
    advantages[nobody] = 0.0
    skipped = 0
    if skip_zero_variance:
        kept = varied(tree)
        skipped = int(np.count_nonzero(~kept & (tree.live_count > 0)))
        if skipped:
            advantages[~np.repeat(kept[tree.group], tree.lengths)] = 0.0
    if normalize:
        advantages /= np.repeat(group_spread(tree, advantages)[tree.group], tree.lengths)
    return Credit(advantages, report={"groups_skipped": skipped})


def prior_values(tree: RolloutTree, gains: Floats, gamma: float, prior: Prior, leave_one_out: bool) -> Floats:
    """V0 at every step. Shape: (steps,)."""
    if prior == "success_rate":
        returns = tree.episode_returns
        if np.any((returns[tree.valid] < 0.0) | (returns[tree.valid] > 1.0)):
            raise CreditError(
                "prior='success_rate' needs every episode's return in [0, 1], got "
                f"{returns[tree.valid].min():g} … {returns[tree.valid].max():g}; use prior='return_to_go'"
            )
        return np.repeat(baseline_means(tree, returns, leave_one_out=leave_one_out), tree.lengths)
    means = baseline_means(tree, start_values(tree, gains), leave_one_out=leave_one_out)
    return promised(tree, gains, means, gamma) if prior == "return_to_go" else np.repeat(means, tree.lengths)


def group_spread(tree: RolloutTree, advantages: Floats) -> Floats:
    """Standard deviation (ddof 0) over the steps of each group's live episodes, at least 0.1. Shape: (groups,)."""
    weight = tree.live_steps.astype(np.float64)
    group = np.repeat(tree.group, tree.lengths)
    size = np.maximum(sums(group, weight, tree.group_count), 1.0)
    mean = sums(group, weight * advantages, tree.group_count) / size
    centred = advantages - mean[group]
    return np.maximum(np.sqrt(sums(group, weight * centred * centred, tree.group_count) / size), STD_FLOOR)
