"""What an episode is judged by: the reference's effect on the records, row by row, and the right answers.

Invariants: the reference's changes are carried out by the desk's own tools on a fork of the same database, never by
the agent's. Nothing an agent writes is run or read here but rows and typed answers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.environments.service_desk.desk import Desk
from agentgym_rtmc.environments.service_desk.policy import PUBLIC_KINDS, URGENT_KINDS
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import RECORDS, prepare_shop
from agentgym_rtmc.errors import TaskError, ToolError

Rows = frozenset[tuple[object, ...]]
"""Rows of all records, each with its table's name before it."""


class Judgement:
    """The reference's outcome for one case: the digest of the records (`start`: before it), which rows are new in them,
    and the right answers."""

    def __init__(self, case: Case) -> None:
        self.start = shop_digest(case.shop)
        self.decisions = case.decisions()
        self.personal = [request.kind not in (*PUBLIC_KINDS, *URGENT_KINDS) for request in case.scenario.requests]
        desk = Desk("compact")
        tools = {tool.__name__: tool for tool in desk.tools()}
        with closing(prepare_shop(case.shop).fork()) as connection:
            before = _rows(connection)
            desk.begin(connection, case.policy)
            connection.execute("UPDATE contact SET verified = ?", (case.scenario.customer,))
            try:
                for call in (call for decision in self.decisions for call in decision.changes):
                    tools[call.name](**call.arguments)
            except ToolError as error:
                raise TaskError(f"the reference cannot be carried out: {error}") from error
            if desk.breaches:
                raise TaskError(f"the reference breaks the policy: {', '.join(desk.breaches)}")
            self.digest = state_digest(connection, RECORDS)
            self._wanted = _rows(connection) - before

    @property
    def changes(self) -> int:
        """How many rows the reference changes."""
        return len(self._wanted)

    def progress(self, connection: sqlite3.Connection) -> float:
        """Share of the reference's new rows that are there; 1 where it changes none."""
        return len(self._wanted & _rows(connection)) / len(self._wanted) if self._wanted else 1.0

    def is_right(self, request: int, last: Call) -> bool:
        """Whether a call is the right end of a request."""
        if request >= len(self.decisions):
            return False
        right = self.decisions[request].last
        return right.name == last.name and _plain(right.arguments) == _plain(last.arguments)


@lru_cache(maxsize=4096)
def judge(case: Case) -> Judgement:
    """Return the judgement of a case; the episodes of a group share it."""
    return Judgement(case)


@lru_cache(maxsize=256)
def shop_digest(shop: int) -> str:
    """Digest of a shop's records before anything was done."""
    with closing(prepare_shop(shop).fork()) as connection:
        return state_digest(connection, RECORDS)


def _rows(connection: sqlite3.Connection) -> Rows:
    return frozenset((table, *row) for table in RECORDS for row in connection.execute(f"SELECT * FROM {table}"))


def _plain(arguments: Mapping[str, object]) -> dict[str, str]:
    """Answers as they are compared: 40 and "40" are one, "Bonn" and " bonn" as well."""
    return {name: str(value).strip().casefold() for name, value in arguments.items()}
