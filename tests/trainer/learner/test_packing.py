from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.trainer.learner.packing import (
    ATTENTION_LENGTH,
    LAUNCH_TOKENS,
    balanced_split,
    collate,
    plan_microbatches,
    turn_units,
)
from agentgym_rtmc.trainer.learner.rows import LearningRow


def cost(lengths: list[int], plan: list[list[int]]) -> float:
    total = 0.0
    for batch in plan:
        longest = max(lengths[i] for i in batch)
        total += LAUNCH_TOKENS + len(batch) * (longest + longest**2 / ATTENTION_LENGTH)
    return total


def every_cut(order: list[int]) -> list[list[list[int]]]:
    if not order:
        return [[]]
    return [[order[:k], *rest] for k in range(1, len(order) + 1) for rest in every_cut(order[k:])]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=8), st.integers(1, 2500))
def test_the_plan_is_whole_within_budget_and_the_cheapest(lengths: list[int], budget: int) -> None:
    plan = plan_microbatches(lengths, budget)
    assert sorted(i for batch in plan for i in batch) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    allowed = [cuts for cuts in every_cut(order) if all(len(b) == 1 or len(b) * lengths[b[0]] <= budget for b in cuts)]
    assert cost(lengths, plan) == pytest.approx(min(cost(lengths, cuts) for cuts in allowed))


@pytest.mark.parametrize("seed", range(3))
def test_padding_stays_under_ten_percent_on_a_wide_spread(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(60, 420, 128)
    plan = plan_microbatches(lengths, 8192)
    padded = sum(len(batch) * lengths[batch].max() for batch in plan)
    assert 1 - lengths.sum() / padded < 0.10
    assert len(plan) < 30, "not by giving each row a batch of its own"


def test_planning_is_quick_for_many_rows() -> None:
    import time

    lengths = np.random.default_rng(0).integers(20, 4000, 4000)
    started = time.process_time()
    plan_microbatches(lengths, 32768)
    assert time.process_time() - started < 1.5


def test_unusable_budgets_and_rows_are_refused() -> None:
    for lengths, budget in (([3], 0), ([0], 5)):
        with pytest.raises(ValueError, match="at least one token"):
            plan_microbatches(lengths, budget)
    assert plan_microbatches([], 5) == []


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 9))
def test_parts_are_whole_balanced_and_repeatable(lengths: list[int], parts: int, seed: int) -> None:
    split = balanced_split(lengths, parts, (seed,))
    assert sorted(i for part in split for i in part) == list(range(len(lengths)))
    assert split == balanced_split(lengths, parts, (seed,))
    work = [sum(lengths[i] ** 2 for i in part) for part in split]
    assert len(split) == min(parts, len(lengths))
    assert max(work) - min(work) <= max(lengths) ** 2


def test_parts_change_with_the_seed() -> None:
    assert balanced_split([5] * 20, 2, (0,)) != balanced_split([5] * 20, 2, (1,))


def test_collating_keeps_every_trained_token(make_rows: Callable[..., list[LearningRow]]) -> None:
    rows = make_rows(np.random.default_rng(3))
    own = [row.logprobs[row.sampled_mask] for row in rows]
    batch = [4, 0, 2]
    micro = collate(rows, batch, advantages=own, old_logprobs=own, weights=own, turns=turn_units(rows))
    flat = micro.ids.flatten()
    start = 0
    for line, i in enumerate(batch):
        where = np.flatnonzero(rows[i].sampled_mask)
        here = slice(start, start + len(where))
        assert micro.target[here].tolist() == rows[i].ids[where].tolist()
        assert flat[micro.position[here]].tolist() == rows[i].ids[where - 1].tolist(), "the id before the target"
        assert (micro.position[here] // micro.ids.shape[1] == line).all()
        assert micro.sequence[here].tolist() == [i] * len(where)
        start += len(where)
    assert start == len(micro.target)
    assert micro.real_tokens == sum(len(rows[i]) - 1 for i in batch)
    assert micro.ids.shape == (3, max(len(rows[i]) for i in batch) - 1)


def test_turns_are_numbered_across_rows(make_rows: Callable[..., list[LearningRow]]) -> None:
    rows = make_rows(np.random.default_rng(5))
    units = turn_units(rows)
    names = [(i, int(t)) for i, row in enumerate(rows) for t in row.turn[row.sampled_mask]]
    numbers = np.concatenate(units).tolist()
    assert len(set(zip(names, numbers, strict=True))) == len(set(names)) == len(set(numbers))
