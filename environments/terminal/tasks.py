"""The task set `jobs`: generated jobs of 33 families at five levels.

Levels 1 (plain), 2 (folders) and 3 (traps) are single jobs; level 4 is two jobs of level 2 and level 5 three jobs of
level 3, each in a folder of its own. Splits:

- `train`, `validation`, `test`: other instances of the same 27 families, none twice;
- `families`: six families that occur in no other split.

Invariant: equal options, equal tasks, in every process and on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random

from agentgym_rtmc.environments.terminal.families import FAMILIES, HELD_OUT
from agentgym_rtmc.environments.terminal.jobs import Job, as_task, joined
from agentgym_rtmc.errors import ConfigError, nearest
from agentgym_rtmc.tasks import Task, TaskSet

LEVELS = (1, 2, 3, 4, 5)
SPLITS = {"train": 30, "validation": 3, "test": 4, "families": 10}
"""Split -> jobs of each family and level."""
_FOLDERS = ("first", "second", "third")
_JOINED = {4: (2, 2), 5: (3, 3)}
"""Level -> how many jobs, of which level."""
_JOINED_FACTOR = 7
"""Joined jobs of a level, for each single job of a family and level: there are many ways to join."""


def load_jobs(
    *, limit: int | None = None, levels: Sequence[int] = LEVELS, families: Sequence[str] = (), scale: float = 1.0
) -> TaskSet:
    """Load the set. `limit` is the most tasks of a split (spread evenly), `levels` and `families` choose kinds of jobs
    (default: all), `scale` multiplies the number of jobs in `train`."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, not {limit}")
    if not 0 < scale <= 100:
        raise ConfigError(f"scale must lie between 0 and 100, not {scale}")
    for level in levels:
        if level not in LEVELS:
            raise ConfigError(f"there is no level {level}; known: 1 to 5")
    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"there is no family {family!r}{nearest(family, FAMILIES)}")
    seen: set[str] = set()
    splits: dict[str, list[Task]] = {}
    for split, count in SPLITS.items():
        names = [
            name
            for name in FAMILIES
            if (name in HELD_OUT) == (split == "families") and (not families or name in families)
        ]
        each = max(1, round(count * scale)) if split == "train" else count
        made = _without_repeats(_jobs(split, names, each, levels), seen) if names else iter(())
        splits[split] = _even(list(made), limit)
    return TaskSet("jobs", splits)


def make_job(family: str, level: int, seed: str) -> Job:
    """One job of a family at level 1, 2 or 3."""
    return FAMILIES[family](Random(f"terminal/{family}/{level}/{seed}"), level)


def _jobs(split: str, names: Sequence[str], each: int, levels: Sequence[int]) -> Iterator[Task]:
    for level in levels:
        if level not in _JOINED:
            for family in names:
                for number in range(each):
                    job = make_job(family, level, f"{split}/{number}")
                    yield as_task(f"{split}/{family}/{level}/{number}", family, level, job)
            continue
        parts, part_level = _JOINED[level]
        for number in range(each * _JOINED_FACTOR):
            rng = Random(f"terminal/joined/{split}/{level}/{number}")
            drawn = rng.sample(names, parts) if len(names) >= parts else rng.choices(names, k=parts)
            jobs = {
                folder: make_job(family, part_level, f"{split}/{number}/{folder}")
                for folder, family in zip(_FOLDERS, drawn, strict=False)
            }
            yield as_task(f"{split}/joined/{level}/{number}", "joined", level, joined(jobs))


def _without_repeats(tasks: Iterator[Task], seen: set[str]) -> Iterator[Task]:
    for task in tasks:
        key = json.dumps([task.public["statement"], task.public["files"]], sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield task


def _even(tasks: list[Task], limit: int | None) -> list[Task]:
    """Take `limit` tasks at even distances, which spreads them over families and levels."""
    if limit is None or len(tasks) <= limit:
        return tasks
    return [tasks[index * len(tasks) // limit] for index in range(limit)]
