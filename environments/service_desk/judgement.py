"""What an episode is judged by: the reference's effect on the records, row by row, what has to be known for a decision,
and the right answers.

Invariants: the reference's changes are carried out by the desk's own tools on a fork of the same database, never by
the agent's. Nothing an agent writes is run or read here but rows and typed answers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.environments.service_desk.desk import Desk
from agentgym_rtmc.environments.service_desk.policy import PUBLIC_KINDS, URGENT_KINDS, Decision
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import RECORDS, prepare_shop
from agentgym_rtmc.errors import TaskError, ToolError

Rows = frozenset[tuple[object, ...]]
"""Rows of tables, each with its table's name before it."""
_TRIED = ("contact", "wrong pin")


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
            self._rows = _rows(connection) - before
        self._known = needed_knowledge(case, self.decisions)

    @property
    def steps(self) -> int:
        """How many facts of the database progress is counted in."""
        return len(self._rows) + len(self._known)

    def progress(self, connection: sqlite3.Connection, changed: bool) -> float:
        """Share of the needed facts that are there; 0 where none is needed. `changed`: whether records were."""
        if not self.steps:
            return 0.0
        known = _knowledge(connection)
        done = sum(not known.isdisjoint(either) for either in self._known)
        if changed and self._rows:
            done += len(self._rows & _rows(connection))
        return done / self.steps

    def is_right(self, request: int, last: Call) -> bool:
        """Whether a call is the right end of a request."""
        if request >= len(self.decisions):
            return False
        right = self.decisions[request].last
        return right.name == last.name and _plain(right.arguments) == _plain(last.arguments)


def needed_knowledge(case: Case, decisions: Sequence[Decision]) -> list[Rows]:
    """What has to have been verified or looked up before each decision; any row of a set will do."""
    scenario = case.scenario
    customer = scenario.customer
    needed: list[Rows] = []
    for request, decision in zip(scenario.requests, decisions, strict=False):
        if request.kind in URGENT_KINDS:
            continue
        if request.kind in PUBLIC_KINDS:
            needed.append(frozenset({("item", str(request.item))}))
            continue
        if scenario.identity != "signed_in":
            needed.append(frozenset({("verified", str(customer)) if case.verifiable else _TRIED}))
        if case.verifiable:
            kind = "order" if request.order is not None else "booking"
            rows = {(kind, str(request.order if request.order is not None else request.booking))}
            # The list of a customer's orders tells as well which are theirs, and how far they are.
            if request.kind == "status" or decision.last.arguments.get("reason") == "not_yours":
                rows.add((f"{kind}s of", str(customer)))
            needed.append(frozenset(rows))
    return list(dict.fromkeys(needed))


def _knowledge(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    [(verified, wrong)] = connection.execute("SELECT verified, wrong_pins FROM contact")
    known: set[tuple[object, ...]] = set(connection.execute("SELECT kind, subject FROM lookups"))
    return known | {("verified", str(verified))} | ({_TRIED} if wrong else set())


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
