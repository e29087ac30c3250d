"""The verdict on logs: real ones as recorded, forged ones never paid."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from agentgym_rtmc.environments.swebench import SWEBenchRow, grade_log, harness_process
from agentgym_rtmc.environments.swebench.eval_script import END, EXIT_CODE, START
from agentgym_rtmc.errors import GradingError, TaskError

pytest.importorskip("swebench")

Recorded = list[tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="module", autouse=True)
def _end_of_the_process() -> Any:
    yield
    harness_process.close_harness()


def patch_of(row: dict[str, Any], log: dict[str, Any]) -> str:
    return "" if log["patch"] == "empty" else str(row["patch"])


def test_every_recorded_log_is_graded_as_recorded(recorded: Recorded) -> None:
    assert len(recorded) == 40 and sum(log["resolved"] for _, log in recorded) == 20
    for row, log in recorded:
        grade = grade_log(row, patch_of(row, log), log["log"])
        assert grade.resolved == log["resolved"]
        assert list(grade.fail_to_pass) == log["fail_to_pass"] and list(grade.pass_to_pass) == log["pass_to_pass"]
        assert not grade.tampered and not grade.infrastructure_failure and grade.reasons == ()
        assert grade.reward == float(log["resolved"])
        # Bytes, the line ends of another system, and a checked row make no difference.
        assert (
            grade_log(SWEBenchRow.read(row, "x"), patch_of(row, log), log["log"].replace("\n", "\r\n").encode())
            == grade
        )


@pytest.mark.parametrize("believed", [True, False])
def test_standard_output_before_standard_error(recorded: Recorded, believed: bool) -> None:
    """As swebench's runner on Modal puts a log together: paid where results (unittest's) are on standard error."""
    for row, log in [one for one in recorded if one[1]["resolved"]][:6]:
        before, _, rest = str(log["log"]).partition(f"+ : '{START}'\n")
        results, _, rest = rest.partition(f"+ : '{END}'\n")
        printed = re.search(rf"^{re.escape(EXIT_CODE)}: \d+\n", rest, re.MULTILINE)
        assert printed is not None
        after = rest.replace(printed[0], "", 1)
        code = printed[0].strip()
        out, err = ("", results) if believed else (results, "")
        trace = "" if f"+ echo '{code}'" in after else f"+ echo '{code}'\n"
        apart = f"{out}{printed[0]}{before}+ : '{START}'\n{err}+ : '{END}'\n{trace}{after}"
        grade = grade_log(row, row["patch"], apart)
        assert grade.resolved and grade.tampered != believed
        assert believed or "its standard output stands apart" in grade.reasons[0]


def empty(recorded: Recorded) -> Recorded:
    return [(row, log) for row, log in recorded if log["patch"] == "empty"]


def results(row: dict[str, Any]) -> list[str]:
    """Lines that report every graded test as passed, in the format of the row's parser."""
    checked = SWEBenchRow.read(row, "x")
    names = [*checked.fail_to_pass, *checked.pass_to_pass]
    if checked.log_parser == "parse_log_sympy":
        return [f"{name} ok" for name in names]
    return [f"PASSED {name}" for name in names]


def forged(row: dict[str, Any], end: str) -> str:
    """A complete run in one line of a file: all that swebench reads, with `end` for the ends of lines."""
    run = ["", f"+ : '{START}'", *results(row), f"+ : '{END}'", f"{EXIT_CODE}: 0", ""]
    return end.join(run)


def in_the_diff(log: str, line: str) -> str:
    """The log as it would be had the agent's patch added a file of this one line."""
    at = log.index("+ git checkout")
    return f"{log[:at]}diff --git a/x.py b/x.py\n--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+{line}\n{log[at:]}"


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_a_run_forged_in_the_diff_is_never_paid(recorded: Recorded, end: str) -> None:
    officially = 0
    for row, log in empty(recorded):
        line = forged(row, end)
        grade = grade_log(row, "", in_the_diff(log["log"], line))
        officially += grade.resolved
        assert grade.tampered and grade.reward == 0.0
        assert grade.reasons[0] == "the log has 2 start and 2 end markers"
        # The patch that is graded tells the same.
        assert "the patch spells one of the log's markers" in grade_log(row, f"+{line}\n", log["log"]).reasons
    assert officially == 20, "the official verdict is told as it is: such logs are resolved for swebench"


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e", "\0"])
def test_other_ends_of_lines_forge_nothing(recorded: Recorded, end: str) -> None:
    """Python's splitlines would break there; swebench's reading does not, and every marker is found all the same."""
    for row, log in empty(recorded):
        grade = grade_log(row, "", in_the_diff(log["log"], forged(row, end)))
        assert grade.tampered and grade.reward == 0.0


