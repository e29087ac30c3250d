"""Questions of levels 1 to 3: one table with conditions, and first joins."""

from __future__ import annotations

from random import Random

from agentgym_rtmc.environments.data_questions.domains import Database
from agentgym_rtmc.environments.data_questions.questions import Question, iso, names, number, sql_year, word

YEARS = (2022, 2023, 2024)


# -- level 1: one table, one number ----------------------------------------------------------------------------------


def count_all(rng: Random, database: Database) -> Question:
    """Rows of a table."""
    domain = database.domain
    kind, rows = rng.choice(
        ((domain.owners, database.owners), (domain.things, database.things), (domain.events, database.events))
    )
    return number(f"How many {kind.many} are there", f"SELECT COUNT(*) FROM {kind.table}", len(rows))


def count_status(rng: Random, database: Database) -> Question:
    """Rows with a status."""
    domain = database.domain
    kind, rows = rng.choice(((domain.owners, database.owners), (domain.events, database.events)))
    status = rng.choice(kind.statuses)
    return number(
        f"How many {kind.many} have status {status}",
        f"SELECT COUNT(*) FROM {kind.table} WHERE status = '{status}'",
        sum(row["status"] == status for row in rows),
    )


def extreme(rng: Random, database: Database) -> Question:
    """The largest or smallest number of a table."""
    domain = database.domain
    kind, rows = rng.choice(((domain.things, database.things), (domain.events, database.events)))
    said, name, choose = rng.choice((("largest", "MAX", max), ("smallest", "MIN", min)))
    return number(
        f"What is the {said} {kind.number} of all {kind.many}",
        f"SELECT {name}({kind.number}) FROM {kind.table}",
        choose(row["number"] for row in rows),
    )


def total_of_status(rng: Random, database: Database) -> Question:
    """The sum of a number over the events of a status."""
    events = database.domain.events
    status = rng.choice(events.statuses)
    return number(
        f"What is the total {events.number} of all {events.many} with status {status}",
        f"SELECT COALESCE(SUM({events.number}), 0) FROM {events.table} WHERE status = '{status}'",
        sum(row["number"] for row in database.events if row["status"] == status),
    )


def count_category(rng: Random, database: Database) -> Question:
    """Rows of a category."""
    domain = database.domain
    kind, rows = rng.choice(((domain.owners, database.owners), (domain.things, database.things)))
    value = rng.choice(kind.values)
    return number(
        f"How many {kind.many} have {kind.category} {value}",
        f"SELECT COUNT(*) FROM {kind.table} WHERE {kind.category} = '{value}'",
        sum(row["category"] == value for row in rows),
    )


# -- level 2: conditions, missing values, lists ----------------------------------------------------------------------


def count_two(rng: Random, database: Database) -> Question:
    """Events with a status and a number above a bound."""
    events = database.domain.events
    status, bound = rng.choice(events.statuses), rng.randint(events.low, events.high - 1)
    return number(
        f"How many {events.many} have status {status} and {events.number} above {bound}",
        f"SELECT COUNT(*) FROM {events.table} WHERE status = '{status}' AND {events.number} > {bound}",
        sum(row["status"] == status and row["number"] > bound for row in database.events),
    )


def count_missing(rng: Random, database: Database) -> Question:
    """Rows without a value, and with a status."""
    domain = database.domain
    kind, column, key, rows = rng.choice(
        (
            (domain.owners, domain.owners.category, "category", database.owners),
            (domain.events, domain.events.extra, "extra", database.events),
        )
    )
    status = rng.choice(kind.statuses)
    return number(
        f"How many {kind.many} with status {status} have no {column}",
        f"SELECT COUNT(*) FROM {kind.table} WHERE status = '{status}' AND {column} IS NULL",
        sum(row["status"] == status and row[key] is None for row in rows),
    )


def count_different(rng: Random, database: Database) -> Question:
    """Different things among the events of a status."""
    domain = database.domain
    events, status = domain.events, rng.choice(domain.events.statuses)
    key, name, kind = rng.choice(
        (("thing", domain.thing_key, domain.things), ("owner", domain.owner_key, domain.owners))
    )
    return number(
        f"How many different {kind.many} do {events.many} with status {status} have",
        f"SELECT COUNT(DISTINCT {name}) FROM {events.table} WHERE status = '{status}'",
        len({row[key] for row in database.events if row["status"] == status and row[key] is not None}),
    )


