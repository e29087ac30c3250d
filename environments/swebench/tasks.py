"""Rows as tasks: what an agent may know apart from what only the grader may.

Invariants: public are the statement, the repository, its base commit and version, the image's name and, only when
asked for, the hints of the issue's discussion; a task with hints says so (`has_hints`). All else - the reference
patch, the tests and their names, the evaluation script - is private. `row_of(task_of(row))` is the row again.
"""

from __future__ import annotations

from pydantic import JsonValue

from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

_PUBLIC = ("repo", "base_commit", "version", "image", "problem_statement")
_HINTS = "hints_text"


def task_of(row: SWEBenchRow, hints: bool = False) -> Task:
    """Make a task of a row; its id is the instance's."""
    values: dict[str, JsonValue] = row.model_dump(mode="json", by_alias=True, exclude={"instance_id"})
    public = {name: values.pop(name) for name in _PUBLIC}
    if hints:
        public[_HINTS] = values.pop(_HINTS)
    return Task(id=row.instance_id, public=public, private=values)


def row_of(task: Task) -> SWEBenchRow:
    """Return the row of a task that has its private part. Raises TaskError for one without."""
    if not task.private:
        raise TaskError(f"task {task.id!r} has no private part, which grading needs; take it from its task set")
    return SWEBenchRow.read({"instance_id": task.id, **task.public, **task.private}, "task")


def has_hints(task: Task) -> bool:
    """Whether the agent is shown the hints of the issue's discussion, which results must say."""
    return _HINTS in task.public
