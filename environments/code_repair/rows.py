"""Rows of task files, one bad row at a time: each is located by file, row and field, and the rest loads where asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

Row = TypeVar("Row", bound=BaseModel)


def read_json_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield "file, row number" and text of each row that is not blank. Raises TaskError for an unreadable file."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path.name}, row {number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}; give the path of a JSON lines file") from error


def parse_row(kind: type[Row], where: str, line: str) -> Row:
    """Read a row. Raises TaskError naming the place and the field."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise TaskError(f"{where}, field {field!r}: {first['msg']}" if field else f"{where}: {first['msg']}") from error


def collect_tasks(makers: Iterable[Callable[[], Task]], skip_bad: bool) -> list[Task]:
    """Make all tasks. A bad one raises its TaskError; with `skip_bad` it is told in a warning and left out."""
    tasks: list[Task] = []
    for make in makers:
        try:
            tasks.append(make())
        except TaskError as error:
            if not skip_bad:
                raise
            warnings.warn(f"left out: {error}", stacklevel=3)
    return tasks
