"""`agentgym_rtmc/DataQuestions-v0`: a question about a database, answered with read-only SQL.

Invariants:
- Each episode has a database of its own, forked from a prepared one; nothing an agent sends changes it (`queries.py`).
- Errors of the database are observations. Every query ends, by a count of its work that is the same on any machine.
- The reward is 1 in all for a right answer, by value (`answers.py`). Of that, `found` is paid at the first query whose
  result holds the answer, `correct` is the rest, at the end. Answering wrongly, or not at all, leaves what was paid.
- `info["database"]` is the state for the `tool_state` signature. The database itself never changes, so it is a digest
  of what was learnt: the *set* of results seen and of tables described. Results are taken by their values, so two
  queries that say the same lead to one state, whatever their wording; failed queries teach nothing and leave it as is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files
from string import Template
from typing import Any, Literal, get_args

from pydantic import StrictFloat, StrictInt, StrictStr

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.calls.tools import Toolbox, render_results
from agentgym_rtmc.calls.word_call import WordCallProtocol
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.environments.data_questions.answers import holds_answer, is_answer
from agentgym_rtmc.environments.data_questions.domains import Domain, find_domain, prepare_database
from agentgym_rtmc.environments.data_questions.results import learnt_digest, result_digest, show_result
from agentgym_rtmc.environments.queries import QueryLimits, QueryResult, ReadOnlyQueries
from agentgym_rtmc.errors import ConfigError, TaskError, ToolError, nearest
from agentgym_rtmc.registration import split_loader
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/DataQuestions-v0"
Style = Literal["full", "compact"]
Answer = StrictInt | StrictFloat | StrictStr | list[StrictInt | StrictFloat | StrictStr]

WORD_CALLS = WordCallProtocol({"list_tables": (), "describe": ("table",), "query": ("sql",), "answer": ("value",)})
"""How agents write calls in the compact style."""


@cache
def _prompt(style: Style) -> str:
    folder = package_files("agentgym_rtmc.environments.data_questions").joinpath("prompts")
    return folder.joinpath(f"system-{style}-v1.txt").read_text(encoding="utf-8").strip()


class DataQuestionsEnv(AgentEnv):
    """Options, beside `render_mode`:

    task_set, split, task_options: where `reset` takes tasks from when none is given. max_turns: the agent's budget.
    row_limit: most rows of a result that are read. output_limit: most characters of a turn's results that are shown.
    steps: most work of a query, in steps of SQLite's virtual machine. turn_cost: subtracted from the reward each turn.
    found: the share of the reward that is paid for a query that holds the answer. style: `full`, or `compact` for small
    models that learn the form by example: calls as words, the tables in the first observation, results as bare values.
    """

    def __init__(
        self,
        *,
        task_set: str = "generated",
        split: str = "train",
        task_options: Mapping[str, Any] | None = None,
        max_turns: int = 10,
        row_limit: int = 30,
        output_limit: int = 1500,
        steps: int = 200_000,
        turn_cost: float = 0.0,
        found: float = 0.2,
        style: Style = "full",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split_loader(ENV_ID, task_set, split, task_options), max_turns, turn_cost, render_mode)
        for name, number, least in (
            ("row_limit", row_limit, 1),
            ("output_limit", output_limit, 40),
            ("steps", steps, 1000),
        ):
            if number < least:
                raise ConfigError(f"{name} must be at least {least}, not {number}")
        if not 0 <= found < 1:
            raise ConfigError(f"found is a share of the reward, from 0 to below 1, not {found}")
        if style not in get_args(Style):
            raise ConfigError(f"style {style!r} is unknown{nearest(style, get_args(Style))}")
        self._full = style == "full"
        self.protocol: TextProtocol = ToolCallProtocol() if self._full else WORD_CALLS
        self.tools = Toolbox([self.list_tables, self.describe, self.query, self.answer])
        self.system_prompt = Template(_prompt(style)).substitute(turns=str(max_turns))
        if self._full:
            self.system_prompt += f"\n\n{self.tools.instructions()}\n\n{self.protocol.instructions()}"
        self._limits = QueryLimits(rows=row_limit, steps=steps)
        self._output_limit = output_limit
        self._share = found
        self._domain: Domain = find_domain("shop")
        self._connection: sqlite3.Connection | None = None
        self._queries: ReadOnlyQueries | None = None
        self._learnt: set[str] = set()
        self._held = 0.0
        self._newly_held = False
        self._result: QueryResult | None = None
        self._given: Answer | QueryResult | None = None

    # -- tools ---------------------------------------------------------------------------------------------------

    def list_tables(self) -> str:
        """List the tables of the database."""
        self._learnt.add("tables")
        return "\n".join(self._domain.columns)

    def describe(self, table: str) -> str:
        """Show the columns of a table and their types.

        Args:
            table: The table's name.
        """
        columns = self._domain.columns
        if table not in columns:
            raise ToolError(f"there is no table {table[:60]!r}{nearest(table[:60], columns)}")
        self._learnt.add(f"table {table}")
        return "\n".join(f"{name} {kind}" for name, kind, _ in columns[table])

    def query(self, sql: str) -> str:
        """Run one SELECT of SQLite on the database, which is read-only.

        Args:
            sql: The statement.
        """
        assert self._queries is not None and self._task is not None
        result = self._result = self._queries.run(sql)
        self._learnt.add(result_digest(result))
        if not self._held and holds_answer(self._expected(), result):
            self._newly_held = True
        return show_result(result, "table" if self._full else "short", self._output_limit)

    def answer(self, value: Answer | None = None) -> str:
        """Give the answer, which ends the task.

        Args:
            value: A number, a text, a date as YYYY-MM-DD, or a list of such values; without it, the result of the last
                query is the answer.
        """
        if value is None and self._result is None:
            raise ToolError("there is no result to answer with; query first, or give a value")
        self._given = value if value is not None else self._result
        return "answered"

    # -- the environment -----------------------------------------------------------------------------------------

    def begin(self, task: Task) -> tuple[str, Info]:
        """Fork the database; the first observation is the question."""
        question, domain, seed = (task.public.get(name) for name in ("question", "domain", "seed"))
        if not isinstance(question, str) or not isinstance(domain, str) or not isinstance(seed, int):
            raise TaskError(f"task {task.id!r} has no public 'question' (text), 'domain' (text) and 'seed' (number)")
        self._domain = find_domain(domain)
        prepared = prepare_database(domain, seed)
        self.close()
        self._connection = prepared.fork()
        self._queries = ReadOnlyQueries(self._connection, self._limits)
        self._learnt = set()
        self._held = 0.0
        self._newly_held = False
        self._result = self._given = None
        lines = [question]
        if not self._full:
            lines += (
                f"{table}({', '.join(name for name, _, _ in columns)})"
                for table, columns in self._domain.columns.items()
            )
        return "\n".join(lines), {"database": learnt_digest(())}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Run the calls of a turn, in order; what follows an answer does not count."""
        names = [call.name for call in calls]
        if "answer" in names:
            calls = calls[: names.index("answer") + 1]
        results = self.tools.run(calls)
        text = render_results(results)
        if len(results) > 1 and len(text) > (most := 2 * self._output_limit):
            text = f"{text[:most]}\n({len(text) - most} characters left out)"
        info: Info = {"database": learnt_digest(self._learnt), "errors": sum(not result.ok for result in results)}
        parts: dict[str, float] = {}
        if self._newly_held:
            self._newly_held, self._held = False, self._share
            parts = {"found": self._share} if self._share else {}
        return Reply(text, parts, terminated=self._given is not None, info=info)

    def grade(self) -> Mapping[str, float]:
        """Compare the answer, if there is one."""
        right = is_answer(self._expected(), self._given)
        return {"correct": (1.0 - self._held) * right}

    def close(self) -> None:
        """Free the database."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._queries = None

    def _expected(self) -> Mapping[str, Any]:
        assert self._task is not None
        answer = self._task.private.get("answer")
        if not isinstance(answer, dict):
            raise TaskError(f"task {self._task.id!r} has no private 'answer' (kind and value)")
        return answer
