"""First-visit statistics of pairs and states, shared by the estimators that average returns over merged states.

Letters: N(s, a) live episodes that visit the pair, counted once each with the return-to-go of their first visit;
N(s) = sum_a N(s, a), so an episode that takes two actions at s counts twice there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats, Level, Numbering, sums
from agentgym_rtmc.trainer.credit.returns import group_sums
from agentgym_rtmc.trainer.credit.tree import RolloutTree


class Totals(NamedTuple):
    """Number of first visits and the sum of their returns. Shapes: (nodes,) each, or (steps,)."""

    n: Floats
    total: Floats


def first_visits(tree: RolloutTree, nodes: Numbering) -> Floats:
    """1.0 where a live episode visits the node of a step for the first time, else 0.0. Shape: (steps,)."""
    first = nodes.first if tree.all_live else nodes.first & tree.live_steps
    return first.astype(np.float64)


def pair_totals(tree: RolloutTree, level: Level, gains: Floats) -> Totals:
    """N(s, a) and the sum of returns. Shapes: gains (steps,) -> (pairs,)."""
    weight = first_visits(tree, level.pairs)
    ids, size = level.pairs.ids, level.pairs.count
    return Totals(sums(ids, weight, size), sums(ids, weight * gains, size))


def state_totals(
    tree: RolloutTree, level: Level, pairs: Totals, gains: Floats, *, leave_one_out: bool
) -> tuple[Floats, Floats]:
    """N(s) and sum_a N(s, a) Q(s, a) at every step, without what its own episode adds if so asked. Shapes: (steps,)."""
    parent, size, ids = level.pairs.parent, level.states.count, level.states.ids
    n, total = sums(parent, pairs.n, size)[ids], sums(parent, pairs.total, size)[ids]
    if leave_one_out:
        meeting = level.states.meeting
        weight = first_visits(tree, level.pairs)
        n -= sums(meeting, weight, 0)[meeting]
        total -= sums(meeting, weight * gains, 0)[meeting]
    return n, total


def baseline_means(tree: RolloutTree, per_episode: Floats, *, leave_one_out: bool) -> Floats:
    """Mean of a value over the group, or over its other live episodes. Shapes: (episodes,) -> (episodes,).

    Episodes that are not live get a number without meaning; they get no credit either.
    """
    total, count = group_sums(tree, per_episode)[tree.group], tree.live_count[tree.group]
    if leave_one_out:
        return (total - per_episode) / np.maximum(count - 1, 1)
    return total / np.maximum(count, 1)


def promised(tree: RolloutTree, gains: Floats, means: Floats, gamma: float) -> Floats:
    """What a mean of discounted returns still promises at each step of an episode. Shape: (steps,).

    (mean - sum_{l<t} gamma^l r_l) / gamma^t, which is G_t - (G_0 - mean) / gamma^t. means: (episodes,).
    """
    short = np.repeat(start_values(tree, gains) - means, tree.lengths)
    if gamma != 1.0:
        short *= (gamma ** -np.arange(tree.lengths.max(), dtype=np.float64))[tree.turn]
    return gains - short


def start_values(tree: RolloutTree, gains: Floats) -> Floats:
    """G_0 of each episode, 0 for one without steps. Shape: (episodes,)."""
    if not len(gains):
        return np.zeros(tree.episode_count)
    return np.where(tree.lengths > 0, gains[np.minimum(tree.starts[:-1], len(gains) - 1)], 0.0)
