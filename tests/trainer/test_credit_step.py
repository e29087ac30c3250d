"""From groups to rows: invalid episodes change nothing, and what is left out is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentgym_rtmc.episodes import Episode, EpisodeGroup, Opening, Turn
from agentgym_rtmc.signatures import make_signature
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.config import CreditConfig
from agentgym_rtmc.trainer.credit_step import CreditedBatch, assign_credit


def episode(name: str, words: str, reward: float, **fields: Any) -> Episode:
    turns = tuple(
        Turn(
            text=word,
            observation=f"saw {word}",
            reward=reward * (index + 1 == len(words)),
            context_ids=(1, 2),
            token_ids=(3, 4),
            logprobs=(-1.0, -0.5),
        )
        for index, word in enumerate(words)
    )
    return Episode(id=name, group="g", opening=Opening(task=Task(id="t"), observation="o"), turns=turns, **fields)


VALID = [episode("a", "xy", 1.0), episode("b", "xz", 0.0), episode("c", "wz", 0.0), episode("d", "xy", 1.0)]
DEAD = [episode("e", "xy", 0.0, valid=False, error="machine"), episode("f", "", 0.0, valid=False, error="machine")]


def credit(members: list[Episode], estimator: str, signature: str = "observation", **more: Any) -> CreditedBatch:
    group = EpisodeGroup(id="g", episodes=tuple(members))
    keys = make_signature(signature, **more)
    return assign_credit([group], keys, CreditConfig(estimator=estimator), None, mask_length=True)


@pytest.mark.parametrize("estimator", ["rtmc", "grpo", "gigpo", "rloo"])
def test_invalid_episodes_change_nothing(estimator: str) -> None:
    clean, mixed = credit(VALID, estimator), credit([DEAD[0], *VALID, DEAD[1]], estimator)
    assert [row.advantages.tolist() for row in clean.rows] == [row.advantages.tolist() for row in mixed.rows]
    assert clean.rows and mixed.counts.episodes_invalid == 2
    same = {"company_share", "credit_rms", "groups", "groups_zero_variance"}
    assert {n: clean.figures[n] for n in same} == {n: mixed.figures[n] for n in same}


def test_a_group_without_variance_is_counted_and_teaches_nothing() -> None:
    batch = credit([VALID[0], VALID[3], *DEAD], "rtmc")
    assert batch.rows == [] and batch.counts.rows_zero_advantage == 2
    assert batch.figures["groups_zero_variance"] == 1


def test_an_estimator_that_backs_off_gets_all_levels_of_a_chain() -> None:
    def by_levels(*levels: str) -> list[list[float]]:
        return [row.advantages.tolist() for row in credit(VALID, "backoff", "chain", levels=levels).rows]

    assert by_levels("commands", "observation") != by_levels("commands")
    assert by_levels("commands") == [row.advantages.tolist() for row in credit(VALID, "backoff", "commands").rows]


def test_credit_stands_on_the_sampled_tokens() -> None:
    (row, *_) = credit(VALID, "grpo").rows
    assert row.ids.tolist() == [1, 2, 3, 4] * 2
    assert np.flatnonzero(row.advantages).tolist() == [2, 3, 6, 7] == np.flatnonzero(row.sampled_mask).tolist()
