"""Judging by assert code in a process that the program under test never enters.

The tests run in one sandbox (`tester.py`), the program in another (`candidate.py`), and neither is one that the agent
touched. First the tests run with the reference program, and every call to a function under test is written down. The
agent's program answers these calls, knowing the arguments alone. Then the tests run again, unaltered, with these
answers in place of the calls. Where the answers lead the tests to make other calls, the round is repeated with those.

Invariants, each against a way to cheat:
- Nothing of the agent's is executed where something is asserted, and no expected value is where its program runs: there
  is nothing to read in frames, files or memory, and nothing to patch.
- Answers are plain data (`objects.py`): an object with an `__eq__` of its own arrives as its contents or not at all.
- Helper functions that the tests use beside those under test are the reference's own.
- Two canaries run with the tests; a wrong one pays nothing.

What it cannot do: pass functions, or objects of the program's own classes, between tests and program; that is for
`together.py`. A program that keeps an argument and changes it in a later call does so unseen. Tests in which answers
lead to new calls more than `ROUNDS` times, one after the other, fail.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from agentgym_rtmc.environments.code_repair.asserts.canaries import make_canaries
from agentgym_rtmc.environments.code_repair.asserts.scripts import SECONDS, run_script
from agentgym_rtmc.environments.code_repair.asserts.tests import HiddenTests
from agentgym_rtmc.environments.code_repair.verdicts import Verdict
from agentgym_rtmc.errors import GradingError, TaskError

ROUNDS = 6
_OBJECTS = "asserts.objects"
_CANDIDATE, _CANDIDATE_NEEDS = "asserts.candidate", (_OBJECTS, "driver")
_TESTER, _TESTER_NEEDS = "asserts.tester", (_OBJECTS, "asserts.harness")


def judge_apart(task_id: str, tests: HiddenTests, program: str) -> Verdict:
    """Judge a program by a task's tests. Raises TaskError when the reference itself fails them, else GradingError."""
    calls, total = _first_calls(task_id, tests.model_dump_json())
    for _ in range(ROUNDS):
        answers = ask(tests, program, calls)
        if answers is None:
            return Verdict(0, total, late=True)
        report = run_tests(tests, [[call, answer] for call, answer in zip(calls, answers, strict=True)])
        if report is None:
            return Verdict(0, total, late=True)
        if not report["trusted"]:
            return Verdict(0, total)
        if report["complete"]:
            right = sum(reason is None for reason in report["results"].values())
            return Verdict(min(right, total), total)
        calls = report["calls"]
    return Verdict(0, total)


@lru_cache(maxsize=1024)
def _first_calls(task_id: str, tests: str) -> tuple[list[Any], int]:
    """Return the calls that the tests make of the reference, and the number of tests."""
    report = run_tests(HiddenTests.model_validate_json(tests), [])
    if report is None:
        raise GradingError(f"task {task_id!r}: its tests did not end within {SECONDS:g} s; is the machine overloaded?")
    for name, reason in report["results"].items():
        if reason is not None:
            where = f"test {name}" if name else "its tests"
            raise TaskError(f"task {task_id!r}: its own reference fails {where}: {reason}")
    if not report["trusted"]:
        raise TaskError(f"task {task_id!r}: a canary beside its tests came out wrong; the tests disturb each other")
    if not report["calls"]:
        raise TaskError(
            f"task {task_id!r}: its tests never call {', '.join(HiddenTests.model_validate_json(tests).entry)}"
        )
    return report["calls"], len(report["results"])


def run_tests(tests: HiddenTests, answered: list[Any]) -> dict[str, Any] | None:
    """Run the tests once, with these answers to these calls; None when they did not come to an end.

    The result is `tester.py`'s, without the canaries, and `trusted`: whether these came out as they must.
    """
    passing, failing = make_canaries()
    request = {
        "modules": tests.modules,
        "reference": tests.original,
        "entry": tests.entry,
        "aliases": ["m", *tests.aliases],
        "tests": tests.tests + passing.text + failing.text,
        "answered": answered,
    }
    done = run_script(_TESTER, _TESTER_NEEDS, json.dumps(request))
    if done.timed_out or done.code:
        return None
    report: dict[str, Any] = json.loads(done.stdout)
    results = report["results"]
    right, wrong = results.pop(passing.name, "did not run"), results.pop(failing.name, None)
    # Where the module itself failed there were no tests, canaries among them, and nothing passes.
    report["trusted"] = results[""] is not None or (right is None and str(wrong).startswith("AssertionError"))
    return report


def ask(tests: HiddenTests, program: str, calls: list[Any]) -> list[Any] | None:
    """Return the program's answer to each call; None when there was none in time. What cannot be read is no answer."""
    request = {"modules": dict(tests.modules), "source": program, "calls": calls, "seconds": 0.9 * SECONDS}
    done = run_script(_CANDIDATE, _CANDIDATE_NEEDS, repr(request))
    try:
        answers = "late" if done.timed_out else json.loads(done.stdout)
    except (ValueError, RecursionError):
        answers = None
    if answers == "late":
        return None
    if not isinstance(answers, list):
        answers = []
    return [answers[number] if number < len(answers) else {"x": "no answer"} for number in range(len(calls))]
