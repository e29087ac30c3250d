"""Credit assignment: advantages for every step of grouped episodes, from nothing but keys and rewards.

Needs numpy only. `RolloutTree` merges the states of a batch of episodes, `estimate` runs an estimator by name,
`ESTIMATORS` lists them, `estimator` registers one of your own.
"""

from agentgym_rtmc.trainer.credit import (  # noqa: F401  (importing registers)
    adaptive,
    backoff,
    closure,
    dr_grpo,
    gae,
    gigpo,
    grpo,
    reinforce_pp,
    rloo,
    rtmc,
    tempo,
    tempo_step,
)
from agentgym_rtmc.trainer.credit.registry import (
    ESTIMATORS,
    Advantages,
    Credit,
    Estimator,
    estimate,
    estimator,
    find_estimator,
)
from agentgym_rtmc.trainer.credit.tree import RolloutTree

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Credit",
    "Estimator",
    "RolloutTree",
    "estimate",
    "estimator",
    "find_estimator",
]
