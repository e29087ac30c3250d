"""Canaries: two tests of random name that run among the graded ones, one that must pass and one that must fail.

Product code runs in the tests' process and can patch the runner, so that everything is reported as passed, or print
the lines of a run that never was. It does not know the canaries: whoever makes all tests pass makes the wrong one
pass.

Kinds, by the command of the evaluation script:

- `pytest` (also `python -m pytest`, and sphinx's `tox … --`): a file beside a graded test file, put behind the others.
- `django` (`tests/runtests.py`): a module in the package of a graded label, as one more label where there are any.
- `sympy` (`bin/test`): a file beside the last graded one, put behind the others.
- `none`: several commands or pipes, and every other runner; nothing is added and nothing can be told.

Invariants: the canaries change nothing else about the run. For the official verdict their lines are taken out of the
log again, and the exit code is what it would have been without the failing one where that is sure, else as it was.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_rtmc.environments.swebench.eval_script import EvalScript
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

Kind = Literal["pytest", "django", "sympy", "none"]
Outcome = Literal["right", "wrong", "missing"]

_SHELL = re.compile(r"[|;&<>`$()\n]")
# Packages of Django's own tests that are skipped without their database.
_NEEDS_A_DATABASE = frozenset({"postgres_tests", "gis_tests", "runtests"})
_PASSED, _FAILED = {"PASSED"}, {"FAILED", "ERROR"}


@dataclass(frozen=True)
class Canaries:
    """`path` (from the repository's root) gets `contents`; `commands` are the tests with the canaries among them."""

    kind: Kind
    commands: tuple[str, ...]
    path: str = ""
    contents: str = ""
    must_pass: str = ""
    must_fail: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What every line that speaks of a canary holds one of."""
        return (self.must_pass, self.must_fail, self._stem) if self.kind != "none" else ()

    @property
    def _stem(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")


@dataclass(frozen=True)
class CanaryReading:
    """How the canaries fared."""

    must_pass: Outcome
    must_fail: Outcome

    @property
    def right(self) -> bool:
        """Whether both are reported as they must be."""
        return self.must_pass == self.must_fail == "right"


def plan_canaries(row: SWEBenchRow, script: EvalScript) -> Canaries:
    """Make canaries for a grading, new ones at every call. They run after the graded tests as far as runners allow."""
    kind, arguments = _kind_of(_words(script.commands))
    place = _PLACES[kind](row, arguments) if kind != "none" else None
    if place is None:
        return Canaries("none", script.commands)
    must_pass, must_fail = (f"test_{secrets.token_hex(6)}" for _ in range(2))
    path, argument = place
    command = f"{script.commands[0].rstrip()} {argument}".rstrip()
    return Canaries(kind, (command,), path, _CONTENTS[kind](must_pass, must_fail), must_pass, must_fail)


def _words(commands: Sequence[str]) -> list[str]:
    """The words of a script's only command, without assignments before it; none for what the shell does more with."""
    if len(commands) != 1:
        return []
    try:
        words = shlex.split(commands[0])
    except ValueError:
        return []
    if _SHELL.search(re.sub(r"'[^']*'", "", commands[0])):
        return []
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        del words[0]
    return words


def _kind_of(words: list[str]) -> tuple[Kind, list[str]]:
    """The kind of a command and what follows the program."""
    if not words:
        return "none", []
    program = words[0].removeprefix("./")
    if program == "pytest" or words[:3] in (["python", "-m", "pytest"], ["python3", "-m", "pytest"]):
        return "pytest", words[1:]
    if program == "tox" and "--" in words:
        return "pytest", words[words.index("--") + 1 :]
    if program == "tests/runtests.py":
        return "django", words[1:]
    return ("sympy", words[1:]) if program == "bin/test" else ("none", [])


Place = tuple[str, str]
"""A canary file's path from the repository's root, and the word that is put behind the command ("" for none)."""


def _beside_a_graded_file(row: SWEBenchRow, arguments: Sequence[str]) -> Place | None:
    """For pytest, which runs files as they are given."""
    files = _files(arguments)
    graded = [test.partition("::")[0] for test in (*row.fail_to_pass, *row.pass_to_pass)]
    for file in (*(file for file in graded if file in files), *files):
        path = f"{file.rpartition('/')[0]}/".removeprefix("/") + f"test_{secrets.token_hex(6)}.py"
        return path, shlex.quote(path)
    return None


def _behind_the_last_file(row: SWEBenchRow, arguments: Sequence[str]) -> Place | None:
    """For sympy, which sorts files by name."""
    files = _files(arguments)
    if not files:
        return None
    path = f"{max(files).removesuffix('.py')}_{secrets.token_hex(6)}.py"
    return path, shlex.quote(path)


def _files(arguments: Sequence[str]) -> list[str]:
    return [
        argument for argument in arguments if argument.endswith(".py") and not argument.startswith(("-", "/", ".."))
    ]


def _in_a_graded_package(row: SWEBenchRow, arguments: Sequence[str]) -> Place | None:
    """For Django: in the top package of a label, where FAIL_TO_PASS names one that; without labels all is run."""
    labels = [argument for argument in arguments if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", argument)]
    tops = [label.partition(".")[0] for label in labels]
    graded = [match[1] for test in row.fail_to_pass if (match := re.search(r"\((\w+)\.", test))]
    candidates = [top for top in graded if top in tops or not tops] + tops
    for top in candidates:
        if top not in _NEEDS_A_DATABASE:
            name = f"test_{secrets.token_hex(6)}"
            return f"tests/{top}/{name}.py", f"{top}.{name}" if labels else ""
    return None


_PLACES = {"pytest": _beside_a_graded_file, "sympy": _behind_the_last_file, "django": _in_a_graded_package}


def _numbers() -> tuple[int, int]:
    return secrets.randbelow(900) + 100, secrets.randbelow(900) + 100


def _pytest_contents(must_pass: str, must_fail: str) -> str:
    a, b = _numbers()
    return (
        f"def {must_fail}():\n    assert sorted([{a}, {b}]) == [{a + b}]\n\n\n"
        f"def {must_pass}():\n    assert {a} + {b} == {a + b}\n"
    )


def _sympy_contents(must_pass: str, must_fail: str) -> str:
    # The result of a file's last test is not on a line of its own: another one takes that place.
    return f"{_pytest_contents(must_pass, must_fail)}\n\ndef {must_pass}_end():\n    pass\n"


def _django_contents(must_pass: str, must_fail: str) -> str:
    a, b = _numbers()
    return (
        "from django.test import SimpleTestCase\n\n\n"
        f"class Test{secrets.token_hex(3)}(SimpleTestCase):\n"
        f"    def {must_fail}(self):\n        self.assertEqual({a} + {b}, {a + b + 1})\n\n"
        f"    def {must_pass}(self):\n        self.assertEqual({a} + {b}, {a + b})\n"
    )


_CONTENTS = {"pytest": _pytest_contents, "sympy": _sympy_contents, "django": _django_contents}


def read_canaries(canaries: Canaries, named: dict[str, list[str]]) -> CanaryReading:
    """Tell how the canaries fared from the outcomes of the tests that bear their names (`inspect_segment`)."""

    def outcome(name: str, expected: set[str]) -> Outcome:
        found = set(named.get(name, ()))
        return "missing" if not found else "right" if found <= expected else "wrong"

    return CanaryReading(outcome(canaries.must_pass, _PASSED), outcome(canaries.must_fail, _FAILED))


def without_canaries(canaries: Canaries, segment: str, exit_code: int, seen: dict[str, Any]) -> tuple[str, int]:
    """Return the tests' output and exit code as they would have been without the canaries.

    `seen` is what `inspect_segment` read of the output. Where the failing canary is all that any line reports as
    failed, the runner's 1 ("some tests failed") is due to it; every other code, and a 1 with more failures, stays.
    """
    if canaries.kind == "none":
        return segment, exit_code
    kept = [line for line in segment.split("\n") if not any(name in line for name in canaries.names)]
    ours = exit_code == 1 and not seen["failing"] and read_canaries(canaries, seen["named"]).must_fail == "right"
    return "\n".join(kept), 0 if ours else exit_code
