"""Is a repaired program right? Judged on data, in this process; the program runs elsewhere and only answers.

Invariants, each against a way to cheat:
- Only the text of `m.py` is graded, in a fresh sandbox: edited tests, `conftest.py`, `sitecustomize`, links, planted
  modules and background processes of the agent's sandbox do not exist there.
- The sandbox gets calls, never expected values: nothing in frames, files or streams to read them from.
- The verdict is the comparison of typed JSON here: exit codes, printed text and objects with an `__eq__` of their own
  have no part in it, and a missing answer is a wrong one.
- A program that was judged once is not run again: the verdict depends on its text and the cases alone. Only one that
  was stopped by the wall clock is, as that may be the machine's load.
- A failure of the machine raises GradingError; it is never the agent's zero.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from agentgym_rtmc.environments.code_repair.answering import LATE, answer_calls
from agentgym_rtmc.environments.code_repair.cases import same
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

MAX_PROGRAM_BYTES = 100_000
SECONDS = 5.0
"""Wall-clock seconds for all calls of a program; its CPU seconds are limited to 2."""


@dataclass(frozen=True)
class Verdict:
    """How many of the cases a program answers rightly."""

    right: int
    total: int

    @property
    def solved(self) -> bool:
        """Whether all are right."""
        return self.right == self.total > 0


class _Memo:
    """The newest verdicts by digest of program and cases; shared by all environments of the process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> Verdict | None:
        """Return a verdict and mark it as used."""
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is None:
                self.misses += 1
            else:
                self.hits += 1
                self._verdicts.move_to_end(key)
            return verdict

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict, dropping the one unused for longest."""
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > self._size:
                self._verdicts.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._verdicts.clear()


MEMO = _Memo(20_000)


def judge(task: Task, program: bytes | None) -> Verdict:
    """Judge the text of `m.py` (None: there is none) on all cases of a task.

    Raises TaskError for a task without cases, GradingError when the sandbox fails.
    """
    calls, expected = task.private.get("calls"), task.private.get("expected")
    if not isinstance(calls, list) or not isinstance(expected, list) or len(calls) != len(expected) or not calls:
        raise TaskError(f"task {task.id!r} has no private 'calls' and 'expected' of equal length")
    source = _text(program)
    if source is None:
        return Verdict(0, len(calls))
    key = hashlib.sha256(json.dumps([source, calls, expected]).encode()).digest()
    known = MEMO.get(key)
    if known is not None:
        return known
    cases: list[Any] = calls
    [answers] = answer_calls([(source, cases)], seconds=SECONDS)
    verdict = Verdict(sum(map(same, expected, answers)), len(calls))
    if LATE not in answers:
        MEMO.put(key, verdict)
    return verdict


def _text(program: bytes | None) -> str | None:
    if program is None or len(program) > MAX_PROGRAM_BYTES:
        return None
    try:
        return program.decode()
    except UnicodeDecodeError:
        return None
