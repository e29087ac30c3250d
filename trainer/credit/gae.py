"""GAE over turns for a learned critic (arXiv 1506.02438), the credit of PPO.

The comparison is with the critic and not with a group, so this is the one estimator that credits a lone episode too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Floats
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.credit.returns import discounted_sums
from agentgym_rtmc.trainer.credit.tree import RolloutTree


@estimator("gae", scope="batch", needs_company=False)
def gae(
    tree: RolloutTree,
    *,
    values: Sequence[ArrayLike],
    bootstrap: ArrayLike | None = None,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Floats:
    """sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma v_{t+1} - v_t. Shape: (steps,).

    values: the critic's v before each step, one array per episode in the order given. bootstrap: (episodes,) its value
    after the last step, for truncated episodes; 0 (the default) where the task ended by itself. Groups with fewer
    than two valid episodes, which get zeros elsewhere, are credited like all others.

    >>> tree = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> gae(tree, values=[[0.5, 0.5], [0.5]], gamma=1.0, lambda_=0.5).tolist()
    [0.25, 0.5, -0.5]
    """
    checks.discount("gamma", gamma)
    checks.fraction("lambda_", lambda_)
    given = [np.shape(v) for v in values]
    expected = [np.shape(r) for r in tree.split(tree.rewards)]
    if given != expected:
        where = next((i for i, (g, e) in enumerate(zip(given, expected, strict=False)) if g != e), len(given))
        raise CreditError(f"values needs one number per turn of each episode; it differs from episode {where} on")
    before = tree.join(values)
    last = np.zeros(tree.episode_count) if bootstrap is None else np.asarray(bootstrap, dtype=np.float64)
    if last.shape != (tree.episode_count,):
        raise CreditError(f"bootstrap needs one value for each of the {tree.episode_count} episodes, not {last.shape}")
    following = np.empty_like(before)
    following[:-1] = before[1:]
    held = tree.lengths > 0
    following[tree.starts[1:][held] - 1] = last[tree.order][held]
    delta = tree.rewards + gamma * following - before
    if not np.isfinite(delta[tree.taken]).all():
        raise CreditError("values and bootstrap must be finite")
    return discounted_sums(np.where(tree.taken, delta, 0.0), tree.left, gamma * lambda_)
