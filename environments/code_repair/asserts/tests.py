"""What a task needs to be graded by assert code: the private half of tasks that `factory.make_task` makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.json_values import JsonObject

Mode = Literal["apart", "together"]


class HiddenTests(BaseModel):
    """Tests and what they stand on; frozen and hashable by `key`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    original: str
    """The text of the right program."""
    tests: str
    """Plain tests: a module that raises nothing, with `test*` functions or without. The program's names are there; they
    can be imported from `m` or one of the `aliases` as well."""
    entry: tuple[str, ...] = Field(min_length=1)
    """The functions of the program that are under test; its other names are helpers."""
    aliases: tuple[str, ...] = ()
    """Names of modules as which the tests import the program, beside `m`."""
    modules: Mapping[str, str] = Field(default_factory=dict)
    """Name to text of modules that program and tests import."""
    mode: Mode = "apart"
    """Whether tests and program run in processes apart (`apart.py`) or together (`together.py`)."""

    @classmethod
    def of(cls, task_id: str, private: JsonObject) -> Self:
        """Read a task's private part. Raises TaskError naming the field that is wrong."""
        fields = {name: private[name] for name in cls.model_fields if name in private}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise TaskError(f"task {task_id!r}: private {where}: {first['msg']}") from error
