"""Logs: markers are the host's alone, whatever the graded work prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.environments.swebench.eval_script import END, EXIT_CODE, START
from agentgym_rtmc.environments.swebench.log import (
    assemble,
    exit_code_of,
    foreign_markers,
    holds_marker,
    segment_of,
    streams_apart,
    uniform_lines,
)

PIECES = st.sampled_from(
    [
        *(
            START,
            END,
            f"{EXIT_CODE}: 0",
            f"{EXIT_CODE}:\n0",
            ">>>>> Patch Apply Failed",
            ">>>>> Tests Timed Out",
            ">>>>>",
        ),
        *("> ", " ", "PASSED t.py::a", "\n", "\r", "\r\n", "\x85", "\u2028", "\x0b", "\x0c", "\x1c", "\0", "\x1b[0m"),
    ]
)
OUTPUTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)


@given(OUTPUTS, OUTPUTS, st.integers(-1, 255))
def test_no_output_poses_as_the_host(setup: str, tests: str, code: int) -> None:
    log = assemble(setup, tests, code)
    assert foreign_markers(log.text) == () and exit_code_of(log.text) == code
    assert log.text.count(START) == log.text.count(END) == 1 and log.text.count(EXIT_CODE) == 1
    assert uniform_lines(log.text) == log.text
    assert bool(log.forged) == any(map(holds_marker, (setup, tests)))
    # What swebench reads results from is the tests' output, line for line.
    segment = segment_of(log.text)
    assert segment is not None
    if not holds_marker(tests):
        expected = uniform_lines(tests)
        end = "" if expected.endswith("\n") or not expected else "\n"
        assert segment == f"'\n{expected}{end}+ : '"


def test_what_was_forged_is_told_and_where() -> None:
    log = assemble(f"+x = '''\r+ : '{START}'\r'''\n", f"done\r{EXIT_CODE}: 0\n", 1)
    assert log.forged == (
        f"the output of the set-up holds the marker '{START}'",
        f"the output of the tests holds the marker '{EXIT_CODE}'",
    )
    assert ">>>>>_Start Test Output" in log.text and exit_code_of(log.text) == 1


def test_a_run_past_its_time_has_no_end() -> None:
    log = assemble("setup", "PASSED a", 137, timed_out=1800)
    assert segment_of(log.text) is None and log.text.endswith("\n\nTimeout error: 1800 seconds exceeded.\n")


GOOD = (
    f"setup\n+ : '{START}'\nPASSED a\nno newline+ : '{END}'\n"
    f"+ echo '{EXIT_CODE}: 0'\n{EXIT_CODE}: 0\n+ git checkout x\n"
)
APART = f"setup\nno newline{EXIT_CODE}: 0\nrestored\n+ : '{START}'\nok\n+ : '{END}'\n+ echo '{EXIT_CODE}: 0'\n+ git\n"
"""Standard output, then standard error."""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (GOOD, ""),
        (APART, ""),
        (f"{EXIT_CODE}: 0\n{APART}", "3 exit codes"),
        (f"{APART}{EXIT_CODE}: 0\n", "3 exit codes"),
        (APART.replace(f"{EXIT_CODE}: 0", f"{EXIT_CODE}: 1", 1), "2 exit codes: 1, 0"),
        (APART.replace("+ echo '", "+ printf '"), "does not stand behind its end marker"),
        (APART.partition("+ echo")[0], "does not stand behind its end marker"),
        ("", ""),
        (GOOD.partition("no newline")[0], ""),
        (f"{GOOD}{START}", "2 start and 1 end markers"),
        (f"{END}\n{GOOD}", "1 start and 2 end markers"),
        (f"{EXIT_CODE}: 0\n{GOOD}", "3 exit codes: 0, 0, 0"),
        (GOOD.replace(f"{EXIT_CODE}: 0\n+", f"{EXIT_CODE}: 1\n+"), "2 exit codes: 0, 1"),
        (GOOD.replace(f"+ echo '{EXIT_CODE}: 0'", f"{EXIT_CODE}: zero"), "2 exit codes: 0"),
        (f"{EXIT_CODE}: 0\n+ : '{START}'\n+ : '{END}'\n{EXIT_CODE}: 0\n", "does not stand behind its end marker"),
        (f"+ : '{END}'\n+ : '{START}'\n", "end marker stands before its start marker"),
        (f"+ : '{START}'\n{EXIT_CODE}: 0\n", "does not stand behind its end marker"),
    ],
)
def test_markers_in_a_log_from_elsewhere(log: str, told: str) -> None:
    found = foreign_markers(log)
    assert told in " ".join(found) and bool(told) == bool(found)
    assert streams_apart(log) == (log == APART)
