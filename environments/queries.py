"""Read-only SQL that an agent wrote, run within limits on a database of its own.

Invariants:
- A query changes nothing and reaches nothing but the tables: an authorizer lets through SELECT and known functions
  only, so ATTACH, PRAGMA, writes, transactions and extensions are refused when the statement is prepared, and
  `query_only` is a second wall behind it.
- A query ends: its work is counted in steps of SQLite's virtual machine, which are the same on every machine; rows and
  the size of values are limited; seconds are the last resort. What was cut is said.
- The answer is a function of the database and the query: there is no clock and no chance. `date('now')` is a fixed day.
- What is wrong with a query is a `ToolError`, for the agent to read; nothing else is raised.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from agentgym_rtmc.errors import ToolError

Value = int | float | str | None
"""A value of a result; blobs are written as SQL does: `x'00ff'`."""

NOW = "2026-01-01 12:00:00"
"""What `date('now')` and its kin take for now, unless told otherwise."""
_STEPS_BETWEEN_LOOKS = 1000
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {
    "load_extension",
    "fts3_tokenizer",
    "random",
    "randomblob",
    "current_date",
    "current_time",
    "current_timestamp",
    "timediff",
    "sqlite_source_id",
    "sqlite_version",
}
_CLOCK_FUNCTIONS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""Name -> which argument is the moment; without it, it is now."""
_MACHINE_MODIFIERS = {"localtime", "utc", "subsec", "subsecond"}
_ACTIONS = {
    number: name.removeprefix("SQLITE_").replace("_", " ")
    for name, number in vars(sqlite3).items()
    if re.fullmatch(
        r"SQLITE_(ALTER_TABLE|ANALYZE|ATTACH|DETACH|(CREATE|DROP)_\w+|DELETE|INSERT|UPDATE|PRAGMA|REINDEX|SAVEPOINT|"
        r"TRANSACTION)",
        name,
    )
}
"""What an authorizer is asked to allow, by its number."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may take. `steps`: of SQLite's virtual machine. `value_bytes`: the largest text or blob."""

    rows: int = 100
    value_bytes: int = 4_000
    steps: int = 500_000
    seconds: float = 20.0
    sql_chars: int = 4_000


@dataclass(frozen=True)
class QueryResult:
    """The first rows of a query; `more` says that it had more than are allowed. `steps` is its work, rounded down."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    more: bool = False
    steps: int = 0


class ReadOnlyQueries:
    """Runs queries on a connection, which is read-only from then on."""

    def __init__(self, connection: sqlite3.Connection, limits: QueryLimits | None = None, now: str = NOW) -> None:
        self._connection = connection
        self._limits = limits or QueryLimits()
        self._refused = ""
        self._steps = 0
        self._until = 0.0
        self._stopped = ""
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        for category, most in (
            (sqlite3.SQLITE_LIMIT_LENGTH, self._limits.value_bytes),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * self._limits.sql_chars),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
            (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
            (sqlite3.SQLITE_LIMIT_COLUMN, 200),
            (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 50),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        ):
            connection.setlimit(category, most)
        own = sqlite3.connect(":memory:", check_same_thread=False)  # whose functions stay SQLite's
        for name, place in _CLOCK_FUNCTIONS.items():
            call = partial(_call_clock, own, name, place, now)
            connection.create_function(name, -1, call, deterministic=True)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._look, _STEPS_BETWEEN_LOOKS)

    def run(self, sql: str) -> QueryResult:
        """Run one SELECT. Raises ToolError, for whatever is wrong with it."""
        if len(sql) > self._limits.sql_chars:
            raise ToolError(f"the query has {len(sql)} characters, the limit is {self._limits.sql_chars}")
        if "\0" in sql:
            raise ToolError("the query has a NUL character; leave it out")
        self._refused = self._stopped = ""
        self._steps = 0
        self._until = time.monotonic() + self._limits.seconds
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(sql)
                if cursor.description is None:
                    raise ToolError("that is no query; write one SELECT")
                columns = tuple(str(column[0]) for column in cursor.description)
                rows = cursor.fetchmany(self._limits.rows + 1)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
            raise ToolError(self._explain(error)) from error
        shown = tuple(tuple(map(_plain, row)) for row in rows[: self._limits.rows])
        return QueryResult(columns, shown, len(rows) > self._limits.rows, self._steps)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if action in _ALLOWED:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            if str(second).lower() not in _REFUSED_FUNCTIONS:
                return sqlite3.SQLITE_OK
            self._refused = self._refused or f"the function {second}"
        self._refused = self._refused or _ACTIONS.get(action, "this statement")
        return sqlite3.SQLITE_DENY

    def _look(self) -> int:
        self._steps += _STEPS_BETWEEN_LOOKS
        if self._steps >= self._limits.steps:
            self._stopped = f"it took more than {self._limits.steps} steps"
        elif time.monotonic() > self._until:
            self._stopped = f"it took more than {self._limits.seconds:g} seconds"
        return bool(self._stopped)

    def _explain(self, error: Exception) -> str:
        if self._stopped:
            return f"the query was stopped: {self._stopped}; join on keys, and filter earlier"
        if self._refused:
            return f"{self._refused} is not allowed: the database is read-only; write one SELECT"
        return str(error)[:300]


def _plain(value: object) -> Value:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    assert value is None or isinstance(value, int | float | str)
    return value


def _call_clock(own: sqlite3.Connection, name: str, place: int, now: str, *arguments: object) -> Value:
    """SQLite's own function with a fixed day for `now`; what depends on the machine's time zone is NULL."""
    given = list(arguments)
    if len(given) == place:
        given.append(now)
    elif len(given) > place and isinstance(given[place], str) and str(given[place]).strip().lower() == "now":
        given[place] = now
    if any(isinstance(one, str) and one.strip().lower() in _MACHINE_MODIFIERS for one in given[place:]):
        return None
    value: Value = own.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]
    return value
