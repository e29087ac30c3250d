"""A job: what to do with which files, what must come of it, and the commands that do it.

Invariants: what must come of it is worked out in Python from the files, never by running the commands; so the reference
that is paid proves both. Jobs are functions of their family, level and seed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from pydantic import JsonValue

from agentgym_rtmc.tasks import Task

ANSWER = "answer.txt"
"""Where answers are written."""

Files = dict[str, JsonValue]


@dataclass(frozen=True)
class Job:
    """`files` and `changes` are as in `files.py` and `judging.py`; `slips` are commands that do it wrong, plausibly."""

    statement: str
    files: Mapping[str, JsonValue]
    changes: Mapping[str, JsonValue]
    solution: tuple[str, ...]
    slips: tuple[str, ...] = ()

    def within(self, folder: str) -> Job:
        """The same job in a folder of its own."""
        return Job(
            f"In {folder}: {self.statement}",
            {f"{folder}/{path}": spec for path, spec in self.files.items()},
            {f"{folder}/{path}": spec for path, spec in self.changes.items()},
            tuple(f"cd {folder} && {{ {command}; }}" for command in self.solution),
            tuple(f"cd {folder} && {{ {command}; }}" for command in self.slips),
        )


def joined(jobs: Mapping[str, Job]) -> Job:
    """Several jobs at once, each in the folder it is named by."""
    placed = [job.within(folder) for folder, job in jobs.items()]
    return Job(
        "\n".join(f"{number}. {job.statement}" for number, job in enumerate(placed, 1)),
        {path: spec for job in placed for path, spec in job.files.items()},
        {path: spec for job in placed for path, spec in job.changes.items()},
        tuple(command for job in placed for command in job.solution),
        tuple(command for job in placed for command in job.slips),
    )


def as_task(name: str, family: str, level: int, job: Job) -> Task:
    """The job as a task. It is plain JSON by construction, so that checking thousands again would only take seconds."""
    return Task.model_construct(
        id=name,
        public={"family": family, "level": level, "statement": job.statement, "files": dict(job.files)},
        private={"changes": dict(job.changes), "solution": list(job.solution), "slips": list(job.slips)},
    )


Family = Callable[[Random, int], Job]
"""A kind of job: called with (rng, level) for levels 1 (plain), 2 (folders, more of it) and 3 (traps)."""


def quote(text: str) -> str:
    """A word of a shell command."""
    return shlex.quote(text)
