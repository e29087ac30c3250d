"""RLOO: each episode against the mean of the others (arXiv 2402.14740)."""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.visits import baseline_means


@estimator("rloo", scope="group")
def rloo(tree: RolloutTree) -> Floats:
    """R minus the mean R of the group's other episodes: n / (n - 1) (R - mean R). Shape: (steps,).

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> rloo(tree).tolist()
    [1.0, 1.0, -1.0]
    """
    returns = tree.episode_returns
    return np.repeat(returns - baseline_means(tree, returns, leave_one_out=True), tree.lengths)
