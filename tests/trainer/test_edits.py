"""What episodes tell of edits."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.edits import edit_figures

PASS, FAIL = {"passed": 4, "total": 4}, {"passed": 1, "total": 4}


def episode(*infos: dict[str, Any], valid: bool = True) -> Episode:
    turns = tuple(Turn(text="x", observation="", reward=0.0, info=info) for info in infos)
    return Episode(id="e", group="g", opening=Opening(task=Task(id="t"), observation=""), turns=turns, valid=valid)


def test_only_the_first_edit_can_be_a_hit() -> None:
    looked = episode({"tests": FAIL}, {"edit": True, "tests": PASS})
    late = episode({"edit": True, "idle": True, "tests": FAIL}, {"edit": True, "tests": PASS})
    untested = episode({"edit": True})
    nothing = episode({"tests": PASS}, {})
    dead = episode({"edit": True, "tests": PASS}, valid=False)
    figures = edit_figures([looked, late, untested, nothing, dead])
    assert figures == {
        "first_edit_hit": pytest.approx(1 / 4),
        "edits_per_episode": pytest.approx(4 / 4),
        "idle_edit_share": pytest.approx(1 / 4),
    }


def test_without_edits_there_is_nothing_to_measure() -> None:
    assert edit_figures([]) == {} == edit_figures([episode({"tests": PASS}, {"edit": False})])


def test_no_tests_are_no_pass() -> None:
    assert edit_figures([episode({"edit": True, "tests": {"passed": 0, "total": 0}})])["first_edit_hit"] == 0.0
