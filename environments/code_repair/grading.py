"""Is a repaired program right? Judged on its text alone; the program runs elsewhere and only answers.

Tasks bring cases, which are data, or tests, which are code. Invariants, each against a way to cheat:
- Only the text of `m.py` is graded, in a fresh sandbox: edited tests, `conftest.py`, `sitecustomize`, links, planted
  modules and background processes of the agent's sandbox do not exist there.
- Cases: the sandbox gets calls, never expected values: nothing in frames, files or streams to read them from. The
  verdict is the comparison of typed JSON here: exit codes, printed text and objects with an `__eq__` of their own have
  no part in it, and a missing answer is a wrong one.
- Tests: `asserts/apart.py` keeps tests and program in different sandboxes; `asserts/together.py` says what it promises
  where they cannot be parted.
- A program that was judged once is not run again: the verdict depends on its text and the cases or tests alone. Only
  one that was stopped by the wall clock is, at once and whenever it comes again, as that may be the machine's load.
- A failure of the machine raises GradingError; it is never the agent's zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from agentgym_rtmc.environments.code_repair.answering import LATE, answer_calls
from agentgym_rtmc.environments.code_repair.asserts.apart import judge_apart
from agentgym_rtmc.environments.code_repair.asserts.tests import HiddenTests
from agentgym_rtmc.environments.code_repair.asserts.together import judge_together
from agentgym_rtmc.environments.code_repair.cases import same
from agentgym_rtmc.environments.code_repair.verdicts import Verdict, VerdictMemo
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

MAX_PROGRAM_BYTES = 100_000
SECONDS = 5.0
"""Wall-clock seconds for all calls of a program; its CPU seconds are limited to 2."""
LINES = 200_000
"""Executed lines after which a call of a program is endless; ten times what the visible tests allow."""
MEMO = VerdictMemo(100_000)
"""Shared by all environments of the process."""


def judge(task: Task, program: bytes | None) -> Verdict:
    """Judge the text of `m.py` (None: there is none) on all cases, or by all hidden tests, of a task.

    Raises TaskError for a task without either, GradingError when the sandbox fails.
    """
    if "tests" in task.private:
        tests = HiddenTests.of(task.id, task.private)
        return _remembered(program, tests.model_dump(), partial(_by_tests, task.id, tests), 1)
    calls, expected = task.private.get("calls"), task.private.get("expected")
    if not isinstance(calls, list) or not isinstance(expected, list) or len(calls) != len(expected) or not calls:
        raise TaskError(f"task {task.id!r} has no private 'tests', nor 'calls' and 'expected' of equal length")
    return _remembered(program, [calls, expected], partial(_by_cases, calls, expected), len(calls))


def _remembered(program: bytes | None, what: object, judging: Callable[[str], Verdict], total: int) -> Verdict:
    source = _text(program)
    if source is None:
        return Verdict(0, total)
    key = hashlib.sha256(json.dumps([source, what]).encode()).digest()
    known = MEMO.get(key)
    if known is not None:
        return known
    verdict = judging(source)
    if verdict.late:  # once may be the machine's load
        verdict = judging(source)
    if not verdict.late:
        MEMO.put(key, verdict)
    return verdict


def _by_cases(calls: list[Any], expected: list[Any], source: str) -> Verdict:
    [answers] = answer_calls([(source, calls)], seconds=SECONDS, lines=LINES)
    return Verdict(sum(map(same, expected, answers)), len(calls), late=LATE in answers)


def _by_tests(task_id: str, tests: HiddenTests, source: str) -> Verdict:
    judging = judge_apart if tests.mode == "apart" else judge_together
    return judging(task_id, tests, source)


def _text(program: bytes | None) -> str | None:
    if program is None or len(program) > MAX_PROGRAM_BYTES:
        return None
    try:
        return program.decode()
    except UnicodeDecodeError:
        return None
