"""REINFORCE++ with a group baseline (arXiv 2501.03262): centre within the group, whiten over the whole batch."""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import outcome
from agentgym_rtmc.trainer.credit.tree import RolloutTree

VARIANCE_EPSILON = 1e-8
"""Added to the variance, as the released code does."""


@estimator("reinforce_pp", scope="batch")
def reinforce_pp(tree: RolloutTree) -> Floats:
    """(A - mean A) / sqrt(var A + 1e-8) with A = R - mean R, whitened over all live steps. Shape: (steps,).

    Mean and (unbiased) variance weigh each step by its sampled tokens where the tree has `token_counts`, else by 1.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> reinforce_pp(tree).round(3).tolist()
    [0.577, 0.577, -1.155]
    """
    centred = np.repeat(outcome(tree, divide=False), tree.lengths)
    weight = tree.credited.astype(np.float64)
    if tree.token_counts is not None:
        weight *= tree.token_counts
    size = weight.sum()
    if size <= 1:
        return np.zeros(tree.step_count)
    centred -= (weight * centred).sum() / size
    variance = (weight * centred * centred).sum() / (size - 1)
    return np.asarray(centred / np.sqrt(variance + VARIANCE_EPSILON))
