"""The log of a grading: written from two commands' output, or checked when it comes from elsewhere.

swebench reads a log with universal newlines, takes the text between the first start and the first end marker, and the
first exit code. Everything in the log that an agent can influence could therefore pose as a marker.

Invariants: what is checked is what swebench will read: line ends are made uniform first. In a log made here each
marker is the host's; one found in the output of the agent's code is made harmless and told. In a log from elsewhere
more markers than an official run prints, or in another order, are told. The official run has two forms: both streams
in one, or one after the other (`streams_apart`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym_rtmc.environments.swebench.eval_script import END, EXIT_CODE, START

_VERDICTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
"""Further texts that swebench looks for: each ends the grading at once, as not resolved."""
_MARKER = re.compile("|".join(map(re.escape, (START, END, EXIT_CODE, *_VERDICTS))))
_CODE = re.compile(rf"{re.escape(EXIT_CODE)}:\s*(-?\d+)")


@dataclass(frozen=True)
class RunLog:
    """A log for swebench, and what in it the host did not write (empty: nothing)."""

    text: str
    forged: tuple[str, ...] = ()


def uniform_lines(text: str) -> str:
    """Make every end of a line a newline, as reading in text mode does.

    >>> uniform_lines("a\\r\\nb\\rc\\n")
    'a\\nb\\nc\\n'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def assemble(setup: str, tests: str, exit_code: int, timed_out: float | None = None) -> RunLog:
    """Write the log of a run: the output of both commands, and the host's markers and exit code around the second.

    `timed_out` are the seconds after which the tests were killed: such a log has no end, as officially.
    """
    forged: list[str] = []
    setup, tests = (_harmless(text, where, forged) for text, where in ((setup, "set-up"), (tests, "tests")))
    parts = [setup, f"+ : '{START}'\n", tests]
    if timed_out is None:
        parts += [f"+ : '{END}'\n", f"{EXIT_CODE}: {exit_code}\n"]
    else:
        parts.append(f"\n\nTimeout error: {timed_out:g} seconds exceeded.\n")
    return RunLog("".join(parts), tuple(forged))


def _harmless(text: str, where: str, forged: list[str]) -> str:
    text = uniform_lines(text)
    found = sorted({match[0] for match in _MARKER.finditer(text)})
    forged += [f"the output of the {where} holds the marker {marker!r}" for marker in found]
    text = _MARKER.sub(lambda match: match[0].replace(">>>>> ", ">>>>>_", 1), text)
    return text if text.endswith("\n") or not text else f"{text}\n"


def foreign_markers(log: str) -> tuple[str, ...]:
    """Say what an official run would not have printed; `log` has uniform lines. Empty: nothing.

    A marker may stand behind the unfinished last line of the tests' output, so only number and order tell.
    """
    starts, ends, codes = (list(re.finditer(re.escape(one), log)) for one in (START, END, EXIT_CODE))
    values = [match[1] for match in _CODE.finditer(log)]
    told = []
    if len(starts) > 1 or len(ends) > 1:
        told.append(f"the log has {len(starts)} start and {len(ends)} end markers")
    if starts and ends and starts[0].start() > ends[0].start():
        told.append("the log's end marker stands before its start marker")
    # Officially twice: in the shell's trace of `echo`, and printed by it.
    if len(codes) > 2 or len(set(values)) > 1 or len(values) < len(codes):
        told.append(f"the log has {len(codes)} exit codes: {', '.join(values) or 'none of them a number'}")
    if codes and (not ends or codes[0].start() < ends[0].start()) and not streams_apart(log):
        told.append("the log's exit code does not stand behind its end marker")
    return tuple(told)


def streams_apart(log: str) -> bool:
    """Whether all of standard output stands before standard error, as swebench's runner on Modal puts them together.

    `log` has uniform lines. The shell traces to standard error, so both markers and the trace of the exit code stand
    behind the code that was printed. A run with both streams in one cannot look so: it would print the code once more.
    """
    starts, ends, codes = (list(re.finditer(re.escape(one), log)) for one in (START, END, EXIT_CODE))
    if (len(starts), len(ends), len(codes)) != (1, 1, 2):
        return False
    in_order = codes[0].start() < starts[0].start() < ends[0].start() < codes[1].start()
    return in_order and log.endswith("+ echo '", 0, codes[1].start()) and len(set(_CODE.findall(log))) == 1


def holds_marker(text: str) -> bool:
    """Whether a text, such as a patch, spells one of the markers."""
    return _MARKER.search(uniform_lines(text)) is not None


def exit_code_of(log: str) -> int | None:
    """The exit code that swebench reads from a log, None if there is none."""
    match = _CODE.search(log)
    return int(match[1]) if match else None


def segment_of(log: str) -> str | None:
    """The part of a log that swebench reads results from, None for an incomplete log."""
    if START not in log or END not in log:
        return None
    return log.split(START)[1].split(END)[0]
