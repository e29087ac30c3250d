"""Which tasks an update trains on: a shuffled pass over the split after another, as a pure function of (seed, update).

Invariant: nothing is remembered, so a resumed run draws exactly the tasks the killed one would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task


def tasks_of_update(tasks: Sequence[Task], per_update: int, update: int, seed: int) -> list[Task]:
    """Return the tasks of one update. Every task comes once before any comes again.

    >>> [task.id for task in tasks_of_update([Task(id="a"), Task(id="b")], 3, 0, seed=0)]
    ['a', 'b', 'a']
    """
    if not tasks:
        raise TaskError("the training split is empty; choose another with env.train_split")
    first = update * per_update
    chosen: list[Task] = []
    orders: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for index in range(first, first + per_update):
        epoch, place = divmod(index, len(tasks))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng([seed, epoch]).permutation(len(tasks))
        chosen.append(tasks[int(orders[epoch][place])])
    return chosen


def training_pool(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Return the tasks that a run trains on: `count` of them, drawn by its seed and in their order; 0: all."""
    if not 0 < count < len(tasks):
        return list(tasks)
    chosen = np.random.default_rng([seed, 2]).permutation(len(tasks))[:count]
    return [tasks[int(index)] for index in np.sort(chosen)]


def shuffled(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Return `count` tasks of a fixed shuffle (all, if there are fewer): what is evaluated."""
    order = np.random.default_rng([seed, 1]).permutation(len(tasks))
    return [tasks[int(index)] for index in order[:count]]
