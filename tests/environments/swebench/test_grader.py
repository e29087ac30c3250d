"""Gradings of the small instance in a real engine."""

from __future__ import annotations

from types import ModuleType

import pytest

from agentgym_rtmc.environments.swebench.grader import PatchGrade, grade_patch
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import ImageMissingError

pytest.importorskip("swebench")
LIMITS = ContainerLimits(memory_mb=512, disk_mb=128)


def grade(row: SWEBenchRow, patch: str, seconds: float = 300.0) -> PatchGrade:
    return grade_patch(row, patch, limits=LIMITS, seconds=seconds)


def test_reference(small_row: SWEBenchRow) -> None:
    done = grade(small_row, small_row.patch)
    grade_ = done.run.grade
    assert (grade_.resolved, grade_.tampered, grade_.reward) == (True, False, 1.0), grade_.reasons
    assert (grade_.fail_to_pass, grade_.pass_to_pass) == ((2, 0), (2, 0))
    assert done.run.log.count(">>>>> Start Test Output") == 1 and ">>>>> Test Exit Code: 0" in done.run.log


@pytest.mark.parametrize(
    ("name", "fail_to_pass", "pass_to_pass"),
    [("WRONG", (0, 2), (2, 0)), ("PARTIAL", (1, 1), (2, 0)), ("BREAKING", (2, 0), (1, 1))],
)
def test_not_resolved(
    small_row: SWEBenchRow,
    small: ModuleType,
    name: str,
    fail_to_pass: tuple[int, int],
    pass_to_pass: tuple[int, int],
) -> None:
    done = grade(small_row, getattr(small, name)).run.grade
    assert (done.reward, done.tampered, done.fail_to_pass, done.pass_to_pass) == (0, False, fail_to_pass, pass_to_pass)


def test_nothing_is_not_run(small_row: SWEBenchRow) -> None:
    elsewhere = small_row.model_copy(update={"image": "nowhere/none:latest"})
    done = grade(elsewhere, "")
    assert (done.run.grade.reward, done.run.grade.fail_to_pass) == (0, (0, 2))
    with pytest.raises(ImageMissingError):
        grade(elsewhere, small_row.patch)


def test_refused_and_not_applying(small_row: SWEBenchRow, small: ModuleType) -> None:
    refused = grade(small_row, small.PATCH.replace("shapes/area.py", ".git/config"))
    assert not refused.run.grade.resolved and "git's own files" in refused.notes[0]
    other = grade(small_row, small.PATCH.replace("width + height", "width ** height"))
    assert not other.run.grade.resolved and other.notes == ("the patch does not apply",)
    assert not other.run.report["patch_successfully_applied"]


def test_changes_to_graded_tests_are_left_out(small_row: SWEBenchRow) -> None:
    easy = (
        "diff --git a/tests/test_area.py b/tests/test_area.py\n--- a/tests/test_area.py\n+++ b/tests/test_area.py\n"
        "@@ -4,2 +4,1 @@\n def test_circle():\n-    assert circle(2) == 12\n"
    )
    done = grade(small_row, easy)
    assert done.run.grade.reward == 0 and done.notes[0] == "left out: tests/test_area.py: a graded test file"


def test_time_is_a_result(small_row: SWEBenchRow, small: ModuleType) -> None:
    endless = small.PATCH.replace("+    return width * height", "+    while True: pass")
    done = grade(small_row, endless, seconds=15.0)
    assert done.run.grade.reward == 0 and "killed: it ran longer" in done.notes[-1]
    assert "Timeout error: 15 seconds exceeded" in done.run.log