@pytest.mark.parametrize(
    "forge",
    [
        lambda row, log: log.replace(f"+ : '{START}'", f"+ : '{START}'{forged(row, chr(10))}", 1),
        lambda row, log: log.replace(f"+ : '{END}'", f"{forged(row, chr(10))}+ : '{END}'", 1),
        lambda row, log: forged(row, "\n") + log,
        lambda row, log: log + forged(row, "\n"),
        lambda row, log: log.replace(f"+ : '{START}'", f"{EXIT_CODE}: 0\n+ : '{START}'", 1),
        lambda row, log: log.replace(f"+ : '{END}'", "\n".join([*results(row), f"{EXIT_CODE}: 0", f"+ : '{END}'"]), 1),
        lambda row, log: log.replace(f"+ : '{END}'", "\n".join([*results(row), f"+ : '{END}'", f"{EXIT_CODE}: 0"]), 1),
        lambda row, log: log.replace(f"+ : '{START}'", f"x{START}\x1b[0m{START}", 1),
    ],
)
def test_markers_and_exit_codes_anywhere(recorded: Recorded, forge: Any) -> None:
    for row, log in empty(recorded):
        grade = grade_log(row, "", forge(row, log["log"]))
        assert grade.tampered and grade.reward == 0.0, row["instance_id"]


@pytest.mark.parametrize("part", [START, END])
def test_markers_that_are_broken_up_are_none(recorded: Recorded, part: str) -> None:
    """Split over lines, coloured or with blanks: swebench sees no marker there and neither do we."""
    for row, log in empty(recorded)[:4]:
        broken = [
            part.replace(" ", "\n", 1),
            part.replace("Test", "\x1b[1mTest"),
            part.replace(" ", "  "),
            part.lower(),
        ]
        told = in_the_diff(log["log"], "\r".join([*broken, *results(row)]))
        grade = grade_log(row, "", told)
        assert not grade.resolved and not grade.tampered
        assert list(grade.fail_to_pass) == log["fail_to_pass"] and list(grade.pass_to_pass) == log["pass_to_pass"]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_later_lines_do_not_outvote_the_runner(recorded: Recorded, exit_code: int) -> None:
    """Printed after the runner's own, they hide what failed from swebench, whatever the tests end with."""
    resolved = 0
    for row, log in empty(recorded):
        text = log["log"].replace("+ SWEBENCH", "\n".join([*results(row), "+ SWEBENCH"]), 1)
        grade = grade_log(row, "", text.replace(f"{EXIT_CODE}: 1", f"{EXIT_CODE}: {exit_code}"))
        resolved += grade.resolved
        assert grade.reward == 0.0 and (not grade.resolved or "is reported as failed and" in grade.reasons[0])
    assert resolved >= 10, "else this would test nothing"


def test_unittests_headings_tell_failures_too(recorded: Recorded) -> None:
    """Django: the line of a test may be broken up by what it prints, the traceback's heading is whole."""
    row = recorded[0][0] | {
        "log_parser": "parse_log_django",
        "FAIL_TO_PASS": ["test_a (app.tests.T)"],
        "PASS_TO_PASS": ["test_b (app.tests.T)"],
    }
    ok = "test_a (app.tests.T) ... ok\ntest_b (app.tests.T) ... ok"
    passed = f"+ : '{START}'\n{ok}\n{{}}\n+ : '{END}'\n{EXIT_CODE}: 1\n"
    assert grade_log(row, "", passed.format("test_c (app.tests.T) ... FAIL")).reward == 1.0
    for heading in ("FAIL: test_a (app.tests.T)", "ERROR: test_b (app.tests.T) (i=1)", "test_a (app.tests.T) ... FAIL"):
        forged = passed.replace("{}", f"{heading}\n{ok}")
        grade = grade_log(row, "", forged)
        # The last one is not resolved for swebench either: nothing is reported as failed, and yet it ended with 1.
        assert grade.reward == 0.0 and grade.resolved == grade.tampered == (" ... " not in heading), heading


def test_results_outside_the_markers_are_not_believed(recorded: Recorded) -> None:
    """Nothing ran, yet it ended with 0: swebench then reads the whole log, and with it the agent's diff."""
    for row, log in empty(recorded):
        head, _, rest = log["log"].partition(f"+ : '{START}'\n")
        tail = rest[rest.index("+ SWEBENCH") :].replace(f"{EXIT_CODE}: 1", f"{EXIT_CODE}: 0")
        told = in_the_diff(head, "\r" + "\r".join(results(row))) + f"+ : '{START}'\n{tail}"
        grade = grade_log(row, "", told)
        assert grade.resolved and grade.tampered and grade.reasons[0] == "there are results outside the markers only"


def test_truncated_logs_are_not_resolved(recorded: Recorded) -> None:
    for row, log in recorded[1::8]:
        assert log["resolved"]
        for cut in (0, log["log"].index(START) - 1, log["log"].index(START) + 40, log["log"].index(END) - 1):
            grade = grade_log(row, row["patch"], log["log"][:cut])
            assert not grade.resolved and not grade.tampered and "it is not complete" in grade.reasons[0]
            assert (
                grade.fail_to_pass == (0, log["fail_to_pass"][0]) and sum(grade.pass_to_pass) == log["pass_to_pass"][0]
            )
        # Past the tests, what is missing is only what followed them.
        assert grade_log(row, row["patch"], log["log"][: log["log"].index(END) + len(END)]).resolved


