"""The worlds that databases are about, and their tables: who (owners) did (events) what with what (things).

Invariants: `domains.toml` says what there is. A database is a function of its domain and seed; it has what real ones
have: missing values, rows that occur twice, owners without events, events without an owner, days as text, small units.
"""

from __future__ import annotations

import sqlite3
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files as package_files
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentgym_rtmc.environments.databases import PreparedDatabase
from agentgym_rtmc.errors import TaskError, nearest

Row = dict[str, Any]
"""A row under general names (`category`, `number`, …); `day` is always a date as 2024-12-31."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Owners(_Strict):
    """Who: `name` is unique, `category` may be missing."""

    table: str
    one: str
    many: str
    category: str
    values: tuple[str, ...]
    statuses: tuple[str, ...]
    date: str


class Things(_Strict):
    """What: `name` is unique; `number` is in `unit`, of which `per` make one `big`."""

    table: str
    one: str
    many: str
    category: str
    values: tuple[str, ...]
    number: str
    said: str
    unit: str
    per: int
    big: str
    low: int
    high: int


class Events(_Strict):
    """Who did what: `extra` may be missing, and the owner too. `said` is how questions call the number."""

    table: str
    one: str
    many: str
    number: str
    said: str
    low: int
    high: int
    extra: str
    statuses: tuple[str, ...]
    date: str
    dmy: bool = False


class Domain(_Strict):
    """Three tables. `owner_key` and `thing_key` are the columns of the events that point to the others."""

    name: str
    split: str
    owners: Owners
    things: Things
    events: Events

    @property
    def owner_key(self) -> str:
        """Column of the events with the owner's id."""
        return f"{self.owners.one}_id"

    @property
    def thing_key(self) -> str:
        """Column of the events with the thing's id."""
        return f"{self.things.one}_id"

    @property
    def columns(self) -> dict[str, tuple[tuple[str, str, str], ...]]:
        """Table -> (column, type, where it comes from in a `Row`)."""
        who, what, events = self.owners, self.things, self.events
        return {
            who.table: (
                ("id", "INTEGER PRIMARY KEY", "id"),
                ("name", "TEXT NOT NULL", "name"),
                (who.category, "TEXT", "category"),
                ("status", "TEXT NOT NULL", "status"),
                (who.date, "TEXT NOT NULL", "day"),
            ),
            what.table: (
                ("id", "INTEGER PRIMARY KEY", "id"),
                ("name", "TEXT NOT NULL", "name"),
                (what.category, "TEXT NOT NULL", "category"),
                (what.number, "INTEGER NOT NULL", "number"),
            ),
            events.table: (
                ("id", "INTEGER PRIMARY KEY", "id"),
                (self.owner_key, f"INTEGER REFERENCES {who.table}(id)", "owner"),
                (self.thing_key, f"INTEGER NOT NULL REFERENCES {what.table}(id)", "thing"),
                (events.number, "INTEGER NOT NULL", "number"),
                (events.extra, "INTEGER", "extra"),
                ("status", "TEXT NOT NULL", "status"),
                (events.date, "TEXT NOT NULL", "shown_day" if events.dmy else "day"),
            ),
        }


@dataclass(frozen=True)
class Database:
    """The rows of a domain's tables, drawn by a seed."""

    domain: Domain
    seed: int
    owners: tuple[Row, ...]
    things: tuple[Row, ...]
    events: tuple[Row, ...]

    def of(self, owner: Row) -> list[Row]:
        """The events of an owner."""
        return [event for event in self.events if event["owner"] == owner["id"]]

    def fill(self, connection: sqlite3.Connection) -> None:
        """Write tables and rows into an empty database."""
        domain = self.domain
        for table, rows in (
            (domain.owners.table, self.owners),
            (domain.things.table, self.things),
            (domain.events.table, self.events),
        ):
            columns = domain.columns[table]
            described = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
            connection.execute(f"CREATE TABLE {table} ({described})")
            marks = ", ".join("?" * len(columns))
            values = ([row[key] for _, _, key in columns] for row in rows)
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)


@cache
def _file() -> dict[str, Any]:
    folder = package_files("agentgym_rtmc.environments.data_questions")
    return tomllib.loads(folder.joinpath("domains.toml").read_text("utf-8"))


@cache
def load_domains() -> Mapping[str, Domain]:
    """All domains by name, in the order of the file."""
    return {name: Domain(name=name, **fields) for name, fields in _file().items() if isinstance(fields, dict)}


def find_domain(name: str) -> Domain:
    """Return a domain. Raises TaskError naming the nearest."""
    domains = load_domains()
    if name not in domains:
        raise TaskError(f"there is no domain {name!r}{nearest(name, domains)}")
    return domains[name]


@lru_cache(maxsize=1024)
def make_database(name: str, seed: int) -> Database:
    """Draw the rows of a database."""
    domain = find_domain(name)
    rng = Random(f"data_questions/{name}/{seed}")
    owners, things = _owners(rng, domain), _things(rng, domain)
    return Database(domain, seed, owners, things, _events(rng, domain, owners, things))


@lru_cache(maxsize=1024)
def prepare_database(name: str, seed: int) -> PreparedDatabase:
    """Return the database as a file that episodes fork."""
    return PreparedDatabase.build(make_database(name, seed).fill)


def _owners(rng: Random, domain: Domain) -> tuple[Row, ...]:
    names = rng.sample(_file()["people"], rng.randint(8, 12))
    return tuple(
        {
            "id": number,
            "name": name,
            "category": None if rng.random() < 0.15 else rng.choice(domain.owners.values),
            "status": rng.choice(domain.owners.statuses),
            "day": _day(rng, 2015, 2021),
        }
        for number, name in enumerate(names, 1)
    )


def _things(rng: Random, domain: Domain) -> tuple[Row, ...]:
    what = domain.things
    names = rng.sample(_file()["words"], rng.randint(5, 9))
    numbers = rng.sample(range(what.low, what.high + 1), len(names))
    return tuple(
        {"id": number, "name": name, "category": rng.choice(what.values), "number": size}
        for number, (name, size) in enumerate(zip(names, numbers, strict=True), 1)
    )


def _events(rng: Random, domain: Domain, owners: tuple[Row, ...], things: tuple[Row, ...]) -> tuple[Row, ...]:
    idle = set(rng.sample([owner["id"] for owner in owners], rng.randint(1, 3)))
    busy = [owner["id"] for owner in owners if owner["id"] not in idle]
    drawn: list[Row] = []
    taken: set[tuple[int | None, str]] = set()
    for number in range(rng.randint(24, 40)):
        owner = None if number in (5, 17) else rng.choice(busy)
        day = _day(rng, 2022, 2024)
        while (owner, day) in taken:  # of one owner's events, one is the last
            day = _day(rng, 2022, 2024)
        taken.add((owner, day))
        year, month, date = day.split("-")
        drawn.append(
            {
                "owner": owner,
                "thing": rng.choice(things)["id"],
                "number": rng.randint(domain.events.low, domain.events.high),
                "extra": None if rng.random() < 0.3 else rng.randint(1, 9),
                "status": rng.choice(domain.events.statuses),
                "day": day,
                "shown_day": f"{date}.{month}.{year}",
            }
        )
    drawn += [dict(event) for event in rng.sample(drawn, 2)]  # noted twice
    rng.shuffle(drawn)
    return tuple({"id": number, **event} for number, event in enumerate(drawn, 1))


def _day(rng: Random, first: int, last: int) -> str:
    return f"{rng.randint(first, last)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
