"""A question: its text, the SQL that answers it, and the answer.

Invariants: the answer is worked out in Python from the rows, never by running the SQL; so the reference that is paid
proves both. Questions are functions of their family, database and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from pydantic import JsonValue

from agentgym_rtmc.environments.data_questions.domains import Database, Domain

ROUNDED = 0.0051
"""Tolerance of numbers that are asked for to two decimals."""


@dataclass(frozen=True)
class Question:
    """`answer` is as in `answers.py`."""

    text: str
    sql: str
    answer: dict[str, JsonValue]

    @property
    def many(self) -> bool:
        """Whether the answer is a list."""
        return self.answer["kind"] in ("list", "set")


Family = Callable[[Random, Database], Question | None]
"""A kind of question: called with (rng, database); None where the rows allow no clear answer, to be drawn anew."""


def number(text: str, sql: str, value: float, rounded: bool = False) -> Question:
    """A question for a number, to two decimals where `rounded`."""
    asked = f"{text}, to two decimals?" if rounded else f"{text}?"
    answer: dict[str, JsonValue] = {"kind": "number", "value": round(value, 4) if rounded else value}
    return Question(asked, sql, answer | ({"tolerance": ROUNDED} if rounded else {}))


def word(text: str, sql: str, value: str, kind: str = "text") -> Question:
    """A question for a text or a date."""
    return Question(f"{text}?", sql, {"kind": kind, "value": value})


def names(text: str, sql: str, values: Iterable[str], ordered: bool = False) -> Question:
    """A question for a list."""
    return Question(f"{text}?", sql, {"kind": "list" if ordered else "set", "value": list(values)})


def iso(domain: Domain, table: str = "") -> str:
    """SQL for the day of an event as 2024-12-31, however it is stored."""
    column = f"{table}.{domain.events.date}" if table else domain.events.date
    if not domain.events.dmy:
        return column
    return f"substr({column}, 7, 4) || '-' || substr({column}, 4, 2) || '-' || substr({column}, 1, 2)"


def sql_year(domain: Domain, year: int, table: str = "") -> str:
    """SQL for the condition that an event was in a year."""
    column = f"{table}.{domain.events.date}" if table else domain.events.date
    return f"{column} LIKE '%{year}'" if domain.events.dmy else f"{column} LIKE '{year}%'"
