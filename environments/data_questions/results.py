"""What an agent is shown of a query's result, and what of it counts as learnt.

Two forms: `table` has a header and the number of rows; `short` has the values alone, for small models. Invariants: at
most so many characters; what was left out is said.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Literal

from agentgym_rtmc.environments.queries import QueryResult, Value

Form = Literal["table", "short"]
_LONGEST_VALUE = 80


def show_result(result: QueryResult, form: Form, limit: int) -> str:
    """Write a result as text of at most `limit` characters beside the notes.

    >>> show_result(QueryResult(("name", "n"), (("Ada", 2), (None, 1.5))), "table", 200)
    'name | n\\nAda | 2\\nNULL | 1.5\\n(2 rows)'
    >>> show_result(QueryResult(("name", "n"), (("Ada", 2), (None, 1.5))), "short", 200)
    'Ada|2\\nNULL|1.5'
    """
    mark = " | " if form == "table" else "|"
    lines = [mark.join(map(show_value, row)) for row in result.rows]
    shown: list[str] = []
    room = limit
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    left_out = len(lines) - len(shown)
    notes = [f"({left_out} more rows left out)"] if left_out else []
    if result.more:
        notes.append(f"(only the first {len(lines)} rows were read)")
    if not lines:
        notes.append("(no rows)")
    if form == "short":
        return "\n".join([*shown, *notes])
    if not notes:
        notes = [f"({len(lines)} row{'' if len(lines) == 1 else 's'})"]
    return "\n".join([mark.join(map(show_value, result.columns))[:limit], *shown, *notes])


def show_value(value: Value) -> str:
    """Write one value; long ones are cut, and line breaks become blanks."""
    if value is None:
        return "NULL"
    text = f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
    text = " ".join(text.split()) if any(letter.isspace() for letter in text) else text
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def result_digest(result: QueryResult) -> str:
    """Digest of the values of a result, in their order; not of the query, its column names or its layout."""
    text = json.dumps([result.rows, result.more], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def learnt_digest(learnt: Iterable[str]) -> str:
    """Digest of a set of things learnt, whatever their order; `nothing` for none."""
    known = sorted(learnt)
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16] if known else "nothing"
