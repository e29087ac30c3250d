"""Dr. GRPO: the group-centred return without any division (arXiv 2503.20783)."""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import outcome
from agentgym_rtmc.trainer.credit.tree import RolloutTree


@estimator("dr_grpo", scope="group")
def dr_grpo(tree: RolloutTree) -> Floats:
    """R - mean R, the same for every step of an episode. Shape: (steps,).

    Its other half, a constant instead of the length in the loss, is an aggregation of the loss, not of credit.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> dr_grpo(tree).tolist()
    [0.5, 0.5, -0.5]
    """
    return np.repeat(outcome(tree, divide=False), tree.lengths)
