"""Questions: their SQL, run by a plain SQLite, gives the answer that Python worked out from the rows."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from agentgym_rtmc.environments.data_questions.answers import is_right
from agentgym_rtmc.environments.data_questions.domains import find_domain, load_domains, make_database, prepare_database
from agentgym_rtmc.environments.data_questions.families import FAMILIES, LEVELS
from agentgym_rtmc.environments.data_questions.slips import slips_of
from agentgym_rtmc.environments.data_questions.tasks import ask
from agentgym_rtmc.environments.databases import state_digest
from agentgym_rtmc.errors import TaskError

SEEDS = range(7, 12)


def rows_of(connection, sql):
    return connection.execute(sql).fetchall()


@pytest.mark.parametrize("domain", load_domains())
@pytest.mark.parametrize("family", FAMILIES)
def test_sql_and_python_agree(family, domain):
    asked = 0
    for seed in SEEDS:
        with closing(prepare_database(domain, seed).fork()) as connection:
            for draw in range(3):
                question = ask(family, domain, seed, str(draw))
                if question is None:
                    continue
                asked += 1
                rows = rows_of(connection, question.sql)
                assert all(len(row) == 1 for row in rows)
                value = [row[0] for row in rows] if question.many else rows[0][0]
                assert is_right(question.answer, value), (question.text, question.sql, question.answer, value)
    assert asked >= 5


def test_every_level_has_families():
    assert {level: len(families) for level, families in LEVELS.items()} == {1: 5, 2: 6, 3: 5, 4: 6, 5: 8}
    assert len(FAMILIES) == 30


@pytest.mark.parametrize("domain", load_domains())
def test_databases_have_what_real_ones_have(domain):
    for seed in SEEDS:
        database = make_database(domain, seed)
        assert any(event["owner"] is None for event in database.events)
        assert any(event["extra"] is None for event in database.events)
        assert any(not database.of(owner) for owner in database.owners)
        kinds = Counter(tuple(value for key, value in event.items() if key != "id") for event in database.events)
        assert max(kinds.values()) > 1
    unknown = [owner for seed in SEEDS for owner in make_database(domain, seed).owners if owner["category"] is None]
    assert unknown


def test_databases_are_functions_of_their_seed():
    with closing(prepare_database("shop", 3).fork()) as one, closing(prepare_database("shop", 4).fork()) as other:
        assert state_digest(one) == "5a75da6632bf8891" != state_digest(other)


def test_days_are_texts_in_two_forms():
    assert find_domain("fleet").events.dmy and not find_domain("shop").events.dmy
    with closing(prepare_database("fleet", 1).fork()) as connection:
        [(day,)] = rows_of(connection, "SELECT day FROM trips LIMIT 1")
    assert day[2] == day[5] == "." and len(day) == 10


def test_careless_sql_goes_wrong():
    """What the traps of level 5 are for."""
    database = make_database("shop", 2)
    with closing(prepare_database("shop", 2).fork()) as connection:
        no_one = rows_of(connection, "SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)")
        assert no_one == [] and any(not database.of(owner) for owner in database.owners)
        with pytest.raises(sqlite3.OperationalError, match="ambiguous"):
            rows_of(connection, "SELECT status FROM orders JOIN customers ON customers.id = customer_id")
        unlike = "SELECT COUNT(*) FROM customers WHERE city <> 'Oslo'"
        other = "SELECT COUNT(*) FROM customers WHERE city IS NOT 'Oslo'"
        unknown = sum(owner["category"] is None for owner in database.owners)
        assert rows_of(connection, other)[0][0] - rows_of(connection, unlike)[0][0] == unknown


def test_slips_differ_and_mostly_answer_wrongly(questions):
    wrong = total = 0
    for task in questions.split("train")[::23]:
        sql, answer = task.private["sql"], task.private["answer"]
        slips = slips_of(sql)
        assert slips and sql not in slips and len(set(slips)) == len(slips)
        with closing(prepare_database(task.public["domain"], task.public["seed"]).fork()) as connection:
            for slip in slips:
                total += 1
                try:
                    rows = rows_of(connection, slip)
                except sqlite3.Error:
                    wrong += 1
                    continue
                column = [row[0] for row in rows]
                given = column if answer["kind"] in ("list", "set") else column[0] if len(column) == 1 else None
                wrong += not is_right(answer, given)
    assert total > 300 and wrong / total > 0.7


def test_unknown_domains_are_refused():
    with pytest.raises(TaskError, match="shop"):
        find_domain("shopp")
