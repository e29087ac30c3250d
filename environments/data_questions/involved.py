"""Questions of levels 4 and 5: groups, having, subqueries, and what careless SQL trips over.

The traps: NOT IN over missing values, conditions that drop unknown ones, columns that two tables have, rows that occur
twice, owners without events, days as text that do not sort.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from agentgym_rtmc.environments.data_questions.domains import Database
from agentgym_rtmc.environments.data_questions.questions import Question, iso, names, number, sql_year, word
from agentgym_rtmc.environments.data_questions.simple import YEARS

# -- level 4: groups -------------------------------------------------------------------------------------------------


def busiest_category(rng: Random, database: Database) -> Question | None:
    """The category with the most events."""
    domain = database.domain
    events = domain.events
    kind, key, column, rows = rng.choice(
        (
            (domain.owners, "owner", domain.owner_key, database.owners),
            (domain.things, "thing", domain.thing_key, database.things),
        )
    )
    status = rng.choice(events.statuses)
    category: dict[int | None, str] = {row["id"]: row["category"] for row in rows if row["category"] is not None}
    found = _clear_first(
        Counter(category[row[key]] for row in database.events if row["status"] == status and row[key] in category)
    )
    if found is None:
        return None
    return word(
        f"Which {kind.category} of {kind.many} has the most {events.many} with status {status}, unknown ones left out",
        f"SELECT {kind.category} FROM {events.table} e JOIN {kind.table} k ON k.id = e.{column} "
        f"WHERE e.status = '{status}' AND {kind.category} IS NOT NULL GROUP BY {kind.category} "
        "ORDER BY COUNT(*) DESC LIMIT 1",
        found,
    )


def more_than(rng: Random, database: Database) -> Question | None:
    """Owners with more than so many events."""
    domain = database.domain
    who, events = domain.owners, domain.events
    bound = rng.randint(1, 5)
    found = [owner["name"] for owner in database.owners if len(database.of(owner)) > bound]
    if not found:
        return None
    return names(
        f"Which {who.many} (names) have more than {bound} {events.many}",
        f"SELECT name FROM {events.table} e JOIN {who.table} o ON o.id = e.{domain.owner_key} "
        f"GROUP BY o.id HAVING COUNT(*) > {bound}",
        found,
    )


def highest_total(rng: Random, database: Database) -> Question | None:
    """The owner with the highest sum in a year."""
    domain = database.domain
    who, events, year = domain.owners, domain.events, rng.choice(YEARS)
    sums: Counter[str] = Counter()
    for owner in database.owners:
        sums[owner["name"]] = sum(row["number"] for row in database.of(owner) if row["day"].startswith(str(year)))
    found = _clear_first(sums)
    if found is None:
        return None
    return word(
        f"Which {who.one} (name) has the highest total {events.number} of {events.many} with {events.date} in {year}",
        f"SELECT name FROM {events.table} e JOIN {who.table} o ON o.id = e.{domain.owner_key} "
        f"WHERE {sql_year(domain, year, 'e')} GROUP BY o.id ORDER BY SUM(e.{events.number}) DESC LIMIT 1",
        found,
    )


def busiest_month(rng: Random, database: Database) -> Question | None:
    """The month with the most events of a status, or of all."""
    domain = database.domain
    events, status = domain.events, rng.choice(("", *domain.events.statuses))
    found = _clear_first(Counter(row["day"][:7] for row in database.events if not status or row["status"] == status))
    if found is None:
        return None
    condition = f"WHERE status = '{status}' " if status else ""
    return word(
        f"In which month (as YYYY-MM) were the most {events.many}{f' with status {status}' if status else ''}",
        f"SELECT substr({iso(domain)}, 1, 7) AS month FROM {events.table} {condition}"
        "GROUP BY month ORDER BY COUNT(*) DESC LIMIT 1",
        found,
    )


def different_things(rng: Random, database: Database) -> Question:
    """Different things in the events of the owners of a category."""
    domain = database.domain
    who, what, events = domain.owners, domain.things, domain.events
    value = rng.choice(who.values)
    ids = {owner["id"] for owner in database.owners if owner["category"] == value}
    return number(
        f"How many different {what.many} do the {events.many} of {who.many} with {who.category} {value} have",
        f"SELECT COUNT(DISTINCT e.{domain.thing_key}) FROM {events.table} e JOIN {who.table} o "
        f"ON o.id = e.{domain.owner_key} WHERE o.{who.category} = '{value}'",
        len({row["thing"] for row in database.events if row["owner"] in ids}),
    )


def average_of_group(rng: Random, database: Database) -> Question | None:
    """The average number of the events of a category of things, over three tables."""
    domain = database.domain
    who, what, events = domain.owners, domain.things, domain.events
    value, status = rng.choice(what.values), rng.choice(who.statuses)
    things = {row["id"] for row in database.things if row["category"] == value}
    owners = {row["id"] for row in database.owners if row["status"] == status}
    found = [row["number"] for row in database.events if row["thing"] in things and row["owner"] in owners]
    if not found:
        return None
    return number(
        f"What is the average {events.number} of {events.many} of {who.many} with status {status} and of "
        f"{what.many} with "
        f"{what.category} {value}",
        f"SELECT AVG(e.{events.number}) FROM {events.table} e JOIN {who.table} o ON o.id = e.{domain.owner_key} "
        f"JOIN {what.table} t ON t.id = e.{domain.thing_key} WHERE o.status = '{status}' AND "
        f"t.{what.category} = '{value}'",
        sum(found) / len(found),
        rounded=True,
    )


# -- level 5: subqueries and traps -----------------------------------------------------------------------------------


def without_events(rng: Random, database: Database) -> Question | None:
    """Owners without events of a year; an event without an owner makes NOT IN find nobody."""
    domain = database.domain
    who, events, year = domain.owners, domain.events, rng.choice((0, *YEARS))
    found = [
        owner["name"]
        for owner in database.owners
        if not any(row["day"].startswith(str(year or "")) for row in database.of(owner))
    ]
    if not found:
        return None
    condition = f" AND {sql_year(domain, year, 'e')}" if year else ""
    return names(
        f"Which {who.many} (names) have no {events.many}{f' with {events.date} in {year}' if year else ' at all'}",
        f"SELECT name FROM {who.table} o WHERE NOT EXISTS (SELECT 1 FROM {events.table} e "
        f"WHERE e.{domain.owner_key} = o.id{condition})",
        found,
    )


def above_average(rng: Random, database: Database) -> Question:
    """Events of a status whose number is above the average of all events."""
    events = database.domain.events
    status = rng.choice(events.statuses)
    average = sum(row["number"] for row in database.events) / len(database.events)
    return number(
        f"How many {events.many} with status {status} have a {events.number} above the average of all {events.many}",
        f"SELECT COUNT(*) FROM {events.table} WHERE status = '{status}' AND {events.number} > "
        f"(SELECT AVG({events.number}) FROM {events.table})",
        sum(row["number"] > average and row["status"] == status for row in database.events),
    )


def last_status(rng: Random, database: Database) -> Question | None:
    """Owners whose last event has a status."""
    domain = database.domain
    who, events = domain.owners, domain.events
    status = rng.choice(events.statuses)
    found = []
    for owner in database.owners:
        own = database.of(owner)
        if own and max(own, key=lambda row: row["day"])["status"] == status:
            found.append(owner["name"])
    if not found:
        return None
    return names(
        f"Which {who.many} (names) have status {status} in their last {events.one} (by {events.date})",
        f"SELECT name FROM {who.table} o WHERE (SELECT e.status FROM {events.table} e WHERE "
        f"e.{domain.owner_key} = o.id "
        f"ORDER BY {iso(domain, 'e')} DESC LIMIT 1) = '{status}'",
        found,
    )


def both_statuses(rng: Random, database: Database) -> Question:
    """Events of a status, of owners of a status: two columns of one name."""
    domain = database.domain
    who, events = domain.owners, domain.events
    own, status = rng.choice(who.statuses), rng.choice(events.statuses)
    ids = {owner["id"] for owner in database.owners if owner["status"] == own}
    return number(
        f"How many {events.many} with status {status} are of {who.many} with status {own}",
        f"SELECT COUNT(*) FROM {events.table} e JOIN {who.table} o ON o.id = e.{domain.owner_key} "
        f"WHERE e.status = '{status}' AND o.status = '{own}'",
        sum(row["status"] == status and row["owner"] in ids for row in database.events),
    )


def percentage(rng: Random, database: Database) -> Question:
    """The share of events with a status, in a year or of all; whole numbers divide to whole numbers."""
    domain = database.domain
    events, year = domain.events, rng.choice((0, *YEARS))
    status = rng.choice(events.statuses)
    rows = [row for row in database.events if row["day"].startswith(str(year or ""))]
    share = 100 * sum(row["status"] == status for row in rows) / len(rows)
    condition = f" WHERE {sql_year(domain, year)}" if year else ""
    return number(
        f"What percentage of all {events.many}{f' with {events.date} in {year}' if year else ''} has status {status}",
        f"SELECT 100.0 * SUM(status = '{status}') / COUNT(*) FROM {events.table}{condition}",
        share,
        rounded=True,
    )


def with_both_things(rng: Random, database: Database) -> Question:
    """Owners that have events with each of two things."""
    domain = database.domain
    who, what, events = domain.owners, domain.things, domain.events
    first, second = rng.sample(database.things, 2)
    count = sum(
        {first["id"], second["id"]} <= {row["thing"] for row in database.of(owner)} for owner in database.owners
    )
    return number(
        f"How many {who.many} have {events.many} of both the {what.one} {first['name']} and the {what.one} "
        f"{second['name']}",
        f"SELECT COUNT(*) FROM (SELECT e.{domain.owner_key} FROM {events.table} e JOIN {what.table} t "
        f"ON t.id = e.{domain.thing_key} WHERE t.name IN ('{first['name']}', '{second['name']}') AND "
        f"e.{domain.owner_key} "
        f"IS NOT NULL GROUP BY e.{domain.owner_key} HAVING COUNT(DISTINCT t.id) = 2)",
        count,
    )


def not_of_category(rng: Random, database: Database) -> Question:
    """Owners of a status outside a category; the unknown ones count, and `<>` drops them."""
    who = database.domain.owners
    value, status = rng.choice(who.values), rng.choice(who.statuses)
    return number(
        f"How many {who.many} with status {status} have a {who.category} other than {value} or none",
        f"SELECT COUNT(*) FROM {who.table} WHERE status = '{status}' AND {who.category} IS NOT '{value}'",
        sum(row["category"] != value and row["status"] == status for row in database.owners),
    )


def counted_once(rng: Random, database: Database) -> Question:
    """Events of a status where rows that are equal in everything but the id count once."""
    domain = database.domain
    events, status = domain.events, rng.choice(domain.events.statuses)
    columns = [name for name, _, _ in domain.columns[events.table] if name != "id"]
    different = {
        tuple(value for key, value in row.items() if key != "id") for row in database.events if row["status"] == status
    }
    return number(
        f"How many {events.many} with status {status} are there if rows that differ in nothing but their id count once",
        f"SELECT COUNT(*) FROM (SELECT DISTINCT {', '.join(columns)} FROM {events.table} WHERE status = '{status}')",
        len(different),
    )


def _clear_first(counts: Counter[str]) -> str | None:
    """The one with the highest count, None where two share it."""
    best = counts.most_common(2)
    if not best or (len(best) == 2 and best[0][1] == best[1][1]):
        return None
    return best[0][0]
