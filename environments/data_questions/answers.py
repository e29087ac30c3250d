"""Is an answer right? Compared by value and type, never by its wording.

An answer is `{"kind": …, "value": …}`: `number` (with `tolerance`), `text`, `date` (as 2024-12-31), `set` (a list in
any order, each as often as it occurs) or `list` (in order) of texts, dates or numbers. Invariants: pure; nothing that
an agent can send raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rtmc.environments.queries import QueryResult
from agentgym_rtmc.errors import TaskError

EXACT = 1e-9
"""Tolerance of whole numbers."""
_MOST_COLUMNS = 3
_LARGEST = 10**15
_DATES = (
    (re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ][\d:.]+)?"), (1, 2, 3)),
    (re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})"), (3, 2, 1)),
)


def is_right(answer: Mapping[str, Any], value: object) -> bool:
    """Whether a value is the answer. Raises TaskError for an answer of an unknown kind."""
    kind, wanted = answer.get("kind"), answer.get("value")
    if kind == "number":
        return _is_number(wanted, value, float(answer.get("tolerance", EXACT)))
    if kind == "text":
        return isinstance(value, str | int | float) and _text(value) == _text(wanted)
    if kind == "date":
        return isinstance(value, str) and _date(value) == _date(str(wanted))
    if kind in ("list", "set") and isinstance(wanted, list):
        items = _items(value)
        if len(items) != len(wanted):
            return False
        if kind == "list":
            return all(_same_item(one, item) for one, item in zip(wanted, items, strict=True))
        left = list(items)
        for one in wanted:
            place = next((place for place, item in enumerate(left) if _same_item(one, item)), None)
            if place is None:
                return False
            del left[place]
        return True
    raise TaskError(f"an answer is a number, text, date, list or set with a value, not {dict(answer)!r}")


def is_answer(answer: Mapping[str, Any], given: object) -> bool:
    """Whether what an agent gave, a value, a query's result or None for nothing, is the answer.

    Of a result its first column counts, whole where a list is asked for.
    """
    if not isinstance(given, QueryResult):
        return given is not None and is_right(answer, given)
    column = [row[0] for row in given.rows]
    if given.more or not column:
        return False
    if answer.get("kind") in ("list", "set"):
        return is_right(answer, column)
    return len(column) == 1 and is_right(answer, column[0])


def holds_answer(answer: Mapping[str, Any], result: QueryResult) -> bool:
    """Whether a column of a query's result is the answer; a result with more than three columns never is."""
    if result.more or len(result.columns) > _MOST_COLUMNS or not result.rows:
        return False
    columns = [[row[place] for row in result.rows] for place in range(len(result.columns))]
    if answer.get("kind") in ("list", "set"):
        return any(is_right(answer, column) for column in columns)
    return len(result.rows) == 1 and any(is_right(answer, column[0]) for column in columns)


def _same_item(wanted: object, found: object) -> bool:
    if isinstance(wanted, int | float):
        return _is_number(wanted, found, EXACT)
    text = str(wanted)
    if _date(text) is not None:
        return isinstance(found, str) and _date(found) == _date(text)
    return isinstance(found, str | int | float) and _text(found) == _text(text)


def _is_number(wanted: object, value: object, tolerance: float) -> bool:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(wanted, int | float):
        return False
    if isinstance(value, int) and abs(value) > _LARGEST:  # too large for a float, maybe
        return value == wanted
    return math.isfinite(value) and abs(value - wanted) <= tolerance


def _text(value: object) -> str:
    return " ".join(str(value).split()).casefold()


def _date(text: str) -> tuple[int, int, int] | None:
    for pattern, (year, month, day) in _DATES:
        if match := pattern.fullmatch(text.strip()[:40]):
            return int(match[year]), int(match[month]), int(match[day])
    return None


def _items(value: object) -> Sequence[object]:
    """The items of a list; a text is split at lines or commas, and a single value is a list of one."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, str):
        return [item.strip() for item in re.split(r"[\n,]", value) if item.strip()]
    return [value]
