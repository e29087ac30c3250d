"""Scripted agents for DataQuestions: one that knows the query, one that often slips, one that acts at random.

Invariant: all are functions of (task, observations, rng); they tell the style by the first observation and read answers
off results as an agent has to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

import numpy as np
from pydantic import JsonValue

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.environments.data_questions.domains import find_domain
from agentgym_rtmc.environments.data_questions.env import WORD_CALLS
from agentgym_rtmc.environments.data_questions.slips import slips_of
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

_TAGS = ToolCallProtocol()
_ROWS = re.compile(r"\(\d+ rows?\)")


Write = Callable[..., str]
"""Writes an action: `write(tool, argument=value)`."""


def writer(observation: str) -> Write:
    """Return the way to write actions of the style that an episode has by its first observation."""
    protocol = WORD_CALLS if is_compact(observation) else _TAGS
    return lambda name, **arguments: protocol.render(Call(name=name, arguments=arguments))


def is_compact(observation: str) -> bool:
    """Whether an episode of the compact style begins like this: with the tables and their columns."""
    return "(id, " in observation


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Run the query and answer with its result."""
    sql, many = _known(task)
    write = writer(observation)
    seen = yield write("query", sql=sql)
    yield write("answer", value=read_answer(seen, many))


def demonstrator(
    task: Task,
    observation: str,
    rng: np.random.Generator,
    *,
    look: float = 0.7,
    slip: float = 0.45,
    again: float = 0.3,
    after_error: float = 0.85,
) -> Generator[str, str, None]:
    """Look at the tables where they are not shown, query, and answer with the result, right or wrong.

    In the compact style the answer is the last result itself instead of a value read off it.

    `look` is the probability that a table is described first, `slip` that a query is a wrong one, `again` that a result
    is not trusted and another query written, `after_error` that one follows a query that failed.
    """
    sql, many = _known(task)
    tables = find_domain(str(task.public["domain"])).columns
    write, compact = writer(observation), is_compact(observation)
    if not compact:
        yield write("list_tables")
        for table in tables:
            if re.search(rf"\b{table}\b", sql) and rng.random() < look:
                yield write("describe", table=table)
    slips = slips_of(sql)
    while True:
        wrong = slips[int(rng.integers(len(slips)))] if slips and rng.random() < slip else sql
        seen = yield write("query", sql=wrong)
        if rng.random() >= (after_error if seen.startswith("error:") else again):
            break
    if compact and not seen.startswith("error:"):
        yield write("answer")
    else:
        yield write("answer", value=0 if seen.startswith("error:") else read_answer(seen, many))


def random_player(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Call any tool with anything that fits it."""
    write = writer(observation)
    tables = find_domain(str(task.public["domain"])).columns
    while True:
        table = list(tables)[int(rng.integers(len(tables)))]
        column = tables[table][int(rng.integers(len(tables[table])))][0]
        match int(rng.integers(4)):
            case 0:
                yield write("list_tables")
            case 1:
                yield write("describe", table=table)
            case 2:
                yield write("query", sql=f"SELECT COUNT({column}) FROM {table}")
            case _:
                yield write("answer", value=int(rng.integers(40)))


def read_answer(seen: str, many: bool) -> JsonValue:
    """Read the answer off a result as it is shown: its first column as a list, or its first value.

    >>> read_answer("name | n\\nAda | 2\\nBo | 1\\n(2 rows)", True), read_answer("2.5", False)
    (['Ada', 'Bo'], 2.5)
    """
    lines = seen.split("\n")
    if _ROWS.fullmatch(lines[-1]):
        lines = lines[1:-1]
    values = [_value(line.partition("|")[0].strip()) for line in lines if not line.startswith("(")]
    return list(values) if many else (values[0] if values else 0)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _known(task: Task) -> tuple[str, bool]:
    sql, answer = task.private.get("sql"), task.private.get("answer")
    if not isinstance(sql, str) or not isinstance(answer, dict):
        raise TaskError(f"task {task.id!r} has no private 'sql' and 'answer'; players need both")
    return sql, answer.get("kind") in ("list", "set")
