"""Test reports of several runners: what failed, what passed, and stability against what changes from run to run."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures import episode_keys, make_signature, read_outcomes
from agentgym_rtmc.tasks import Task

SHARED = Path(os.environ.get("AGENTGYM_RTMC_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

PYTEST = """\
============================= test session starts ==============================
collected 3 items

tests/test_a.py .F.                                                      [100%]

=================================== FAILURES ===================================
___________________________________ test_two ___________________________________

    def test_two():
>       assert <X object at 0x7f12aa34> == 2
E       assert

tests/test_a.py:5: AssertionError
=========================== short test summary info ============================
FAILED tests/test_a.py::test_two - assert
========================= 1 failed, 2 passed in 0.12s ==========================
"""
QUIET = """\
.F.                                                 [100%]
FAILED tests/test_a.py::test_two - x
1 failed, 2 passed in 3.40s
"""
VERBOSE = """\
tests/test_a.py::test_one PASSED                                         [ 33%]
tests/test_a.py::test_two FAILED                                         [ 66%]
tests/test_a.py::test_three PASSED                                       [100%]
========================= 1 failed, 2 passed in 9.87s ==========================
"""
UNITTEST = """\
F..
======================================================================
FAIL: test_two (tests.test_a.Case)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/tmp/x/test_a.py", line 9, in test_two
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 3 tests in 0.004s

FAILED (failures=1)
"""
UNITTEST_NEWER = UNITTEST.replace("(tests.test_a.Case)", "(tests.test_a.Case.test_two)").replace("0.004s", "1.3s")
DJANGO = "Testing against Django installed in '/testbed/django'\nCreating test database...\n" + UNITTEST
SYMPY = """\
============================= test process starts ==============================
random seed:        18492396
sympy/core/tests/test_a.py[3] .F.                                          [FAIL]
________________________________________________________________________________
____________________ sympy/core/tests/test_a.py:test_two _______________________
AssertionError
============= tests finished: 2 passed, 1 failed, in 0.20 seconds ==============
DO *NOT* COMMIT!
"""
TOX = "py39: commands succeeded\nERROR:   py310: commands failed\n"


@pytest.mark.parametrize(
    ("text", "failed", "passed", "names"),
    [
        (PYTEST, 1, 2, {"tests/test_a.py::test_two"}),
        (QUIET, 1, 2, {"tests/test_a.py::test_two"}),
        (VERBOSE, 1, 2, {"tests/test_a.py::test_two"}),
        (UNITTEST, 1, 2, {"tests.test_a.Case.test_two"}),
        (UNITTEST_NEWER, 1, 2, {"tests.test_a.Case.test_two"}),
        (DJANGO, 1, 2, {"tests.test_a.Case.test_two"}),
        (SYMPY, 1, 2, {"sympy/core/tests/test_a.py:test_two"}),
        (TOX, 1, 1, {"py310"}),
    ],
    ids=["pytest", "quiet", "verbose", "unittest", "newer", "django", "sympy", "tox"],
)
def test_runners(text, failed, passed, names):
    outcomes = read_outcomes(text)
    assert outcomes is not None
    assert (outcomes.count("failed"), outcomes.count("passed"), set(outcomes.failed)) == (failed, passed, names)
    assert not outcomes.ok


@pytest.mark.parametrize(
    "text",
    [
        "== 3 passed in 0.1s ==",
        "3 passed, 1 warning in 0.10s",
        "Ran 3 tests in 0.1s\n\nOK\n",
        "===== 3 passed in 61.2s (0:01:01) =====",
    ],
)
def test_all_well(text):
    outcomes = read_outcomes(text)
    assert outcomes is not None
    assert outcomes.ok
    assert outcomes.key == "f0p3"


def test_how_much_is_printed_does_not_matter():
    assert read_outcomes(PYTEST).key == read_outcomes(QUIET).key == read_outcomes(VERBOSE).key
    assert read_outcomes(UNITTEST).key == read_outcomes(UNITTEST_NEWER).key
    coloured = "\x1b[31m" + PYTEST.replace("\n", "\r\n").replace("0.12s", "7.00s").replace("0x7f12aa34", "0x55")
    assert read_outcomes(coloured).key == read_outcomes(PYTEST).key


def test_other_failures_and_counts_have_other_keys():
    keys = {
        read_outcomes(text).key
        for text in (PYTEST, PYTEST.replace("test_two", "test_one"), PYTEST.replace("2 passed", "3 passed"))
    }
    assert len(keys) == 3


def test_order_does_not_matter():
    lines = ["FAILED a.py::x - m", "FAILED b.py::y - m"]
    texts = [
        "short test summary info\n" + "\n".join(order) + "\n== 2 failed in 1s ==" for order in (lines, lines[::-1])
    ]
    assert read_outcomes(texts[0]).key == read_outcomes(texts[1]).key


def test_the_last_of_nested_reports_counts():
    nested = "== 2 failed in 0.05s ==\nFAILED inner.py::x - a\n" + PYTEST
    assert read_outcomes(nested).key == read_outcomes(PYTEST).key


@pytest.mark.parametrize(
    "text", ["", "hello", "3 files changed", "passed", "Traceback (most recent call last):\nKeyError: 1"]
)
def test_other_texts_are_no_reports(text):
    assert read_outcomes(text) is None


def test_real_logs_agree_with_their_grading():
    path = SHARED / "swebench" / "eval_logs.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no {path}; set AGENTGYM_RTMC_SHARED_DATA")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        logs = [json.loads(line) for line in lines]
    by_task: dict[str, dict[str, int]] = {}
    for log in logs:
        outcomes = read_outcomes(log["log"])
        assert outcomes is not None, log["instance_id"]
        bad = outcomes.count("failed") + outcomes.count("errors")
        # Everything that had to fail did; what was graded as passed is among the passed.
        assert bad >= log["fail_to_pass"][1] + log["pass_to_pass"][1], log["instance_id"]
        assert outcomes.count("passed") >= log["fail_to_pass"][0] + log["pass_to_pass"][0], log["instance_id"]
        assert len(outcomes.failed) == bad, log["instance_id"]
        by_task.setdefault(log["instance_id"], {})[log["patch"]] = bad
    assert all(kinds["gold"] < kinds["empty"] for kinds in by_task.values())


def test_the_signature_keeps_the_last_outcome():
    observations = ["listing", PYTEST, "listing", "== 3 passed in 0.1s ==", "x"]
    turns = tuple(Turn(text="x", observation=text, reward=0.0) for text in observations)
    episode = Episode(id="e", group="g", opening=Opening(task=Task(id="t"), observation=""), turns=turns)
    states = episode_keys(make_signature("test_outcomes"), episode).states
    assert states[0] == states[1] == "untested"
    assert states[2] == states[3] == read_outcomes(PYTEST).key
    assert states[4] == "f0p3"
