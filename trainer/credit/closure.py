"""Bellman closure of the rollout tree, CRBC (arXiv 2609.35082): values propagate across episodes that meet later.

Letters: over every visit of live episodes, N(s, a) visits, P(x|s, a) = N(s, a, x) / N(s, a), mu(a|s) = N(s, a) / N(s),
mean reward r(s, a), discount beta.
    Q(s, a) = r(s, a) + beta sum_x P(x|s, a) V(x)      V(s) = sum_a mu(a|s) Q(s, a)
    A_S = 1{s has at least 2 actions} (Q - V) / max(sigma(s), 0.1),  sigma(s)^2 = sum_a mu(a|s) (Q - V)^2
    A = A_GRPO + w A_S
Invariants: an episode's end is worth 0 beyond its last reward. The system always has one solution, since from every
state some visit leads on to an end. V(s) is the mean over the visits of s of r_t + beta V(s_{t+1}), so a state visited
once is a link in a chain: only states visited again enter the linear system.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, sums
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import discounted_sums, outcome
from agentgym_rtmc.trainer.credit.tree import RolloutTree

SIGMA_FLOOR = 0.1
"""Least divisor of the step term."""
MOST_KNOTS = 8192
"""Largest linear system that is solved, half a gigabyte of memory."""


@estimator("closure", scope="group")
def closure(
    tree: RolloutTree,
    *,
    beta: float = 0.98,
    step_weight: float = 5.0,
    form: Literal["general", "published"] = "general",
) -> Floats:
    """GRPO plus `step_weight` times the standardised Q - V of the group's empirical process. Shape: (steps,).

    form: "general" takes any rewards, as above. "published" knows success and failure only: the last turn leads to an
    end worth R, discounted by beta like any other state (for terminal rewards, beta times the general Q); refused
    unless every R lies in [0, 1].

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> closure(tree, beta=1.0, step_weight=1.0).round(3).tolist()
    [1.707, 0.707, -1.707]
    """
    checks.discount("beta", beta)
    checks.strength("step_weight", step_weight)
    checks.choice("form", form, ("general", "published"))
    rewards = tree.rewards
    if form == "published":
        returns = tree.episode_returns
        if np.any((returns[tree.valid] < 0.0) | (returns[tree.valid] > 1.0)):
            raise CreditError("form='published' needs every return in [0, 1]; use form='general'")
        rewards = np.where(tree.left == 1, beta * np.repeat(returns, tree.lengths), 0.0)
    value = closed_values(tree, rewards, beta)
    pairs, parent = tree.pairs, tree.pairs.parent
    weight = tree.live_steps.astype(np.float64)
    n = sums(pairs.ids, weight, pairs.count)
    q = sums(pairs.ids, weight * step_targets(tree, rewards, value, beta), pairs.count) / np.maximum(n, 1.0)
    gap = q - value[parent]
    visits = np.maximum(sums(parent, n, tree.state.count), 1.0)
    sigma = np.sqrt(sums(parent, n * gap * gap, tree.state.count) / visits)
    choices = sums(parent, (n > 0).astype(np.float64), tree.state.count)
    local = np.where(choices[parent] >= 2.0, gap / np.maximum(sigma, SIGMA_FLOOR)[parent], 0.0)
    return np.repeat(outcome(tree, divide=True), tree.lengths) + step_weight * local[pairs.ids]


def step_targets(tree: RolloutTree, rewards: Floats, value: Floats, beta: float) -> Floats:
    """r_t + beta V(s_{t+1}), with 0 after an episode's end. Shapes: value (states,) -> (steps,)."""
    following = value[tree.after]
    following[tree.left == 1] = 0.0
    return rewards + beta * following


def closed_values(tree: RolloutTree, rewards: Floats, beta: float) -> Floats:
    """V of the group's empirical process, 0 for states that no live episode meets. Shape: (states,)."""
    ids, base, live = tree.state.ids, tree.state.base, tree.live_steps
    visits = sums(ids, live.astype(np.float64), tree.state.count)
    at_knot = live & (visits >= 2.0)[ids]
    reward, factor, arrival = _chains(tree, rewards, beta, at_knot)
    value = np.zeros(tree.state.count)
    knots = np.flatnonzero(visits >= 2.0)
    row = np.cumsum(visits >= 2.0) - 1
    income = sums(ids[at_knot], reward[at_knot], tree.state.count)
    source = np.flatnonzero(at_knot & (arrival >= 0))
    source_state = ids[source]
    for low, high in pairwise(base.tolist()):
        nodes = knots[slice(*np.searchsorted(knots, [low, high]))]
        if not len(nodes):
            continue
        if len(nodes) > MOST_KNOTS:
            raise CreditError(f"closure would solve for {len(nodes)} states of one group, at most {MOST_KNOTS}")
        inside = (source_state >= low) & (source_state < high)
        size, first = len(nodes), row[nodes[0]]
        cells = (row[source_state[inside]] - first) * size + row[ids[arrival[source[inside]]]] - first
        flow = sums(cells, factor[source[inside]], size * size).reshape(size, size) / visits[nodes][:, None]
        value[nodes] = np.linalg.solve(np.eye(size) - flow, income[nodes] / visits[nodes])
    once = live & ~at_knot
    beyond = np.where(arrival >= 0, value[ids[arrival]], 0.0)
    value[ids[once]] = (reward + factor * beyond)[once]
    return value


def _chains(tree: RolloutTree, rewards: Floats, beta: float, at_knot: Bools) -> tuple[Floats, Floats, Ints]:
    """From each step to the next knot or the end: discounted reward, discount, the step that arrives (-1: the end)."""
    steps = tree.step_count
    here = np.arange(steps)
    knot_here = np.where(at_knot, here, steps)
    following = np.full(steps, steps)
    following[:-1] = np.minimum.accumulate(knot_here[:0:-1])[::-1]
    end = here + tree.left
    stretch = np.minimum(following, end) - here
    return discounted_sums(rewards, stretch, beta), beta**stretch, np.where(following < end, following, -1)
