"""Adaptive: the group outcome plus a step term, weighted by what splits were worth in earlier batches.

A method of this project. Letters: V(s) mean return of the group's live episodes through s, R_i after the last turn.
    A = (R_i - mean R + w (V(s_{t+1}) - V(s_t))) / (std R + 1e-6)
The split signal is pooled over all states s of a batch that at least two episodes meet, whose returns vary, and where
none of them ends; b runs over the next states, n_b episodes each, k_s of them, s^2 the unbiased variance at s:
    between = sum_s sum_b n_b (mean R_b - mean R_s)^2        within = sum_s (k_s - 1) s^2_s
Both have the same expectation if the next state says nothing about the outcome.
    lambda = clip(1 - (within + 0.1) / (between + 0.1), 0, 1)        w = 6 clip((lambda - 0.15) / 0.5, 0, 1)
Invariants: w depends on earlier batches only (a gate computed from the batch it gates is biased); the running sums come
in and go out as `memory`, decay by 0.95 a batch and start at 0, where w = 0 and the result is `grpo`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.backoff import ladder, ladder_prior
from agentgym_rtmc.trainer.credit.numbering import Floats, number, sums
from agentgym_rtmc.trainer.credit.registry import Credit, Memory, estimator
from agentgym_rtmc.trainer.credit.returns import STD_EPSILON, group_stds, outcome, returns_to_go, varied
from agentgym_rtmc.trainer.credit.tempo import value_change
from agentgym_rtmc.trainer.credit.tree import RolloutTree

REGULARISER = 0.1
THRESHOLD, RANGE, MOST_WEIGHT = 0.15, 0.5, 6.0
LADDER_STRENGTH = 2.0


@estimator("adaptive", scope="batch")
def adaptive(
    tree: RolloutTree,
    *,
    memory: Memory | None = None,
    decay: float = 0.95,
    outcome_term: Literal["return", "ladder"] = "return",
    gamma: float = 1.0,
) -> Credit:
    """Outcome plus w times the change of value, w from the splits of earlier batches. Shape: (steps,).

    memory: {"between", "within"} as the previous batch returned it. outcome_term: "return" is R - mean R; "ladder",
    for step rewards, is G_t (discounted by gamma) minus a leave-one-out ladder from fine to coarse keys to the group,
    with two pseudo-visits each. Groups whose returns are all equal get 0. The report holds `split_signal` (lambda) and
    `step_weight` (w).

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s", "u"]], [["a", "b"], ["c", "b"]], [[0, 1], [0, 0]])
    >>> first = adaptive(tree)
    >>> first.advantages.round(3).tolist(), dict(first.memory)
    ([0.707, 0.707, -0.707, -0.707], {'between': 0.5, 'within': 0.5})
    >>> adaptive(tree, memory={"between": 9.9, "within": 0.9}).advantages.round(3).tolist()
    [4.95, 0.707, -4.95, -0.707]
    """
    checks.fraction("decay", decay)
    checks.discount("gamma", gamma)
    checks.choice("outcome_term", outcome_term, ("return", "ladder"))
    before = {name: float((memory or {}).get(name, 0.0)) for name in ("between", "within")}
    if any(not 0.0 <= amount < np.inf for amount in before.values()):
        raise CreditError(f"memory holds {memory!r}; hand in what the previous batch returned, or None to start anew")
    signal = split_signal(**before)
    weight = step_weight(signal)
    advantages = np.empty(tree.step_count)
    between, within = decay * before["between"], decay * before["within"]
    for steps, part in tree.chunks():
        advantages[steps] = _advantages(part, weight, outcome_term, gamma)
        found = split_sums(part, part.episode_returns)
        between, within = between + found[0], within + found[1]
    return Credit(advantages, {"between": between, "within": within}, {"split_signal": signal, "step_weight": weight})


def _advantages(tree: RolloutTree, weight: float, outcome_term: str, gamma: float) -> Floats:
    if outcome_term == "return":
        advantages = np.repeat(outcome(tree, divide=False), tree.lengths)
    else:
        gains = returns_to_go(tree, gamma)
        prior = ladder_prior(tree, gains, gamma, leave_one_out=True)
        advantages = gains - ladder(tree, gains, prior, LADDER_STRENGTH, len(tree.levels), leave_one_out=True)
    if weight:
        advantages += weight * value_change(tree)
    # Equal returns can hide step rewards at different times; std R = 0 is no scale for those.
    advantages *= np.repeat(varied(tree)[tree.group], tree.lengths)
    return advantages / np.repeat(group_stds(tree, tree.episode_returns)[tree.group] + STD_EPSILON, tree.lengths)


def split_signal(between: float, within: float) -> float:
    """lambda in [0, 1]: the share of the spread between next states that chance does not explain."""
    return min(max(1.0 - (within + REGULARISER) / (between + REGULARISER), 0.0), 1.0)


def step_weight(signal: float) -> float:
    """w in [0, 6]."""
    return MOST_WEIGHT * min(max((signal - THRESHOLD) / RANGE, 0.0), 1.0)


def split_sums(tree: RolloutTree, returns: Floats) -> tuple[float, float]:
    """Between and within, over the first visits of live episodes. Shape: returns (episodes,)."""
    steps = np.flatnonzero(tree.state.first & tree.live_steps)
    if not len(steps):
        return 0.0, 0.0
    size, state, episode = tree.state.count, tree.state.ids[steps], tree.episode[steps]
    n, ends = sums(state, np.ones(len(steps)), size), sums(state, (tree.left[steps] == 1).astype(np.float64), size)
    gain = returns[episode]
    gap = gain - (sums(state, gain, size) / np.maximum(n, 1.0))[state]
    variance = sums(state, gap * gap, size) / np.maximum(n - 1.0, 1.0)
    pooled = (n >= 2.0) & (variance > 0.0) & (ends == 0.0)
    kept = pooled[state]
    if not kept.any():
        return 0.0, 0.0
    child, parent = number(state[kept], tree.after[steps[kept]])
    inside = sums(child, np.ones(len(child)), len(parent))
    between = float((sums(child, gap[kept], len(parent)) ** 2 / inside).sum())
    within = float((sums(parent, np.ones(len(parent)), size)[pooled] * variance[pooled]).sum() - variance[pooled].sum())
    return between, within
