"""Judging: what counts, what is remembered, and what is nobody's fault but the machine's."""

import pytest

from agentgym_rtmc.environments.code_repair import grading
from agentgym_rtmc.environments.code_repair.grading import MEMO, judge
from agentgym_rtmc.environments.code_repair.verdicts import Verdict, VerdictMemo
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

ADD = b"def add(a, b):\n    return a + b\n"


@pytest.fixture(autouse=True)
def forgetful():
    MEMO.clear()


def test_every_case_counts(sandboxed, make_task):
    task = make_task()
    assert judge(task, ADD) == Verdict(8, 8) and judge(task, ADD).solved
    nearly = b"def add(a, b):\n    return a + b if a < 10 else 0\n"
    assert judge(task, nearly) == Verdict(7, 8) and not judge(task, nearly).solved
    assert judge(task, None) == judge(task, b"\xff") == judge(task, b"#" * 200_000) == Verdict(0, 8)


def test_nothing_right_of_nothing_is_no_solution():
    assert not Verdict(0, 0).solved


def test_a_program_is_run_once(sandboxed, make_task, monkeypatch):
    task = make_task()
    judge(task, ADD)
    hits = MEMO.hits
    monkeypatch.setattr(grading, "answer_calls", None)
    assert judge(task, ADD).solved and MEMO.hits == hits + 1
    assert judge(make_task(name="the same under another name"), ADD).solved


def test_what_the_clock_stopped_is_tried_again(sandboxed, make_task, monkeypatch):
    monkeypatch.setattr(grading, "SECONDS", 0.2)
    task = make_task()
    slow = b"import time\ntime.sleep(0.6)\n" + ADD
    assert not judge(task, slow).solved
    monkeypatch.setattr(grading, "SECONDS", 8.0)
    assert judge(task, slow).solved


def test_the_memo_is_bounded_and_drops_what_was_not_asked_for():
    memo = VerdictMemo(2)
    for name in (b"a", b"b"):
        memo.put(name, Verdict(1, 1))
    assert memo.get(b"a")
    memo.put(b"c", Verdict(1, 1))
    assert memo.get(b"a") and memo.get(b"c") and memo.get(b"b") is None


@pytest.mark.parametrize(
    "private",
    [{}, {"calls": [["f", []]]}, {"calls": [], "expected": []}, {"calls": [["f", []]], "expected": [1, 2]}],
)
def test_tasks_without_cases_cannot_be_judged(private):
    with pytest.raises(TaskError, match="'calls'"):
        judge(Task(id="x", private=private), ADD)
