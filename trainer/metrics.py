"""metrics.jsonl: one JSON object per update.

Invariants: append-only, a line is on disk before `write` returns. Numbers that are not finite are written as null.
Each update stands there once: a resumed run cuts the file back to its checkpoint. Facts of the machine (seconds, rates)
stand apart under `machine`, so that under `deterministic` equal runs write equal figures. A line cut by a crash is left
out in reading, and counted.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentgym_rtmc.durable import append_line, replace_text
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.extras import missing_extra

Figure = float | int | str | bool | None
_log = logging.getLogger(__name__)


class MetricsWriter:
    """Appends updates to a metrics file. Use as a context manager.

    `dropped` is the number of rows after `after_update` that opening cut off, `torn` that of unreadable lines removed.
    """

    def __init__(self, path: str | Path, *, after_update: int = 0, tensorboard: str | Path | None = None) -> None:
        """Open `path`, keeping the updates up to `after_update`; with `tensorboard`, write event files there too.

        Raises DependencyError when TensorBoard is asked for and not installed.
        """
        self.path = Path(path)
        self._last = after_update
        self._board = _summary_writer(Path(tensorboard), after_update) if tensorboard is not None else None
        self.dropped, self.torn = _cut_back(self.path, after_update)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close TensorBoard's files, where there are any."""
        if self._board is not None:
            self._board.close()

    def write(self, update: int, figures: Mapping[str, Any], *, machine: Mapping[str, Any] | None = None) -> None:
        """Append an update; `update` must be greater than the last one (ValueError). RunFolderError if it cannot."""
        if update <= self._last:
            raise ValueError(f"update {update} is on record already: the last one is {self._last}")
        row: dict[str, Any] = {"update": update, **{name: _plain(value) for name, value in figures.items()}}
        if machine is not None:
            row["machine"] = {name: _plain(value) for name, value in machine.items()}
        append_line(self.path, json.dumps(row, allow_nan=False))
        self._last = update
        if self._board is not None:
            for name, value in [*row.items(), *row.get("machine", {}).items()]:
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, update)
            self._board.flush()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file in order; a missing file has none. Unreadable lines are left out and logged."""
    rows, torn = _read(Path(path))
    if torn:
        _log.warning("%s: %d unreadable line(s) left out", path, torn)
    return rows


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    if not path.exists():
        return [], 0
    rows: list[dict[str, Any]] = []
    torn = 0
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            int(row["update"])
        except (ValueError, TypeError, KeyError):
            torn += 1
        else:
            rows.append(row)
    return rows, torn


def _cut_back(path: Path, after_update: int) -> tuple[int, int]:
    """Rewrite a file, in one step, with the rows up to an update; return how many rows and torn lines were cut."""
    rows, torn = _read(path)
    kept = [row for row in rows if row["update"] <= after_update]
    if torn or len(kept) < len(rows):
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))
    return len(rows) - len(kept), torn


def _plain(value: Any) -> Figure:
    """A number, text or null as JSON has it; numpy and torch scalars become Python's."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, float | int | str | bool):
        return value
    raise ConfigError(f"a metric is a number, text or nothing, not {type(value).__name__}")


def _summary_writer(folder: Path, after_update: int) -> Any:
    try:
        # tensorboard itself is looked for first: torch's wrapper imports it late and complains without a name
        import tensorboard  # noqa: F401
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    return SummaryWriter(str(folder), purge_step=after_update + 1)
