"""Which tasks an update trains on."""

from __future__ import annotations

from collections import Counter

import pytest

from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.order import shuffled, tasks_of_update, training_pool

TASKS = [Task(id=str(number)) for number in range(7)]


def test_every_task_comes_once_before_any_comes_again() -> None:
    drawn = [task.id for update in range(7) for task in tasks_of_update(TASKS, 3, update, seed=4)]
    for epoch in range(3):
        assert Counter(drawn[7 * epoch : 7 * epoch + 7]) == Counter(task.id for task in TASKS)
    assert len({tuple(drawn[7 * epoch : 7 * epoch + 7]) for epoch in range(3)}) > 1


def test_an_update_is_a_function_of_seed_and_number() -> None:
    assert tasks_of_update(TASKS, 3, 5, seed=1) == tasks_of_update(TASKS, 3, 5, seed=1)
    assert any(tasks_of_update(TASKS, 3, n, seed=1) != tasks_of_update(TASKS, 3, n, seed=2) for n in range(5))


def test_a_pool_is_drawn_by_the_seed_and_keeps_its_order() -> None:
    assert training_pool(TASKS, 0, seed=1) == training_pool(TASKS, 9, seed=1) == TASKS
    pools = [training_pool(TASKS, 3, seed) for seed in range(6)]
    assert pools[2] == training_pool(TASKS, 3, seed=2)
    assert all(pool == [task for task in TASKS if task in pool] and len(pool) == 3 for pool in pools)
    assert len({tuple(task.id for task in pool) for pool in pools}) > 1


def test_an_empty_split_is_named() -> None:
    with pytest.raises(TaskError, match="train_split"):
        tasks_of_update([], 3, 0, seed=0)


def test_what_is_evaluated_is_a_fixed_shuffle() -> None:
    few, many = shuffled(TASKS, 3, seed=1), shuffled(TASKS, 50, seed=1)
    assert many[:3] == few and sorted(task.id for task in many) == sorted(task.id for task in TASKS)
