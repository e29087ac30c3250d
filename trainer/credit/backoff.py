"""Back-off: values at the finest state keys, shrunk level by level towards coarser keys, a method of this project.

Letters: levels 0 … L-1 from fine to coarse, s_l the state key at level l, n_l(s) and V_l(s) number and mean of the
first-visit returns at s_l (those of the episode itself left out), k the pseudo-count of a level, V0 the return-to-go
prior: what the mean of the group's (other) episodes still promises here.
    V'_L = V0        V'_l = (n_l V_l + k V'_{l+1}) / (n_l + k)        A = Q' - V'_0
    Q'_L = V0        Q'_l = (n_l Q_l + k_q Q'_{l+1}) / (n_l + k_q),   plainly Q_0 where k_q = 0
Invariants: with leave-one-out off and k_q = 0, one level is `rtmc`; no level is the group-centred return-to-go (at
gamma = 1 `dr_grpo`). A level without other visitors passes the next level's value on unchanged.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.closure import closed_values, step_targets
from agentgym_rtmc.trainer.credit.numbering import Floats, sums
from agentgym_rtmc.trainer.credit.registry import Credit, estimator
from agentgym_rtmc.trainer.credit.returns import SAME_RETURN, returns_to_go, varied
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.visits import (
    Totals,
    baseline_means,
    first_visits,
    pair_totals,
    promised,
    start_values,
    state_totals,
)

GATE_VISITS = 4.0
"""Visits at which the variance gate has opened by tanh(1)."""


@estimator("backoff", scope="group")
def backoff(
    tree: RolloutTree,
    *,
    gamma: float = 0.99,
    strength: float = 2.0,
    q_strength: float = 0.0,
    levels: int | None = None,
    leave_one_out: bool = True,
    values: Literal["returns", "closure"] = "returns",
    variance_gate: bool = False,
    skip_zero_variance: bool = True,
) -> Credit:
    """Q' - V' with both shrunk from fine to coarse keys and on to the group's promise. Shape: (steps,).

    strength, q_strength: pseudo-counts k and k_q of every level. levels: use only so many of the tree's levels, finest
    first (None: all). values: "closure" averages r + gamma V(next) of the closed process instead of returns; V then
    holds the episode's own returns too. variance_gate: move from the group-centred return towards A only as far as
    tanh(n / 4) B / (B + W) says, B and W the variance of returns between and within the actions of the state (taken
    from the same batch, so it is biased).

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["b"]], [[0, 1], [0]])
    >>> backoff(tree, gamma=1.0).advantages.tolist()
    [1.0, 1.0, -1.0]
    >>> backoff(tree, gamma=1.0, leave_one_out=False).advantages.round(3).tolist()
    [0.5, 0.333, -0.5]
    """
    checks.discount("gamma", gamma)
    checks.strength("strength", strength)
    checks.strength("q_strength", q_strength)
    checks.choice("values", values, ("returns", "closure"))
    used = len(tree.levels) if levels is None else levels
    if not 0 <= used <= len(tree.levels):
        raise CreditError(f"levels={levels}, but the tree has {len(tree.levels)} levels of state keys")
    gains = returns_to_go(tree, gamma)
    prior = ladder_prior(tree, gains, gamma, leave_one_out)
    sampled = gains
    if values == "closure":
        sampled = step_targets(tree, tree.rewards, closed_values(tree, tree.rewards, gamma), gamma)
    value = ladder(tree, sampled, prior, strength, used, leave_one_out)
    advantages = _shrunk_q(tree, sampled, prior, q_strength, used) - value
    if variance_gate and used:
        centred = gains - prior
        advantages = centred + _gate(tree, sampled) * (advantages - centred)
    skipped = 0
    if skip_zero_variance:
        flat = ~varied(tree)
        skipped = int(np.count_nonzero(flat & (tree.live_count > 0)))
        advantages[np.repeat(flat[tree.group], tree.lengths)] = 0.0
    return Credit(advantages, report={"groups_skipped": skipped})


def ladder_prior(tree: RolloutTree, gains: Floats, gamma: float, leave_one_out: bool) -> Floats:
    """V0, what the mean of the group's (other) episodes still promises at each step. Shape: (steps,)."""
    means = baseline_means(tree, start_values(tree, gains), leave_one_out=leave_one_out)
    return promised(tree, gains, means, gamma)


def ladder(
    tree: RolloutTree, gains: Floats, prior: Floats, strength: float, levels: int, leave_one_out: bool
) -> Floats:
    """V'_0 at every step, from the coarsest of the first `levels` levels down. Shapes: (steps,)."""
    value = prior
    for level in reversed(tree.levels[:levels]):
        pairs = pair_totals(tree, level, gains)
        n, total = state_totals(tree, level, pairs, gains, leave_one_out=leave_one_out)
        weight = n + strength
        value = np.where(weight > 0, (total + strength * value) / np.where(weight > 0, weight, 1.0), value)
    return value


def _shrunk_q(tree: RolloutTree, gains: Floats, prior: Floats, strength: float, levels: int) -> Floats:
    if not levels:
        return gains
    if strength == 0:
        pairs = pair_totals(tree, tree.levels[0], gains)
        return _mean(pairs)[tree.pairs.ids]
    q = prior
    for level in reversed(tree.levels[:levels]):
        pairs = pair_totals(tree, level, gains)
        q = (pairs.total[level.pairs.ids] + strength * q) / (pairs.n[level.pairs.ids] + strength)
    return q


def _mean(totals: Totals) -> Floats:
    return totals.total / np.maximum(totals.n, 1.0)


def _gate(tree: RolloutTree, gains: Floats) -> Floats:
    """tanh(n / 4) B / (B + W) of the step's state, 0 where returns do not vary. Shape: (steps,)."""
    pairs, size = tree.pairs, tree.state.count
    totals = pair_totals(tree, tree.levels[0], gains)
    n = sums(pairs.parent, totals.n, size)
    value = sums(pairs.parent, totals.total, size) / np.maximum(n, 1.0)
    between = sums(pairs.parent, totals.n * (_mean(totals) - value[pairs.parent]) ** 2, size)
    inside = (gains - _mean(totals)[pairs.ids]) ** 2 * first_visits(tree, pairs)
    within = sums(tree.state.ids, inside, size)
    varies = between + within > n * (SAME_RETURN * np.maximum(1.0, np.abs(value))) ** 2  # else rounding would decide
    return (np.tanh(n / GATE_VISITS) * np.where(varies, between / np.where(varies, between + within, 1.0), 0.0))[
        tree.state.ids
    ]
