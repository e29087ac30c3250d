"""Judging by assert code in one process with the program under test, for tests that cannot be kept apart from it.

Tests that hand functions to the program, or use its classes, need both in one process (`joint.py`), in a sandbox that
the agent never touched; and in one process a program can read the tests and patch whatever runs them. So the tests are
never run as a whole. For each assertion there are several runs, each in a fresh sandbox, all in random order: the tests
with this assertion alone in force, which must pass, and the same with each of its twins, which must fail (`twins.py`).
Two more are made of the canaries of random name. Which run is which is known here and nowhere else.

What that stops: leaving early, forged output, patched runners, builtins and exceptions, trace functions, threads,
signal handlers and exit handlers, objects equal to everything, reading the expected value from frames, constants or
memory. All of these pass a twin as well, and then pay nothing.

What remains possible: a program that guesses from the looks of a value whether it is the right one; an object made to
answer a comparison one way and its inverse the other, where an assertion has no constant to change; anything against an
assertion without twins. Where tests can be kept apart, they should be: `apart.py` has none of these gaps.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import NamedTuple

from agentgym_rtmc.environments.code_repair.asserts.canaries import make_canaries
from agentgym_rtmc.environments.code_repair.asserts.scripts import run_script
from agentgym_rtmc.environments.code_repair.asserts.tests import HiddenTests
from agentgym_rtmc.environments.code_repair.asserts.twins import disarmed, find_assertions
from agentgym_rtmc.environments.code_repair.verdicts import Verdict
from agentgym_rtmc.errors import GradingError, TaskError

_NEEDS = ("asserts.tester", "asserts.harness", "asserts.objects")
_RANDOM = random.SystemRandom()


class Family(NamedTuple):
    """Tests that a right program passes, and tests that it fails (none: no way to make such ones was found)."""

    real: str
    twins: tuple[str, ...]


def judge_together(task_id: str, tests: HiddenTests, program: str) -> Verdict:
    """Judge a program by a task's tests. Raises TaskError when the reference itself fails them, else GradingError."""
    families = find_families(task_id, tests.model_dump_json())
    passing, failing = make_canaries()
    idle = disarmed(tests.tests)
    runs = [(family.real, True) for family in families]
    runs += [(twin, False) for family in families for twin in family.twins]
    runs += [(idle + passing.text, True), (idle + failing.text, False)]
    _RANDOM.shuffle(runs)
    right = 0
    for text, must_pass in runs:
        wrong = run_together(tests, program, text)
        if wrong is None:
            return Verdict(0, len(families), late=True)
        if must_pass and wrong:
            return Verdict(min(right, len(families) - 1), len(families))
        if not must_pass and not wrong:  # it passes what no right program passes
            return Verdict(0, len(families))
        right += must_pass
    return Verdict(len(families), len(families))


@lru_cache(maxsize=256)
def find_families(task_id: str, tests: str) -> tuple[Family, ...]:
    """Return a family for each assertion, proven with the reference. `tests` is the JSON of HiddenTests.

    Raises TaskError when the reference fails one, or there is no twin for any.
    """
    hidden = HiddenTests.model_validate_json(tests)
    families = []
    for assertion in find_assertions(hidden.tests, hidden.entry):
        wrong = run_together(hidden, hidden.original, assertion.real)
        if wrong is None:
            raise GradingError(f"task {task_id!r}: its tests did not end in time; is the machine overloaded?")
        if wrong:
            raise TaskError(f"task {task_id!r}: its own reference fails its tests: {'; '.join(wrong)}")
        for choice in (assertion.twins, [assertion.inverse]):
            twins = tuple(twin for twin in choice if _fails(run_together(hidden, hidden.original, twin)))
            if twins:
                break
        families.append(Family(assertion.real, twins))
    if not any(family.twins for family in families):
        raise TaskError(
            f"task {task_id!r}: its tests have no assertion that can be turned into a wrong one; write plain `assert`s"
        )
    return tuple(families)


def _fails(wrong: list[str] | None) -> bool:
    return bool(wrong) and all(reason.startswith("AssertionError") for reason in wrong or ())


def run_together(tests: HiddenTests, program: str, text: str) -> list[str] | None:
    """Run a program with the text of some tests; returns what went wrong, None when a clock stopped it."""
    request = {"modules": tests.modules, "source": program, "aliases": tests.aliases, "tests": text}
    done = run_script("asserts.joint", _NEEDS, json.dumps(request))
    if done.timed_out:
        return None
    try:
        results = json.loads(done.stdout)
        reasons = [results[name] for name in results]
    except (ValueError, TypeError, RecursionError, KeyError):
        return ["no result"]
    if not reasons:
        return ["no result"]
    return [str(reason) for reason in reasons if reason is not None]
