"""Advantages per turn on disk: JSON lines, CSV or Parquet, by the ending of the file's name.

Invariants: the three hold the same columns in the same order, one row per turn, in the order of the episodes. A file
is written whole or not at all.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from agentgym_rtmc.errors import ConfigError, DependencyError
from agentgym_rtmc.extras import install_hint


@dataclass(frozen=True)
class CreditedTurn:
    """One row. `alone`: no other valid episode of the group met the state before this turn."""

    group: str
    episode: str
    turn: int
    advantage: float
    reward: float
    episode_return: float
    alone: bool
    state: str
    action: str


COLUMNS = [field.name for field in fields(CreditedTurn)]
ENDINGS = (".jsonl", ".csv", ".parquet")


def check_target(path: Path) -> None:
    """Refuse, before any work is done, what could not be written in the end. Raises ConfigError, DependencyError."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path}: the ending tells the format, one of {', '.join(ENDINGS)}")
    if path.is_dir():
        raise ConfigError(f"{path}: there is a folder of that name; choose another")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise DependencyError(f"writing Parquet needs pyarrow: {install_hint('pyarrow')}; or name a .jsonl file")


def write_turns(path: Path, turns: Sequence[CreditedTurn]) -> None:
    """Write all rows. Raises ConfigError where the disk refuses, and as `check_target` does."""
    check_target(path)
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _WRITERS[path.suffix](draft, turns)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}; choose another place") from error


def _write_json_lines(path: Path, turns: Sequence[CreditedTurn]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(turn), ensure_ascii=False) + "\n" for turn in turns)


def _write_csv(path: Path, turns: Sequence[CreditedTurn]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(turn) for turn in turns)


def _write_parquet(path: Path, turns: Sequence[CreditedTurn]) -> None:
    import pyarrow
    from pyarrow import parquet

    types = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_()}
    schema = pyarrow.schema([(field.name, types[str(field.type)]) for field in fields(CreditedTurn)])
    columns = {name: [getattr(turn, name) for turn in turns] for name in COLUMNS}
    parquet.write_table(pyarrow.table(columns, schema=schema), path)


_WRITERS = {".jsonl": _write_json_lines, ".csv": _write_csv, ".parquet": _write_parquet}
