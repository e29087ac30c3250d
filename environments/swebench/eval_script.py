"""The official evaluation script in two parts: set-up, and the tests alone.

Official scripts print the agent's diff and run its installation before they print the marker that starts the tests,
all into one log. Run as two commands, the host knows what belongs to the tests and writes the markers itself
(`log.py`).

Invariants: nothing is left out but the lines that restore the graded files after the tests, which nothing follows. The
tests start in the state the set-up had reached: its `source`, `conda`, `cd`, `export` and `set` lines are run again. A
script whose state cannot be told that way (loops, functions, conditions) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentgym_rtmc.errors import TaskError

START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
_SHEBANG, _SET = "#!/bin/bash", "set -uxo pipefail"
_EXIT_VARIABLE = "SWEBENCH_TEST_EXIT_CODE=$?"
_HEREDOC = re.compile(r"(?<!<)<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_STATE = frozenset({"source", ".", "conda", "mamba", "cd", "export", "unset", "set", "shopt", "ulimit", "umask", "nvm"})
_CONTROL = frozenset({"if", "for", "while", "until", "case", "function", "select", "{", "(", "eval", "exec", "trap"})
_WORD = r"""(?:[^\s'"\\;|&<>]|\\.|'[^']*'|"(?:\\.|[^"\\])*")*"""
_ASSIGNMENTS = re.compile(rf"[A-Za-z_]\w*={_WORD}(\s+[A-Za-z_]\w*={_WORD})*")


@dataclass(frozen=True)
class EvalScript:
    """A script in parts. `setup` is a whole script; `state` and `commands` are lines, the tests being `commands`."""

    setup: str
    state: tuple[str, ...]
    commands: tuple[str, ...]

    def tests(self, commands: Sequence[str] | None = None) -> str:
        """The script that runs the tests (or `commands` in their place) and ends with their exit code."""
        # Traced from here on, as the official log is; what activates the environment has been traced before.
        lines = [
            _SHEBANG,
            "set -uo pipefail",
            *self.state,
            "set -x",
            *(self.commands if commands is None else commands),
        ]
        return "\n".join(lines) + "\n"


def split_script(script: str, where: str) -> EvalScript:
    """Split a row's script, or the one that swebench makes of it. Raises TaskError naming `where` (the instance)."""
    lines = list(_logical_lines(script))
    starts = [number for number, line in enumerate(lines) if _is_marker(line, START)]
    ends = [number for number, line in enumerate(lines) if _is_marker(line, END)]
    if len(starts) != 1 or len(ends) != 1 or starts[0] > ends[0]:
        raise TaskError(
            f"{where}: the evaluation script has {len(starts)} start and {len(ends)} end markers; one of each is due"
        )
    head = [line for line in lines[: starts[0]] if line not in (_SHEBANG, _SET)]
    commands = [line for line in lines[starts[0] + 1 : ends[0]] if line.strip() and line != _EXIT_VARIABLE]
    if not commands:
        raise TaskError(f"{where}: the evaluation script runs nothing between its markers")
    state = [part for line in head for part in _state_of(line, where)]
    setup = "\n".join([_SHEBANG, _SET, *head]) + "\n"
    return EvalScript(setup, tuple(state), tuple(commands))


def _is_marker(line: str, marker: str) -> bool:
    return line.strip() in (f": '{marker}'", f': "{marker}"', f"echo '{marker}'", f'echo "{marker}"')


def _logical_lines(script: str) -> Iterator[str]:
    """Lines with their continuations and here-documents, so that text in a test patch is never taken for a command."""
    lines = iter(script.strip("\n").split("\n"))
    for line in lines:
        while line.endswith("\\") and (more := next(lines, None)) is not None:
            line = f"{line}\n{more}"
        for match in _HEREDOC.finditer(line):
            body = next(lines, None)
            while body is not None:
                line = f"{line}\n{body}"
                if body.strip("\t") == match[2]:
                    break
                body = next(lines, None)
        yield line


def _state_of(line: str, where: str) -> Iterator[str]:
    """The parts of a line that change the shell's own state. Raises TaskError for what cannot be taken apart."""
    if "\n" in line:
        return
    for part in _parts(line, where):
        words = part.split()
        if words and words[0] in _CONTROL:
            raise TaskError(
                f"{where}: the evaluation script has {words[0]!r} in its set-up; it cannot be run in two parts"
            )
        if words and (words[0] in _STATE or _ASSIGNMENTS.fullmatch(part)):
            yield part


def _parts(line: str, where: str) -> list[str]:
    """Split a line at `;` and `&&` outside quotes."""
    parts, quote, at = [""], "", 0
    while at < len(line):
        if line[at] == "\\" and quote != "'":
            parts[-1] += line[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if line[at] == quote else quote
        elif line[at] in "'\"":
            quote = line[at]
        elif line[at] == ";" or line.startswith("&&", at):
            parts.append("")
            at += 1 if line[at] == ";" else 2
            continue
        parts[-1] += line[at]
        at += 1
    if quote:
        raise TaskError(f"{where}: the evaluation script has the line {line!r}, in which a quote is not closed")
    return [part.strip() for part in parts]
