"""TEMPO, prefix-to-tree (arXiv 2509.18314): the group outcome plus what each step changed in the value of its prefix.

Letters: V(s) mean return of the group's live episodes that pass through s; R_i after an episode's last sampled step.
    A = (R_i - mean R + V(after) - V(before)) / (std R + 1e-6)
Invariants: the second term is 0 unless a step loses company, so no gate is needed. On token trees the walk runs over
the tokens of all turns; what changes at a token that was not sampled is the environment's doing and goes to no token,
and the report says how much that was.
"""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, sums
from agentgym_rtmc.trainer.credit.registry import Credit, estimator
from agentgym_rtmc.trainer.credit.returns import STD_EPSILON, group_stds, outcome
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.visits import first_visits


@estimator("tempo", scope="group", level="token")
def tempo(tree: RolloutTree, *, normalize: bool = True) -> Credit:
    """Outcome plus change of prefix value, over std R. Shape: (steps,). For trees made by `from_tokens`.

    On a tree of state keys a step is a turn, and the result is that of `tempo_step`.
    normalize: divide by the group's unbiased std R + 1e-6. The report holds `policy_change` and `environment_change`,
    the sums of |V(after) - V(before)| at sampled and at other tokens.

    Both start with token 7. The first token changes nothing; at the second the group splits.

    >>> tree = RolloutTree.from_tokens([[7, 1], [7, 2]], [[1, 1], [1, 1]], [1.0, 0.0])
    >>> tempo(tree, normalize=False).advantages.tolist()
    [0.5, 1.0, -0.5, -1.0]
    """
    change = value_change(tree)
    advantages = np.repeat(outcome(tree, divide=False), tree.lengths) + change
    if normalize:
        advantages /= np.repeat(group_stds(tree, tree.episode_returns)[tree.group] + STD_EPSILON, tree.lengths)
    size = np.abs(change) * tree.live_steps
    policy = float(size[tree.credited].sum())
    return Credit(advantages, report={"policy_change": policy, "environment_change": float(size.sum()) - policy})


def value_change(tree: RolloutTree) -> Floats:
    """V(state after the step) - V(state before it), R_i after the last sampled step. Shape: (steps,)."""
    value = state_values(tree)
    change = value[tree.after]
    if tree.sampled is None:
        last, beyond = tree.left == 1, None
    else:
        end = np.repeat(_left_at_last_sample(tree, tree.sampled), tree.lengths)
        last, beyond = tree.left == end, tree.left < end
    change[last] = np.repeat(tree.episode_returns, tree.lengths)[last]
    change -= value[tree.state.ids]
    if beyond is not None:  # nothing is decided any more
        change[beyond] = 0.0
    return change


def state_values(tree: RolloutTree) -> Floats:
    """Mean return of the live episodes through each state, each counted once. Shape: (states,)."""
    weight = first_visits(tree, tree.state)
    count = sums(tree.state.ids, weight, tree.state.count)
    total = sums(tree.state.ids, weight * np.repeat(tree.episode_returns, tree.lengths), tree.state.count)
    if tree.final is not None:  # an episode that ends inside another's prefix also starts with that prefix
        count += sums(tree.final, tree.live.astype(np.float64), tree.state.count)
        total += sums(tree.final, tree.live * tree.episode_returns, tree.state.count)
    return total / np.maximum(count, 1.0)


def _left_at_last_sample(tree: RolloutTree, sampled: Bools) -> Ints:
    """Steps left, inclusive, at each episode's last sampled step; 0 without one. Shape: (episodes,)."""
    last = np.zeros(tree.episode_count, np.int64)
    np.maximum.at(last, tree.episode[sampled], tree.turn[sampled] + 1)
    return np.where(last > 0, tree.lengths - last + 1, 0)
