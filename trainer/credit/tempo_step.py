"""The step form of TEMPO: state keys in place of token prefixes.

    A = (R_i - mean R + w (V(s_{t+1}) - V(s_t))) / (std R + 1e-6)
with V(s) the mean return of the group's live episodes through s, and R_i after an episode's last turn.
"""

from __future__ import annotations

import numpy as np

from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import STD_EPSILON, group_stds, outcome
from agentgym_rtmc.trainer.credit.tempo import value_change
from agentgym_rtmc.trainer.credit.tree import RolloutTree


@estimator("tempo_step", scope="group")
def tempo_step(tree: RolloutTree, *, weight: float = 1.0, normalize: bool = True) -> Floats:
    """TEMPO on state keys: outcome plus `weight` times V(next state) - V(state), over std R. Shape: (steps,).

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> tempo_step(tree, normalize=False).tolist()
    [1.0, 0.5, -1.0]
    """
    checks.strength("weight", weight)
    advantages = np.repeat(outcome(tree, divide=False), tree.lengths) + weight * value_change(tree)
    if normalize:
        advantages /= np.repeat(group_stds(tree, tree.episode_returns)[tree.group] + STD_EPSILON, tree.lengths)
    return advantages
