"""Returns and group statistics, the quantities every estimator starts from.

Letters: r reward of a step, R = sum of an episode's rewards, G_t = sum over l >= 0 of gamma^l r_{t+l}.
Invariants: statistics over a group count the `live` episodes only (valid, in a group with at least two valid ones);
arrays of shape (groups,) hold 0 where a group has none. Every function is linear in the number of steps
(`returns_to_go`: times the logarithm of the longest episode) and touches no Python object per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, sums

if TYPE_CHECKING:
    from agentgym_rtmc.trainer.credit.tree import RolloutTree

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it, as the published codes do."""

SAME_RETURN = 1e-12
"""Returns that differ by less than this, relative to the largest (at least 1), count as equal."""


def discounted_sums(values: Floats, left: Ints, gamma: float) -> Floats:
    """Return sum over l >= 0 of gamma^l values_{t+l}, within each episode. Shape: (steps,).

    left: (steps,) number of steps from this one to the episode's last, inclusive.
    By doubling: after k rounds each entry covers 2^k steps, so the cost does not depend on how lengths are spread.
    """
    last = left == 1
    if np.count_nonzero(values) == np.count_nonzero(values[last]):  # outcomes only: no sum to take
        return _outcome_discounted(values, left, last, gamma)
    sums = values.astype(np.float64, copy=True)
    longest = int(left.max())
    shift, factor = 1, gamma
    while shift < longest:
        later = sums[shift:] * factor
        later *= left[:-shift] > shift
        sums[:-shift] += later
        shift, factor = 2 * shift, factor * factor
    return sums


def _outcome_discounted(values: Floats, left: Ints, last: Bools, gamma: float) -> Floats:
    """The same where only the last step of an episode carries a value."""
    ends = np.flatnonzero(last)
    lengths = np.diff(ends, prepend=-1)
    sums = np.repeat(values[ends], lengths)
    if gamma != 1.0 and len(left):
        sums *= (gamma ** np.arange(left.max(), dtype=np.float64))[left - 1]
    return sums


def returns_to_go(tree: RolloutTree, gamma: float) -> Floats:
    """G_t for every step. Shape: (steps,)."""
    return discounted_sums(tree.rewards, tree.left, gamma)


def group_sums(tree: RolloutTree, per_episode: Floats) -> Floats:
    """Sum of a value over the live episodes of each group. Shapes: (episodes,) -> (groups,)."""
    weights = per_episode if tree.all_live else np.where(tree.live, per_episode, 0.0)
    return sums(tree.group, weights, tree.group_count)


def group_means(tree: RolloutTree, per_episode: Floats) -> Floats:
    """Mean of a value over the live episodes of each group. Shapes: (episodes,) -> (groups,)."""
    return group_sums(tree, per_episode) / np.maximum(tree.live_count, 1)


def group_stds(tree: RolloutTree, per_episode: Floats) -> Floats:
    """Unbiased standard deviation over the live episodes of each group. Shapes: (episodes,) -> (groups,)."""
    centred = per_episode - group_means(tree, per_episode)[tree.group]
    return np.sqrt(group_sums(tree, centred * centred) / np.maximum(tree.live_count - 1, 1))


def varied(tree: RolloutTree) -> Bools:
    """Whether the returns R of a group's live episodes differ at all. Shape: (groups,)."""
    returns = tree.episode_returns[tree.live]
    group = tree.group[tree.live]
    high = np.full(tree.group_count, -np.inf)
    low = np.full(tree.group_count, np.inf)
    np.maximum.at(high, group, returns)
    np.minimum.at(low, group, returns)
    with np.errstate(invalid="ignore"):
        spread = high - low
        return np.asarray(spread > SAME_RETURN * np.maximum(1.0, np.maximum(np.abs(high), np.abs(low))))


def outcome(tree: RolloutTree, *, divide: bool) -> Floats:
    """R - mean(R) of each episode, divided by std(R) + 1e-6 if asked for. Shape: (episodes,)."""
    centred = tree.episode_returns - group_means(tree, tree.episode_returns)[tree.group]
    if divide:
        centred /= group_stds(tree, tree.episode_returns)[tree.group] + STD_EPSILON
    return centred
