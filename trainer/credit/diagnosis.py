"""Will step credit pay here? What a batch of episodes says before anything is spent on training.

Letters: s share of turns whose state no other valid episode of the group met; lambda the split signal of `adaptive`:
how much of the spread of returns between next states chance does not explain.
Invariants: over the live episodes of all groups. The permutation test shuffles returns within groups, so it asks
whether it matters *which* episode went through which states; p is never below 1 / (permutations + 1). The rule that
recommends comes from learning curves (docs/credit.md): step credit pays when few of many turns decide and states meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentgym_rtmc.trainer.credit.adaptive import REGULARISER, split_signal, split_sums
from agentgym_rtmc.trainer.credit.numbering import Bools
from agentgym_rtmc.trainer.credit.returns import varied
from agentgym_rtmc.trainer.credit.tree import RolloutTree

STRONG_SIGNAL, FEW_ALONE, MOST_ALONE, LONG_TASK = 0.3, 0.5, 0.75, 8
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Diagnosis:
    """Figures and a recommendation. alone_by_turn: (first turn, last turn, turns, share alone) of ranges of turns."""

    groups: int
    lonely_groups: int
    unvaried_groups: int
    turns: int
    mean_length: float
    alone: float
    alone_by_turn: list[tuple[int, int, int, float]]
    split_signal: float
    p_value: float
    step_rewards: bool
    estimator: str
    reason: str


def diagnose(tree: RolloutTree, *, permutations: int = 200, seed: int = 0) -> Diagnosis:
    """Measure overlap and split signal and recommend an estimator.

    Two groups of two whose first turn decides, and everything is met again:

    >>> keys = {"states": [["s", "t"], ["s", "u"]] * 4, "actions": [["a", "c"], ["b", "c"]] * 4}
    >>> tree = RolloutTree.from_keys(**keys, rewards=[[0, 1], [0, 0]] * 4, groups=[0] * 4 + [1] * 4)
    >>> found = diagnose(tree)
    >>> found.alone, round(found.split_signal, 2), found.p_value < 0.2
    (0.0, 0.63, True)
    """
    live = tree.live_steps
    company = tree.company()
    turns = int(np.count_nonzero(live))
    alone = float(np.mean(~company[live])) if turns else 1.0
    between, within = split_sums(tree, tree.episode_returns)
    signal = split_signal(between, within)
    p_value = _p_value(tree, (between + REGULARISER) / (within + REGULARISER), permutations, seed)
    kept = varied(tree)
    episodes = int(np.count_nonzero(tree.live))
    length = turns / episodes if episodes else 0.0
    steps = bool(np.any((tree.rewards != 0.0) & (tree.left > 1) & live))
    name, reason = _recommended(alone, signal, p_value, length, steps, bool((kept & (tree.live_count > 0)).any()))
    return Diagnosis(
        groups=tree.group_count,
        lonely_groups=int(np.count_nonzero(tree.live_count == 0)),
        unvaried_groups=int(np.count_nonzero((tree.live_count > 0) & ~kept)),
        turns=turns,
        mean_length=length,
        alone=alone,
        alone_by_turn=_by_turn(tree, ~company),
        split_signal=signal,
        p_value=p_value,
        step_rewards=steps,
        estimator=name,
        reason=reason,
    )


def _p_value(tree: RolloutTree, found: float, permutations: int, seed: int) -> float:
    """Share of shuffled returns, the found ones included, whose split ratio is at least as large."""
    rng = np.random.default_rng(seed)
    live = np.flatnonzero(tree.live)
    as_large = 1
    for _ in range(permutations):
        order = live[np.lexsort((rng.random(len(live)), tree.group[live]))]
        returns = tree.episode_returns.copy()
        returns[live] = tree.episode_returns[order]
        between, within = split_sums(tree, returns)
        as_large += (between + REGULARISER) / (within + REGULARISER) >= found - 1e-12
    return as_large / (permutations + 1)


def _by_turn(tree: RolloutTree, alone: Bools) -> list[tuple[int, int, int, float]]:
    """Ranges of turn indices that double in width."""
    rows, low = [], 0
    turn, live = tree.turn, tree.live_steps
    longest = int(tree.lengths[tree.live].max()) if tree.live.any() else 0
    while low < longest:
        high = min(max(2 * low, low + 1), longest)
        inside = live & (turn >= low) & (turn < high)
        rows.append((low, high - 1, int(np.count_nonzero(inside)), float(np.mean(alone[inside]))))
        low = high
    return rows


def _recommended(
    alone: float, signal: float, p_value: float, length: float, steps: bool, varied: bool
) -> tuple[str, str]:
    if not varied:
        return "grpo", "no group has both better and worse episodes, so there is nothing to credit yet"
    if steps:
        return "adaptive", (
            "rewards arrive during the episode: with outcome_term = 'ladder' a turn answers only for what follows it"
        )
    if alone >= MOST_ALONE:
        return (
            "grpo",
            f"{alone:.0%} of the turns have no company, so splits are mostly accidents; try a coarser signature",
        )
    if p_value > SIGNIFICANT:
        return "grpo", f"the splits say no more about outcomes than chance would (p = {p_value:.2f})"
    if signal > STRONG_SIGNAL and alone < FEW_ALONE and length >= LONG_TASK:
        return "adaptive", (
            f"states meet ({alone:.0%} alone), splits tell outcomes apart (lambda {signal:.2f}) and tasks are long"
        )
    return "adaptive", (
        f"in between (lambda {signal:.2f}, {alone:.0%} alone): it stays grpo until splits prove their worth"
    )
