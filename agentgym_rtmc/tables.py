"""Tables of the command line, for people or, with `--json`, for programs.

Invariants: the rows are the data and both forms show the same rows; JSON goes to standard output alone and holds the
full values, a person's table rounds numbers to four digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]


def show_table(
    rows: Sequence[Row],
    *,
    as_json: bool = False,
    title: str = "",
    columns: Sequence[str] | None = None,
    style: Callable[[Row], str] | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table, or as a JSON list of objects.

    `columns` chooses and orders what people see (default: the keys of the first row), JSON always has all keys;
    `style` gives a row's rich style.
    """
    if as_json:
        show_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = list(columns if columns is not None else rows[0] if rows else [])
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        numeric = bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_cell(row.get(column))) for column in columns), style=style(row) if style else None)
    if console is None:
        console = Console()
        if not console.is_terminal:
            # Not a window but a pipe or a file: as wide as the table needs.
            console = Console(width=10_000)
    console.print(table)


def show_json(value: Any) -> None:
    """Print a value as indented JSON; numbers that JSON cannot say become null."""
    print(json.dumps(_plain(value), ensure_ascii=False, indent=2, allow_nan=False, default=str))


def format_cell(value: Any) -> str:
    """Write one value for people.

    >>> [format_cell(value) for value in (0.123456, 12345678.0, 7, True, None, ["a", 1], {"x": 1})]
    ['0.1235', '1.235e+07', '7', 'yes', '–', 'a, 1', 'x: 1']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        pairs = ((key, format_cell(member), isinstance(member, Mapping)) for key, member in value.items())
        return ", ".join(f"{key}: ({text})" if nested else f"{key}: {text}" for key, text, nested in pairs)
    if isinstance(value, list | tuple):
        return ", ".join(map(format_cell, value))
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return value
