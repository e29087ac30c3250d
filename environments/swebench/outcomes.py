"""What a test runner's own summary says, read from a command's output. Advisory: an agent can print what it likes."""

from __future__ import annotations

import re

from pydantic import JsonValue

_PYTEST = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|xfailed|xpassed)\b")
_UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\s*\n?^(OK|FAILED)(?: \((.*)\))?", re.MULTILINE)
_BAD = re.compile(r"(?:failures|errors)=(\d+)")


def read_outcomes(output: str) -> JsonValue:
    """The last summary of pytest or unittest in a text; None where there is none.

    >>> read_outcomes("=== 1 failed, 3 passed, 1 skipped in 0.12s ===")
    {'passed': 3, 'total': 4}
    >>> read_outcomes("Ran 5 tests in 0.001s\\n\\nFAILED (failures=1, errors=1)")
    {'passed': 3, 'total': 5}
    """
    pytest, unittest = list(_PYTEST.finditer(output)), list(_UNITTEST.finditer(output))
    if pytest and (not unittest or pytest[-1].start() > unittest[-1].start()):
        counts: dict[str, int] = {}
        for number, word in _COUNT.findall(pytest[-1][1]):
            counts[word] = counts.get(word, 0) + int(number[:9])
        passed = counts.get("passed", 0) + counts.get("xfailed", 0)
        return {"passed": passed, "total": sum(counts.values())}
    if unittest:
        total = int(unittest[-1][1][:9])
        bad = sum(int(number[:9]) for number in _BAD.findall(unittest[-1][3] or ""))
        return {"passed": max(0, total - bad), "total": total}
    return None
