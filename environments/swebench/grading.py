"""The verdict on a finished evaluation: what the official harness says, and whether the log can be believed.

Invariants:
- `resolved` is the official verdict on the log, word for word; `tampered` is ours. Only resolved, not tampered is
  paid.
- Nothing here runs the graded work. What its output can bring about (a parser that fails, endless patterns) is its
  own failure; what the machine does wrong raises GradingError.
- `infrastructure_failure` is swebench's reading of the log, and a log is text an agent can write: it is for reports.
  What ended a run for real is known from the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentgym_rtmc.environments.swebench.canaries import Canaries, read_canaries, without_canaries
from agentgym_rtmc.environments.swebench.harness_process import UnreadableLogError, inspect_segment, official_report
from agentgym_rtmc.environments.swebench.log import (
    assemble,
    foreign_markers,
    holds_marker,
    segment_of,
    streams_apart,
    uniform_lines,
)
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

Counts = tuple[int, int]
"""(passed, failed)"""


@dataclass(frozen=True)
class Grade:
    """A verdict. `reasons` say in words what is behind `tampered` and behind a log that could not be used."""

    resolved: bool
    tampered: bool
    fail_to_pass: Counts
    pass_to_pass: Counts
    infrastructure_failure: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def reward(self) -> float:
        """1 for resolved and not tampered, else 0."""
        return float(self.resolved and not self.tampered)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Grade:
        """The grade that `asdict` and JSON made these values of; further ones are passed over."""
        known: dict[str, Any] = {one.name: values[one.name] for one in fields(cls)}
        return cls(**known | {name: tuple(value) for name, value in known.items() if isinstance(value, list)})

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of FAIL_TO_PASS and PASS_TO_PASS that pass; of no tests all do."""
        return _share(self.fail_to_pass), _share(self.pass_to_pass)


@dataclass(frozen=True)
class GradedRun:
    """A grade with the log it was read from (what swebench may be given again) and swebench's own report."""

    grade: Grade
    log: str
    report: Mapping[str, Any]


def _share(counts: Counts) -> float:
    return counts[0] / sum(counts) if sum(counts) else 1.0


def grade_log(row: SWEBenchRow | Mapping[str, Any], patch: str | None, log: str | bytes) -> Grade:
    """Grade a finished log, from wherever it comes, of the official evaluation script.

    `row` may be a row as the dataset has it; `patch` is what was graded (None: there was none). A log that holds more
    markers than an official run prints is tampered; forgeries that need no marker can be told only where canaries ran.
    Raises TaskError for a row that is none, GradingError when the grader itself fails.
    """
    return grade_finished(row, patch, log).grade


def grade_finished(row: SWEBenchRow | Mapping[str, Any], patch: str | None, log: str | bytes) -> GradedRun:
    """`grade_log`, with the log as swebench reads it and its own report."""
    row = row if isinstance(row, SWEBenchRow) else SWEBenchRow.read(row, "row")
    text = uniform_lines(log.decode("utf-8", "replace") if isinstance(log, bytes) else log)
    told = [*foreign_markers(text)]
    if patch is not None and holds_marker(patch):
        told.append("the patch spells one of the log's markers")
    return _judge(row, patch, text, told)


def grade_run(
    row: SWEBenchRow,
    patch: str,
    setup: str,
    tests: str,
    exit_code: int,
    canaries: Canaries,
    timed_out: float | None = None,
) -> GradedRun:
    """Grade a run whose set-up and tests were two commands, the tests with `canaries` among them.

    `exit_code` is the one the engine tells of the tests, `timed_out` are the seconds after which the tests were
    killed. Raises as `grade_log` does.
    """
    raw = assemble(setup, tests, exit_code, timed_out)
    told = [*raw.forged]
    segment = segment_of(raw.text)
    if segment is None or canaries.kind == "none":
        return _judge(row, patch, raw.text, told)
    try:
        seen = inspect_segment(row, segment, canaries.names)
    except UnreadableLogError as error:
        return _unusable(row, raw.text, told, str(error))
    reading = read_canaries(canaries, seen["named"])
    clean, code = without_canaries(canaries, uniform_lines(tests), exit_code, seen)
    run = _judge(row, patch, assemble(setup, clean, code).text, told)
    # A run that failed for reasons of its own may not have come to its canaries; that alone is no forgery.
    if reading.must_fail == "wrong" or (run.grade.resolved and not reading.right):
        told.append(
            f"canaries: the one that must fail is {reading.must_fail}, the one that must pass {reading.must_pass}"
        )
        run = _judge(row, patch, run.log, told)
    return run


def _judge(row: SWEBenchRow, patch: str | None, log: str, told: list[str]) -> GradedRun:
    """Put the official verdict together with what was found."""
    try:
        report = official_report(row, patch, log)
        if report["resolved"]:
            told = [*told, *_contradictions(row, log)]
    except UnreadableLogError as error:
        return _unusable(row, log, told, str(error))
    notes: tuple[str, ...] = ()
    if segment_of(log) is None:
        notes = ("the log has no start or no end marker: it is not complete",)
    elif "tests_status" not in report and not report["patch_is_None"]:
        notes = ("the log has no results that the official harness accepts",)
    if "infra_failure_reason" in report:
        notes = (*notes, f"swebench: {report['infra_failure_reason']}")
    grade = Grade(
        resolved=report["resolved"],
        tampered=bool(told),
        fail_to_pass=_counts(report, "FAIL_TO_PASS", len(row.fail_to_pass)),
        pass_to_pass=_counts(report, "PASS_TO_PASS", len(row.pass_to_pass)),
        infrastructure_failure=report["infra_failure"],
        reasons=(*told, *notes),
    )
    return GradedRun(grade, log, report)


def _contradictions(row: SWEBenchRow, log: str) -> list[str]:
    """What speaks against a log that is graded as resolved."""
    segment = segment_of(log)
    if segment is None:
        return []
    seen = inspect_segment(row, segment)
    if not seen["tests"]:
        # swebench then looks for results in the whole log, where the agent's diff stands.
        why = ": its standard output stands apart, in which results and the agent's diff cannot be told apart"
        return [f"there are results outside the markers only{why if streams_apart(log) else ''}"]
    failing = seen["contradicted"]
    if failing:  # swebench goes by the last line on a test
        return [f"{failing[0]} is reported as failed and, further down, as passed ({len(failing)} such tests)"]
    return []


def _counts(report: Mapping[str, Any], name: str, total: int) -> Counts:
    if "tests_status" not in report:
        return 0, total  # nothing is known to pass
    status = report["tests_status"][name]
    return len(status["success"]), len(status["failure"])


def _unusable(row: SWEBenchRow, log: str, told: list[str], reason: str) -> GradedRun:
    report = {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": False,
        "resolved": False,
        "infra_failure": False,
    }
    grade = Grade(False, bool(told), (0, len(row.fail_to_pass)), (0, len(row.pass_to_pass)), reasons=(*told, reason))
    return GradedRun(grade, log, report)
