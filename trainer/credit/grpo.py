"""GRPO: every turn gets its episode's return, standardised within the group (arXiv 2402.03300)."""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import outcome
from agentgym_rtmc.trainer.credit.tree import RolloutTree


@estimator("grpo", scope="group")
def grpo(tree: RolloutTree) -> Floats:
    """(R - mean R) / (std R + 1e-6), the same for every step of an episode. Shape: (steps,).

    Mean and unbiased standard deviation over the group's valid episodes.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> grpo(tree).round(3).tolist()
    [0.707, 0.707, -0.707]
    """
    return np.repeat(outcome(tree, divide=True), tree.lengths)
