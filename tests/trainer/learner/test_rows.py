from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.learner.rows import LearningRow, build_rows

TWO_TURNS = [
    {"context_ids": (1, 2, 3), "token_ids": (4, 5), "logprobs": (-0.5, -0.25)},
    {"context_ids": (6,), "token_ids": (7, 8, 9), "logprobs": (-1.0, -2.0, -3.0)},
]
Make = Callable[..., Episode]


def test_a_turn_gives_its_advantage_to_each_of_its_tokens(make_episode: Make) -> None:
    rows, counts = build_rows([make_episode(TWO_TURNS)], [np.array([0.5, -1.0])])
    (row,) = rows
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.sampled_mask.tolist() == [False] * 3 + [True] * 2 + [False] + [True] * 3
    assert row.turn.tolist() == [-1, -1, -1, 0, 0, -1, 1, 1, 1]
    assert row.advantages.tolist() == [0, 0, 0, 0.5, 0.5, 0, -1, -1, -1]
    assert row.logprobs[row.sampled_mask].tolist() == [-0.5, -0.25, -1, -2, -3]
    assert counts.rows == 1 and counts.turns_masked == 0


def test_token_level_advantages_follow_sampled_tokens_across_forks(make_episode: Make) -> None:
    turns = [TWO_TURNS[0], TWO_TURNS[1] | {"forked": True, "context_ids": (1, 9)}]
    rows, _ = build_rows([make_episode(turns)], [np.array([1.0, 2, 3, 4, 5])], level="token")
    assert [row.ids.tolist() for row in rows] == [[1, 2, 3, 4, 5], [1, 9, 7, 8, 9]]
    assert [row.advantages[row.sampled_mask].tolist() for row in rows] == [[1, 2], [3, 4, 5]]
    assert [(row.episode, row.segment) for row in rows] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("reason", "mask_length", "masked"), [("length", True, 1), ("length", False, 0), ("abort", False, 1)]
)
def test_cut_turns_keep_their_tokens_as_context(
    make_episode: Make, reason: str, mask_length: bool, masked: int
) -> None:
    turns: list[dict[str, Any]] = [TWO_TURNS[0] | {"finish_reason": reason}, TWO_TURNS[1]]
    (row,), counts = build_rows([make_episode(turns)], [np.array([1.0, 2.0])], mask_length=mask_length)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.sampled_mask[3:5].tolist() == [not masked] * 2
    assert counts.turns_masked == masked and counts.tokens_masked == 2 * masked
    assert (row.turn >= 0).sum() == 5, "a masked turn still owns its tokens"


def test_a_row_ends_with_its_last_trained_token(make_episode: Make) -> None:
    turns = [TWO_TURNS[0], TWO_TURNS[1] | {"finish_reason": "length"}]
    (row,), _ = build_rows([make_episode(turns)], [np.array([1.0, 2.0])])
    assert row.ids.tolist() == [1, 2, 3, 4, 5]


def test_what_is_left_out_is_counted(make_episode: Make) -> None:
    died = make_episode(TWO_TURNS, "dead", valid=False, error="machine")
    text_only = make_episode([{"reward": 1.0}], "text")
    dull = make_episode(TWO_TURNS, "dull")
    cut = make_episode([TWO_TURNS[0] | {"finish_reason": "length"}], "cut")
    given = [np.ones(2), np.ones(1), np.zeros(2), np.ones(1)]
    rows, counts = build_rows([died, text_only, dull, cut], given)
    assert rows == []
    assert counts.metrics() == {
        "rows": 0,
        "rows_zero_advantage": 1,
        "rows_untrained": 1,
        "episodes_invalid": 1,
        "episodes_without_tokens": 1,
        "turns_masked": 1,
        "tokens_masked": 2,
    }
    assert len(build_rows([dull], [np.zeros(2)], keep_zero=True)[0]) == 1


def test_missing_sampler_logprobs_are_absent_not_zero(make_episode: Make) -> None:
    turns = [TWO_TURNS[0], {"context_ids": (6,), "token_ids": (7,)}]
    (row,), _ = build_rows([make_episode(turns)], [np.ones(2)])
    assert row.logprobs.tolist()[:5] == [0, 0, 0, -0.5, -0.25] and np.isnan(row.logprobs[-1])


def test_a_token_nothing_precedes_is_not_trained(make_episode: Make) -> None:
    (row,), _ = build_rows(
        [make_episode([{"context_ids": (), "token_ids": (7, 8), "logprobs": (-1, -1)}])], [np.ones(1)]
    )
    assert row.sampled_mask.tolist() == [False, True]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.ones(3)], r"'e0' have shape \(3,\), expected \(2,\)"),
        ([np.array([1, np.nan])], "not finite"),
        ([], "1 episodes"),
    ],
)
def test_unusable_advantages_are_refused(make_episode: Make, given: list[Any], message: str) -> None:
    with pytest.raises(CreditError, match=message):
        build_rows([make_episode(TWO_TURNS)], given)


def test_rows_have_a_length(make_episode: Make) -> None:
    rows: list[LearningRow] = build_rows([make_episode(TWO_TURNS)], [np.ones(2)])[0]
    assert len(rows[0]) == 9
