"""GiGPO, group-in-group policy optimisation (arXiv 2505.10978): the outcome plus a comparison at shared anchors.

Letters: an anchor is the same observation met in the same group; G_t the return-to-go; F a divisor.
    A_E = (R - mean R) / F        A_S = (G_t - mean of G over every visit of the anchor) / F        A = A_E + w A_S
Invariants: an anchor that is visited once gives 0. F is 1 ("mean_norm") or std + 1e-6 ("mean_std_norm"), for A_S the
std of the anchor's own visits. Anchors are the tree's observations where it has them, else its states.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Floats, Ints, Numbering, sums
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import STD_EPSILON, outcome, returns_to_go
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.view import representatives


@estimator("gigpo", scope="group")
def gigpo(
    tree: RolloutTree,
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    normalization: Literal["mean_norm", "mean_std_norm"] = "mean_norm",
    baseline: Literal["episode", "released"] = "episode",
    anchors: Literal["exact", "similar"] = "exact",
    similarity: float = 0.95,
) -> Floats:
    """Episode advantage plus `step_weight` times the advantage among visits of one anchor. Shape: (steps,).

    baseline: "episode" gives each episode one vote in the mean (and std) of R; "released" gives it one per step, so
    long episodes weigh more, as the authors' code does. anchors: "similar" joins observations whose difflib ratio with
    the first member of a cluster reaches `similarity`; it needs text and costs a comparison per cluster.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> gigpo(tree, gamma=1.0).tolist()
    [1.0, 0.5, -1.0]
    """
    checks.discount("gamma", gamma)
    checks.strength("step_weight", step_weight)
    checks.choice("normalization", normalization, ("mean_norm", "mean_std_norm"))
    checks.choice("baseline", baseline, ("episode", "released"))
    checks.choice("anchors", anchors, ("exact", "similar"))
    checks.fraction("similarity", similarity)
    divide = normalization == "mean_std_norm"
    if baseline == "episode":
        episode = np.repeat(outcome(tree, divide=divide), tree.lengths)
    else:
        returns = np.repeat(tree.episode_returns, tree.lengths)
        episode = _compared(tree, np.repeat(tree.group, tree.lengths), tree.group_count, returns, divide)
    nodes = tree.state if tree.observation is None else tree.observation
    ids = nodes.ids if anchors == "exact" else _clusters(tree, nodes, similarity)
    return episode + step_weight * _compared(tree, ids, nodes.count, returns_to_go(tree, gamma), divide)


def _compared(tree: RolloutTree, ids: Ints, count: int, values: Floats, divide: bool) -> Floats:
    """(value - mean) / F among the live steps with one id, so 0 for a lonely one. Shape: (steps,)."""
    weight = tree.live_steps.astype(np.float64)
    n = sums(ids, weight, count)
    centred = values - (sums(ids, weight * values, count) / np.maximum(n, 1.0))[ids]
    if divide:
        centred /= np.sqrt(sums(ids, weight * centred * centred, count) / np.maximum(n - 1.0, 1.0))[ids] + STD_EPSILON
    return centred


def _clusters(tree: RolloutTree, nodes: Numbering, similarity: float) -> Ints:
    """Replace each node by the first member of its cluster, in order of appearance. Shape: (steps,)."""
    names = tree.names
    texts = None if names is None else names.states if tree.observation is None else names.observations
    if names is None or texts is None or isinstance(texts, np.ndarray):
        raise CreditError("anchors='similar' compares texts; build the tree with from_keys and observations=")
    heads = np.arange(nodes.count)
    members: dict[int, list[tuple[int, str]]] = {}
    at = representatives(np.where(tree.live_steps, nodes.ids, nodes.count), nodes.count + 1)[:-1]
    for node in np.argsort(at, kind="stable").tolist():
        if at[node] < 0:
            continue
        text = names.of(texts, int(at[node]))
        if not isinstance(text, str):
            raise CreditError(f"anchors='similar' compares texts, not {type(text).__name__}")
        known = members.setdefault(int(nodes.parent[node]), [])
        for head, other in known:
            if _ratio(other, text, similarity):
                heads[node] = head
                break
        else:
            known.append((node, text))
    return heads[nodes.ids]


def _ratio(one: str, other: str, least: float) -> bool:
    matcher = SequenceMatcher(None, one, other)
    return matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least