def average_of_known(rng: Random, database: Database) -> Question | None:
    """The average of a number that is missing here and there."""
    events = database.domain.events
    status = rng.choice(events.statuses)
    known = [row["extra"] for row in database.events if row["status"] == status and row["extra"] is not None]
    if not known:
        return None
    return number(
        f"What is the average {events.extra} of the {events.many} with status {status} that have one",
        f"SELECT AVG({events.extra}) FROM {events.table} WHERE status = '{status}'",
        sum(known) / len(known),
        rounded=True,
    )


def names_of_category(rng: Random, database: Database) -> Question | None:
    """Names of the owners or things of a category."""
    domain = database.domain
    kind, rows = rng.choice(((domain.owners, database.owners), (domain.things, database.things)))
    value = rng.choice(kind.values)
    found = [row["name"] for row in rows if row["category"] == value]
    if not found:
        return None
    return names(
        f"Which {kind.many} (names) have {kind.category} {value}",
        f"SELECT name FROM {kind.table} WHERE {kind.category} = '{value}'",
        found,
    )


def count_in_year(rng: Random, database: Database) -> Question:
    """Events of a year and a status; days are texts, in some domains as 31.12.2024."""
    events, year = database.domain.events, rng.choice(YEARS)
    status = rng.choice(events.statuses)
    return number(
        f"How many {events.many} with status {status} have {events.date} in {year}",
        f"SELECT COUNT(*) FROM {events.table} WHERE status = '{status}' AND {sql_year(database.domain, year)}",
        sum(row["day"].startswith(str(year)) and row["status"] == status for row in database.events),
    )


# -- level 3: joins, units, order ------------------------------------------------------------------------------------


def join_count(rng: Random, database: Database) -> Question:
    """Events of the owners of a category."""
    domain = database.domain
    who, events = domain.owners, domain.events
    value = rng.choice(who.values)
    ids = {owner["id"] for owner in database.owners if owner["category"] == value}
    return number(
        f"How many {events.many} are of {who.many} with {who.category} {value}",
        f"SELECT COUNT(*) FROM {events.table} JOIN {who.table} ON {who.table}.id = {domain.owner_key} "
        f"WHERE {who.category} = '{value}'",
        sum(row["owner"] in ids for row in database.events),
    )


def total_of_name(rng: Random, database: Database) -> Question:
    """The sum of a number over the events of one owner or thing."""
    domain = database.domain
    events = domain.events
    kind, key, column, rows = rng.choice(
        (
            (domain.owners, "owner", domain.owner_key, database.owners),
            (domain.things, "thing", domain.thing_key, database.things),
        )
    )
    one = rng.choice(rows)
    return number(
        f"What is the total {events.number} of all {events.many} of the {kind.one} {one['name']} (0 if there are none)",
        f"SELECT COALESCE(SUM({events.number}), 0) FROM {events.table} JOIN {kind.table} ON {kind.table}.id = {column} "
        f"WHERE name = '{one['name']}'",
        sum(row["number"] for row in database.events if row[key] == one["id"]),
    )


def average_in_big_units(rng: Random, database: Database) -> Question | None:
    """An average in another unit than the stored one."""
    what = database.domain.things
    value = rng.choice(what.values)
    found = [row["number"] for row in database.things if row["category"] == value]
    if not found:
        return None
    return number(
        f"What is the average {what.said} in {what.big} of the {what.many} with {what.category} {value}",
        f"SELECT AVG({what.number}) / {what.per}.0 FROM {what.table} WHERE {what.category} = '{value}'",
        sum(found) / len(found) / what.per,
        rounded=True,
    )


def top_names(rng: Random, database: Database) -> Question:
    """Names of the things with the largest numbers, in order."""
    what = database.domain.things
    count, (said, order) = rng.randint(2, 4), rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    ordered = sorted(database.things, key=lambda row: row["number"], reverse=order == "DESC")
    return names(
        f"Which {count} {what.many} (names) have the {said} {what.number}, the {said} first",
        f"SELECT name FROM {what.table} ORDER BY {what.number} {order} LIMIT {count}",
        [row["name"] for row in ordered[:count]],
        ordered=True,
    )


def last_day(rng: Random, database: Database) -> Question | None:
    """The first or last day of an owner's events."""
    domain = database.domain
    who, events = domain.owners, domain.events
    owner = rng.choice(database.owners)
    days = [row["day"] for row in database.of(owner)]
    if not days:
        return None
    said, name, choose = rng.choice((("first", "MIN", min), ("last", "MAX", max)))
    return word(
        f"What is the {events.date} (as YYYY-MM-DD) of the {said} {events.one} of the {who.one} {owner['name']}",
        f"SELECT {name}({iso(domain)}) FROM {events.table} JOIN {who.table} ON {who.table}.id = {domain.owner_key} "
        f"WHERE name = '{owner['name']}'",
        choose(days),
        kind="date",
    )
