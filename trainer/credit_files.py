"""Advantages per turn on disk: JSON lines, CSV or Parquet, by the ending of the file's name.

Invariant: the three hold the same columns in the same order, one row per turn, in the order of the episodes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path

from agentgym_rtmc.errors import ConfigError, DependencyError


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


ENDINGS = (".jsonl", ".csv", ".parquet")


def check_ending(path: Path) -> None:
    """Refuse an ending that names no format."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path}: the ending tells the format, one of {', '.join(ENDINGS)}")


def write_turns(path: Path, turns: Sequence[CreditedTurn]) -> None:
    """Write all rows. Raises DependencyError if Parquet is asked for and pyarrow is missing."""
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(CreditedTurn)]
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(turn), ensure_ascii=False) + "\n" for turn in turns)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(asdict(turn) for turn in turns)
    else:
        try:
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ModuleNotFoundError as error:
            raise DependencyError(
                "writing Parquet needs pyarrow: pip install pyarrow; or name a .jsonl file"
            ) from error
        table = pyarrow.table({name: [getattr(turn, name) for turn in turns] for name in names})
        parquet.write_table(table, path)
