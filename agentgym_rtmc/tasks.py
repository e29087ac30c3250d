"""Tasks as data: what an agent may know apart from what only the grader may know.

Invariants: a `Task` is JSON and has a stable id; `private` (reference patch, hidden tests) never enters an
observation, an `info`, a prompt or an episode file, so everything handed onwards uses `Task.disclosed()`.
A `TaskSet` is an ordered collection of tasks under named splits; a task belongs to one split only. Beside them it may
have named selections of its tasks, such as "all that are for testing".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgym_rtmc.errors import TaskError, nearest
from agentgym_rtmc.json_values import JsonObject, Text


class Task(BaseModel):
    """One problem. `public` is what the agent may know, `private` what only the grader may."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text = Field(min_length=1, max_length=300)
    public: JsonObject = Field(default_factory=dict)
    private: JsonObject = Field(default_factory=dict, repr=False)

    def disclosed(self) -> Task:
        """Return the task without its private part."""
        return Task(id=self.id, public=self.public)

    @classmethod
    def from_json(cls, line: str | bytes, where: str) -> Task:
        """Read one JSON object; `where` (file and line) goes into the TaskError of a broken one."""
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the row"
            raise TaskError(f"{where}: not a task: {place}: {first['msg']}") from error


class TaskSet:
    """Named splits of tasks, e.g. `train` and `heldout`. Iterates over all tasks in the order of the splits.

    `selections`: further names that `split` knows, each with tasks out of the splits, which may overlap.
    """

    def __init__(
        self,
        name: str,
        splits: Mapping[str, Iterable[Task]],
        selections: Mapping[str, Iterable[Task]] | None = None,
    ) -> None:
        self.name = name
        self._splits = {split: tuple(tasks) for split, tasks in splits.items()}
        self._selections = {split: tuple(tasks) for split, tasks in (selections or {}).items()}
        self._by_id: dict[str, Task] = {}
        for split, tasks in self._splits.items():
            for task in tasks:
                if task.id in self._by_id:
                    raise TaskError(f"task set {name!r}: id {task.id!r} occurs twice (second time in split {split!r})")
                self._by_id[task.id] = task
        for split, tasks in self._selections.items():
            if split in self._splits:
                raise TaskError(f"task set {name!r}: {split!r} is a split and cannot name a selection, too")
            for task in tasks:
                if self._by_id.get(task.id) is not task:
                    raise TaskError(f"task set {name!r}: task {task.id!r} of selection {split!r} is in no split")

    @property
    def splits(self) -> dict[str, int]:
        """Number of tasks by split."""
        return {split: len(tasks) for split, tasks in self._splits.items()}

    @property
    def selections(self) -> dict[str, int]:
        """Number of tasks by selection."""
        return {split: len(tasks) for split, tasks in self._selections.items()}

    def split(self, name: str) -> tuple[Task, ...]:
        """Return the tasks of one split or selection; raises TaskError naming the nearest."""
        known = self._splits | self._selections
        if name not in known:
            raise TaskError(f"task set {self.name!r} has no split {name!r}{nearest(name, known)}")
        return known[name]

    def task(self, task_id: str) -> Task:
        """Return the task with this id; raises TaskError naming the nearest id."""
        if task_id not in self._by_id:
            close = nearest(task_id, self._by_id) if len(self._by_id) < 2000 else ""
            raise TaskError(f"task set {self.name!r} has no task {task_id!r}{close[:300]}")
        return self._by_id[task_id]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)
