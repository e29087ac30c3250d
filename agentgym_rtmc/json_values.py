"""JSON as values of the project hold it: what is accepted here can be written to a file and read back equal.

Invariants: numbers are finite, strings are valid Unicode (no lone surrogates), nesting stays below the depth at which
readers give up.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator, JsonValue

MAX_DEPTH = 64
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _plain(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    _check(value, 0)
    return value


def _check(value: JsonValue, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii() and _LONE_SURROGATE.search(value):
            raise ValueError("a string holds a lone surrogate (U+D800 to U+DFFF), which no file can; leave it out")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON; use a finite number or null")
    elif isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep; flatten it")
        if isinstance(value, dict):
            for key in value:
                _check(key, depth)
        for member in value.values() if isinstance(value, dict) else value:
            _check(member, depth + 1)


def _mend(text: str) -> str:
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_plain)]
"""A JSON object as a field of a model. Its ValidationError says what is not JSON."""

Text = Annotated[str, AfterValidator(_mend)]
"""Text of a model or an environment as a field: lone surrogates become U+FFFD, since an episode is never lost."""