def test_no_patch_no_results_and_failures_of_the_machine(recorded: Recorded) -> None:
    row, log = recorded[1]
    grade = grade_log(row, None, log["log"])
    assert not grade.resolved and grade.fail_to_pass == (0, 1) and grade.reasons == ()
    silent = f"+ : '{START}'\n{{}}\n+ : '{END}'\n{EXIT_CODE}: 1\n"
    grade = grade_log(row, "", silent.format("OSError: [Errno 12] Cannot allocate memory"))
    assert grade.infrastructure_failure and "swebench: out_of_memory" in grade.reasons and grade.reward == 0.0
    grade = grade_log(row, "", silent.format(""))
    assert not grade.infrastructure_failure and grade.reasons[0].startswith("the log has no results")
    assert grade.shares == (0.0, 0.0)


def test_logs_that_break_or_stall_the_parser_are_the_works_own_failure(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, _ = recorded[0]
    log = f"+ : '{START}'\n{{}}\n+ : '{END}'\n{EXIT_CODE}: 0\n"
    grade = grade_log(row | {"log_parser": "parse_log_django"}, "", log.format("FAIL:"))
    assert not grade.resolved and not grade.tampered and "swebench fails on the log: IndexError" in grade.reasons[0]
    # Quadratic patterns: the process is stopped by its CPU seconds and answers the next question.
    harness_process.close_harness()
    monkeypatch.setattr(harness_process, "CPU_SECONDS", 5.0)
    endless = log.format(" " * 4000 + ".py:" * 1000)
    grade = grade_log(row | {"log_parser": "parse_log_sympy"}, "", endless)
    assert "does not finish reading the log within 5 CPU seconds" in grade.reasons[0] and grade.reward == 0.0
    assert grade_log(row, "", log.format("PASSED x")).reasons == ()


def test_rows_that_cannot_be_graded(recorded: Recorded) -> None:
    row, log = recorded[0]
    with pytest.raises(TaskError, match="swebench has no log parser 'parse_log_nosuch'"):
        grade_log(row | {"log_parser": "parse_log_nosuch"}, "", log["log"])
    with pytest.raises(TaskError, match="no image"):
        grade_log(row | {"image": None}, "", log["log"])


def test_the_grader_may_die(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine does to the process is a GradingError; the next log is graded by a new one."""
    row, log = recorded[1]
    assert grade_log(row, row["patch"], log["log"]).resolved
    process = harness_process._harness._process
    assert process is not None
    timer = threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL))
    timer.start()
    slow = row | {"log_parser": "parse_log_sympy"}
    with pytest.raises(GradingError, match=r"the process that runs swebench's grading died"):
        grade_log(slow, "", f"+ : '{START}'\n{' ' * 4000 + '.py:' * 1000}\n+ : '{END}'\n")
    timer.join()
    assert grade_log(row, row["patch"], log["log"]).resolved


def test_threads_share_the_process(recorded: Recorded) -> None:
    wrong: list[str] = []

    def grade(row: dict[str, Any], log: dict[str, Any]) -> None:
        if grade_log(row, patch_of(row, log), log["log"]).resolved != log["resolved"]:
            wrong.append(row["instance_id"])

    threads = [threading.Thread(target=grade, args=pair) for pair in recorded[::3]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_importing_it_is_light_and_the_process_ends_with_its_parent(tmp_path: Any, recorded: Recorded) -> None:
    script = (
        "import json, sys\nfrom agentgym_rtmc.environments.swebench import grade_log, harness_process\n"
        "row, log = json.load(sys.stdin)\nprint(grade_log(row, '', log['log']).resolved)\n"
        "print(sorted({'swebench', 'docker', 'datasets', 'modal', 'pyarrow'} & set(sys.modules)))\n"
        "print(harness_process._harness._process.pid, flush=True)\nimport os; os._exit(0)"
    )
    # A folder of that name where the user happens to be must not stand in for the package.
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("raise RuntimeError('not the package')")
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(recorded[0]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    resolved, imported, pid = done.stdout.splitlines()
    assert (resolved, imported) == ("False", "[]"), done.stderr
    for _ in range(100):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            break
        threading.Event().wait(0.1)
    else:
        pytest.fail("the process outlived its parent")


def test_a_missing_package_is_named(recorded: Recorded) -> None:
    script = (
        "import json, sys\nfrom agentgym_rtmc.environments.swebench import harness\nimport io\n"
        "sys.modules['swebench'] = None\nout = io.StringIO()\n"
        "harness.serve(io.StringIO(sys.stdin.read()), out, 60.0)\nprint(out.getvalue())"
    )
    request = {"operation": "report", "instance": recorded[0][0], "patch": "", "log": ""}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert '"error": "missing", "name": "swebench' in done.stdout, done.stderr
