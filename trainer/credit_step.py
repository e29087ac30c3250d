"""From collected groups to learning rows: signature, rollout tree, estimator, one advantage a turn or a token.

Invariants: pure; the estimator's memory goes in and comes out. The trainer learns nothing of the algorithm here, but
whether its steps are turns (merged by the signature's keys) or tokens (merged by their exact prefixes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_rtmc.episodes import EpisodeGroup
from agentgym_rtmc.signatures import Signature
from agentgym_rtmc.trainer.config import CreditConfig
from agentgym_rtmc.trainer.credit import RolloutTree, estimate, find_estimator
from agentgym_rtmc.trainer.credit.registry import Memory
from agentgym_rtmc.trainer.learner.rows import LearningRow, RowCounts, build_rows


@dataclass(frozen=True)
class CreditedBatch:
    """Rows to learn from, what was left out, the estimator's memory, and figures for the metrics."""

    rows: list[LearningRow]
    counts: RowCounts
    memory: Memory | None
    figures: dict[str, float]


def assign_credit(
    groups: Sequence[EpisodeGroup],
    signature: Signature[object],
    config: CreditConfig,
    memory: Memory | None,
    *,
    mask_length: bool,
) -> CreditedBatch:
    """Credit every turn of a batch, or every sampled token if that is what the estimator does.

    Figures: `company_share` (share of turns whose state another valid episode of the group met; at the level of tokens
    the share of sampled tokens whose whole past it met), `credit_rms`, `groups`, `groups_zero_variance`, and what the
    estimator reports as `credit_<name>`.
    """
    level = find_estimator(config.estimator).level
    by_tokens = level == "token"
    tree = RolloutTree.from_group_tokens(groups) if by_tokens else RolloutTree.from_groups(groups, signature)
    advantages = estimate(config.estimator, tree, memory=memory, **config.parameters)
    episodes = [episode for group in groups for episode in group.episodes]
    rows, counts = build_rows(episodes, advantages.sampled(), level=level, mask_length=mask_length)
    figures = {
        "company_share": tree.company_share(),
        "credit_rms": advantages.rms,
        "groups": float(len(groups)),
        "groups_zero_variance": float(sum(_without_variance(group) for group in groups)),
        **{f"credit_{name}": value for name, value in advantages.report.items()},
    }
    return CreditedBatch(rows, counts, advantages.memory, figures)


def _without_variance(group: EpisodeGroup) -> bool:
    returns = [episode.total_reward for episode in group.episodes if episode.valid]
    return not returns or math.isclose(min(returns), max(returns), abs_tol=1e-12)
