"""Which tests failed and passed, read from what a test runner printed: pytest, unittest, Django, sympy, tox.

Invariants: the result does not depend on durations, absolute paths, memory addresses, random seeds, terminal colours or
the order of the report, nor on how much the runner printed (dots or names). Of nested reports (a test that runs a test
runner) the last summary counts. Linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentgym_rtmc.episodes import Turn
from agentgym_rtmc.signatures.digests import short_digest

MAX_TEXT = 400_000
"""Of longer reports only the end is read."""


@dataclass(frozen=True)
class Outcomes:
    """What a test run said. `failed`: names of failed and broken tests; counts of all kinds."""

    failed: frozenset[str]
    counts: tuple[tuple[str, int], ...]

    def count(self, kind: str) -> int:
        """Number of tests of a kind: passed, failed, errors, skipped, xfailed, xpassed."""
        return dict(self.counts).get(kind, 0)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not (self.failed or self.count("failed") or self.count("errors"))

    @property
    def key(self) -> str:
        """A short key: failed and passed counts, and which tests failed."""
        bad = self.count("failed") + self.count("errors")
        names = f":{short_digest(sorted(self.failed), 6)}" if self.failed else ""
        return f"f{bad}p{self.count('passed')}{names}"


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PYTEST_SUMMARY = re.compile(
    r"^=*\s*((?:\d+ (?:failed|passed|skipped|deselected|xfailed|xpassed|errors?|warnings?|rerun|subtests passed)"
    r"(?:, )?)+)"
    r" in [\d.:]+\s?(?:s|seconds)\b.*$",
    re.MULTILINE,
)
_PYTEST_NONE = re.compile(r"^=*\s*no tests ran in [\d.:]+\s?(?:s|seconds)", re.MULTILINE)
_PYTEST_LINE = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
_PYTEST_VERBOSE = re.compile(r"^(\S+::\S.*?) (?:FAILED|ERROR)\s*(?:\[ *\d+%\])?$", re.MULTILINE)
_HEADING = re.compile(r"^_{3,} (?:ERROR at \w+ of )?(\S.*?) _{3,}$", re.MULTILINE)
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s\s*$", re.MULTILINE)
_UNITTEST_RESULT = re.compile(r"^(OK|FAILED|NO TESTS RAN)(?: \(([^)]*)\))?\s*$", re.MULTILINE)
_UNITTEST_HEADING = re.compile(r"^(?:FAIL|ERROR): (\S+)(?: \(([\w.]+)\))?.*$", re.MULTILINE)
_SYMPY_SUMMARY = re.compile(r"^=*\s*tests finished: ([\w ,\n]{1,300}?),?\s+in [\d.]+ seconds\b", re.MULTILINE)
_SYMPY_HEADING = re.compile(r"^_+ (\S+\.py:\w+) _+$", re.MULTILINE)
_SYMPY_VERBOSE = re.compile(r"^(test_\w+) (?:f|F|E)\b", re.MULTILINE)
_TOX = re.compile(r"^(?:\s*(?:ERROR: +)?([\w.-]+): (OK|FAIL|commands succeeded|commands failed).*)$", re.MULTILINE)
_DOCTEST = re.compile(r"^\*\*\*Test Failed\*\*\* (\d+) failures?\.", re.MULTILINE)


def read_outcomes(text: str) -> Outcomes | None:
    """Read a runner's report; None where the text is none.

    >>> read_outcomes("FAILED t.py::test_a - assert 0\\n==== 1 failed, 2 passed in 0.12s ====").key[:4]
    'f1p2'
    """
    text = _ANSI.sub("", text[-MAX_TEXT:].replace("\r\n", "\n"))
    for reader in (_sympy, _pytest, _unittest, _tox, _doctest):
        found = reader(text)
        if found is not None:
            return found
    return None


def _name(text: str) -> str:
    text = re.sub(r"0x[0-9a-fA-F]+", "0x", text.strip())
    return text.rpartition("/")[2] if text.startswith("/") else text.removeprefix("./")


def _counted(text: str) -> dict[str, int]:
    kinds = {"error": "errors", "exceptions": "errors", "exception": "errors", "expected to fail": "xfailed"}
    counts: dict[str, int] = {}
    for number, kind in re.findall(r"(\d+) ([a-z][a-z ]*)", text):
        kind = kinds.get(kind.strip(), kind.strip())
        if kind in ("passed", "failed", "errors", "skipped", "xfailed", "xpassed"):
            counts[kind] = counts.get(kind, 0) + int(number)
    return counts


def _outcomes(failed: set[str], counts: dict[str, int]) -> Outcomes:
    return Outcomes(frozenset(map(_name, failed)), tuple(sorted((k, n) for k, n in counts.items() if n)))


def _last(summary: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, int]:
    """The last summary, and where its report begins: behind the one before it."""
    begin, last = 0, None
    for match in summary.finditer(text):
        begin, last = last.end() if last is not None else 0, match
    return last, begin


def _pytest(text: str) -> Outcomes | None:
    last, begin = _last(_PYTEST_SUMMARY, text)
    if last is None:
        return Outcomes(frozenset(), ()) if _PYTEST_NONE.search(text) else None
    counts = _counted(last.group(1))
    # The names stand between the last "short test summary" and the final line.
    start = text.rfind("short test summary info", begin, last.start())
    failed: set[str] = set()
    if start >= 0:
        failed = {m.group(1) for m in _PYTEST_LINE.finditer(text, start, last.start())}
    if not failed and (counts.get("failed") or counts.get("errors")):
        failed = {m.group(1) for m in _PYTEST_LINE.finditer(text, begin, last.start())}
        failed = failed or {m.group(1) for m in _PYTEST_VERBOSE.finditer(text, begin, last.start())}
        failed = failed or {m.group(1) for m in _HEADING.finditer(text, begin, last.start())}
    return _outcomes(failed, counts)


def _unittest(text: str) -> Outcomes | None:
    last, begin = _last(_UNITTEST_RAN, text)
    if last is None:
        return None
    result = _UNITTEST_RESULT.search(text, last.end())
    details = dict(re.findall(r"([a-z ]+)=(\d+)", (result.group(2) or "") if result else ""))
    number = {name.strip(): int(count) for name, count in details.items()}
    counts = {
        "failed": number.get("failures", 0) + number.get("unexpected successes", 0),
        "errors": number.get("errors", 0),
        "skipped": number.get("skipped", 0),
        "xfailed": number.get("expected failures", 0),
    }
    counts["passed"] = max(0, int(last.group(1)) - sum(counts.values()))
    failed: set[str] = set()
    for match in _UNITTEST_HEADING.finditer(text, begin, last.start()):
        test, where = match.group(1), match.group(2) or ""
        # Newer Pythons repeat the method behind its class.
        failed.add(f"{where.removesuffix('.' + test)}.{test}" if where else test)
    return _outcomes(failed, counts)


def _sympy(text: str) -> Outcomes | None:
    last, begin = _last(_SYMPY_SUMMARY, text)
    if last is None:
        return None
    counts = _counted(last.group(1))
    failed = {m.group(1) for m in _SYMPY_HEADING.finditer(text, begin, last.start())}
    bad = counts.get("failed", 0) + counts.get("errors", 0)
    if not failed and bad:
        failed = {m.group(1) for m in _SYMPY_VERBOSE.finditer(text, begin, last.start()) if m.group(0)[-1] in "FE"}
    return _outcomes(failed, counts)


def _tox(text: str) -> Outcomes | None:
    found = {m.group(1): m.group(2) in ("OK", "commands succeeded") for m in _TOX.finditer(text)}
    found = {name: ok for name, ok in found.items() if re.match(r"py|lint|docs|flake|mypy|[a-z]+\d", name)}
    if not found:
        return None
    failed = {name for name, ok in found.items() if not ok}
    return _outcomes(failed, {"failed": len(failed), "passed": len(found) - len(failed)})


def _doctest(text: str) -> Outcomes | None:
    found = _DOCTEST.search(text)
    return None if found is None else _outcomes(set(), {"failed": int(found.group(1))})


def outcome_key(turn: Turn) -> str:
    """The key of a turn's test outcome: from `info["tests"]` where given, else read from the observation, else ""."""
    given: Any = turn.info.get("tests")
    if given is not None:
        return _given_key(given)
    found = read_outcomes(turn.observation)
    return found.key if found is not None else ""


def _given_key(given: Any) -> str:
    if isinstance(given, dict):
        failed, passed = given.get("failed"), given.get("passed")
        if isinstance(failed, list) and isinstance(passed, list):
            names = frozenset(map(str, failed))
            return Outcomes(names, (("failed", len(failed)), ("passed", len(passed)))).key
        if isinstance(failed, int) and isinstance(passed, int) and set(given) == {"failed", "passed"}:
            return Outcomes(frozenset(), (("failed", failed), ("passed", passed))).key
    return short_digest(given, 8)
