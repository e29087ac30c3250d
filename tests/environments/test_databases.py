"""Prepared databases, their forks and digests, and read-only queries within limits."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym_rtmc.environments.databases import PreparedDatabase, state_digest, table_names
from agentgym_rtmc.environments.queries import QueryLimits, ReadOnlyQueries
from agentgym_rtmc.errors import ToolError


def fill(connection):
    connection.execute("CREATE TABLE fruit(id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute('CREATE TABLE "odd ""name"(a, b)')
    connection.executemany("INSERT INTO fruit(name) VALUES (?)", [(f"fruit {i}",) for i in range(200)])


@pytest.fixture
def prepared():
    return PreparedDatabase.build(fill)


@pytest.fixture
def queries(prepared):
    return ReadOnlyQueries(prepared.fork())


def test_forks_share_nothing(prepared):
    one, other = prepared.fork(), prepared.fork()
    before = state_digest(one)
    one.execute("DELETE FROM fruit")
    assert state_digest(one) != before
    assert state_digest(other) == state_digest(prepared.fork()) == before


def test_forks_in_many_threads(prepared):
    def work(number):
        fork = prepared.fork()
        fork.execute("INSERT INTO fruit(name) VALUES (?)", (str(number),))
        return fork.execute("SELECT count(*), max(name) FROM fruit WHERE name = ?", (str(number),)).fetchone()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(100))) == [(1, str(number)) for number in range(100)]


def test_digest_is_of_the_rows_alone(prepared):
    one, other = prepared.fork(), prepared.fork()
    one.execute("UPDATE fruit SET name = 'x'")
    assert state_digest(one) != state_digest(other)
    one.execute("UPDATE fruit SET name = 'fruit ' || (id - 1)")
    assert state_digest(one) == state_digest(other)
    for fork, order in ((one, "ASC"), (other, "DESC")):
        fork.execute(f'INSERT INTO "odd ""name" SELECT name, 1.5 FROM fruit ORDER BY id {order}')
    assert state_digest(one) == state_digest(other)
    other.execute("UPDATE \"odd \"\"name\" SET b = '1.5' WHERE a = 'fruit 3'")
    assert state_digest(one) != state_digest(other)
    assert state_digest(one, ["fruit"]) == state_digest(other, ["fruit"])
    assert table_names(one) == ["fruit", 'odd "name']


def test_a_file_is_read_as_it_was_saved(prepared, tmp_path):
    prepared.save(tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("DELETE FROM fruit WHERE id > 5")
    loaded = PreparedDatabase.load(tmp_path / "a.db").fork()
    assert loaded.execute("SELECT count(*) FROM fruit").fetchone() == (5,)
    file.close()


def test_a_query_answers_with_columns_and_rows(queries):
    result = queries.run("SELECT id, name, NULL, 1.5, x'00ff' AS b FROM fruit LIMIT 1")
    assert result.columns == ("id", "name", "NULL", "1.5", "b")
    assert result.rows == ((1, "fruit 0", None, 1.5, "x'00ff'"),) and not result.more


def test_rows_are_limited_and_it_is_said(prepared):
    result = ReadOnlyQueries(prepared.fork(), QueryLimits(rows=3)).run("SELECT id FROM fruit")
    assert result.rows == ((1,), (2,), (3,)) and result.more


REFUSED = [
    "INSERT INTO fruit(name) VALUES (1)",
    "UPDATE fruit SET name = 1",
    "DELETE FROM fruit",
    "WITH x AS (SELECT 1) DELETE FROM fruit",
    "REPLACE INTO fruit VALUES (1, 2)",
    "DROP TABLE fruit",
    "ALTER TABLE fruit RENAME TO f",
    "CREATE TABLE t(a)",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE VIRTUAL TABLE t USING fts5(a)",
    "CREATE INDEX i ON fruit(name)",
    "ATTACH 'x.db' AS x",
    "ATTACH ':memory:' AS x",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'x.db'",
    "PRAGMA query_only = OFF",
    "PRAGMA table_info(fruit)",
    "SELECT * FROM pragma_table_info('fruit')",
    "SELECT * FROM pragma_database_list",
    "BEGIN",
    "COMMIT",
    "SAVEPOINT a",
    "ANALYZE",
    "SELECT load_extension('x')",
    "SELECT random()",
    "SELECT hex(RANDOMBLOB(4))",
    "SELECT current_timestamp",
    "SELECT zeroblob(1000000000)",
    "SELECT replace(hex(zeroblob(1500)), '0', '00')",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE fruit",
    "",
    "-- nothing",
    "SELECT ?",
    "SELECT '\0'",
    "SELECT " + "(" * 2000 + "1" + ")" * 2000,
    "SELECT " + "1," * 5000 + "1",
    "SELECT * FROM nowhere",
    "SELECT count(*) FROM fruit a, fruit b, fruit c, fruit d",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c ORDER BY n DESC",
    "WITH RECURSIVE c(n, b) AS (SELECT 1, zeroblob(3000) UNION ALL SELECT n + 1, zeroblob(3000) FROM c) "
    "SELECT max(b) OVER (ORDER BY n DESC) FROM c",
]


@pytest.mark.parametrize("sql", REFUSED, ids=range(len(REFUSED)))
def test_all_else_is_refused_with_a_reason(prepared, sql):
    fork = prepared.fork()
    before = state_digest(fork)
    queries = ReadOnlyQueries(fork)
    with pytest.raises(ToolError) as refused:
        queries.run(sql)
    assert 5 < len(str(refused.value)) < 400
    assert queries.run("SELECT count(*) FROM fruit").rows == ((200,),)
    fork.set_authorizer(None)
    assert state_digest(fork) == before


def test_there_is_no_clock(queries):
    sql = (
        "SELECT date('now'), datetime(), strftime('%Y', ' NOW '), date('2024-02-28', '+2 days'), date('x', 'localtime')"
    )
    assert queries.run(sql).rows == (("2026-01-01", "2026-01-01 12:00:00", "2026", "2024-03-01", None),)


def test_work_is_counted_in_steps(prepared):
    sql = "SELECT count(*) FROM fruit a, fruit b"
    counts = {ReadOnlyQueries(prepared.fork()).run(sql).steps for _ in range(3)}
    assert len(counts) == 1 and counts.pop() > 10_000
    with pytest.raises(ToolError, match="more than 2000 steps"):
        ReadOnlyQueries(prepared.fork(), QueryLimits(steps=2000)).run(sql)
