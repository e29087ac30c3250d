"""Runs test functions without pytest, and stands in for the little of pytest that such tests use.

Invariants: standard library only. Agents get it beside their visible tests, and it runs inside sandboxes with hidden
ones. Known: functions `test*`, methods `test*` of classes `Test*` and of unittest's; of pytest `approx`, `raises`,
`skip` and `mark.parametrize`. Other marks do nothing. A test that skips itself passes.
"""

from __future__ import annotations

import sys
import types
from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


class SkippedError(Exception):
    """A test does not want to run."""


class Approx:
    """Equal to what is near: a number within the tolerance, or a list, tuple or dict of such numbers."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        want: Any = self.expected
        if isinstance(want, dict):
            return {key: self._with(part) for key, part in want.items()} == other
        if isinstance(want, (list, tuple)):
            return isinstance(other, (list, tuple)) and [self._with(part) for part in want] == list(other)
        if not isinstance(want, (int, float)) or not isinstance(other, (int, float)):
            return bool(want == other)
        if abs(want) == float("inf"):
            return want == other
        relative = self.rel if self.rel is not None else 1e-6 if self.abs is None else 0.0
        absolute = 1e-12 if self.abs is None else self.abs
        return want == other or abs(want - other) <= max(relative * abs(want), absolute)

    def _with(self, part: Any) -> Approx:
        return Approx(part, self.rel, self.abs)

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"


class Raises:
    """`with raises(ValueError):` fails unless the block raises one."""

    def __init__(self, *expected: Any, **options: Any) -> None:
        self.expected = expected

    def __enter__(self) -> Raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            raise AssertionError(f"did not raise {self.expected[0]}")
        return isinstance(error, self.expected)


class Mark:
    """`mark.parametrize` runs a test once a row; any other mark does nothing."""

    @staticmethod
    def parametrize(names: Any, rows: Any, **options: Any) -> Callable[[Any], Any]:
        """Add one factor of rows."""
        keys = names.replace(",", " ").split() if isinstance(names, str) else list(names)
        single = isinstance(names, str) and len(keys) == 1
        cases = [dict(zip(keys, [row] if single else row, strict=True)) for row in rows]

        def mark(test: Any) -> Any:
            test.rows = [*getattr(test, "rows", []), cases]
            return test

        return mark

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: given[0] if given and callable(given[0]) else lambda test: test


def skip(reason: str = "") -> None:
    """End a test here."""
    raise SkippedError(reason)


def stand_in() -> types.ModuleType:
    """Return a module to be used as `pytest`."""
    module = types.ModuleType("pytest")
    module.__dict__.update(approx=Approx, raises=Raises, mark=Mark(), skip=skip)
    return module


def collect(names: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return all tests among some names, as functions without arguments, in the order of the names."""
    tests: dict[str, Callable[[], Any]] = {}
    for name, thing in names.items():
        if isinstance(thing, types.FunctionType) and name.startswith("test"):
            tests.update(_rows(name, thing, thing))
        elif isinstance(thing, type) and hasattr(thing, "assertEqual"):
            tests.update((f"{name}.{method}", thing(method).debug) for method in _methods(thing))
        elif isinstance(thing, type) and name.startswith("Test"):
            for method in _methods(thing):
                tests.update(_rows(f"{name}.{method}", getattr(thing, method), _on_new(thing, method)))
    return tests


def _methods(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("test")]


def _on_new(kind: type, method: str) -> Callable[..., Any]:
    return lambda **arguments: getattr(kind(), method)(**arguments)


def _rows(name: str, function: Any, call: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    rows = [
        {key: part for row in chosen for key, part in row.items()} for chosen in product(*getattr(function, "rows", []))
    ]
    return {f"{name}[{number}]" if row else name: _with(call, row) for number, row in enumerate(rows)}


def _with(call: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    def test() -> None:
        try:
            call(**arguments)
        except SkippedError:
            return

    return test


# -- visible tests, for an agent: `python t.py` prints one line ------------------------------------------------------

SECONDS = 2
"""Most that loading the program, or one test, may take."""
_broken = ""


def names_of(module: str) -> dict[str, Any]:
    """Import the program and return its names; what goes wrong is told by `run`."""
    global _broken
    sys.dont_write_bytecode = True
    sys.modules.setdefault("pytest", stand_in())
    program, _broken = _outcome(lambda: vars(__import__(module)))
    return {name: thing for name, thing in (program or {}).items() if not name.startswith("__")}


def run(names: dict[str, Any]) -> None:
    """Run the tests among `names`, print how many pass and what the first other one says, and leave."""
    tests = collect({name: thing for name, thing in names.items() if getattr(thing, "__module__", "") == "__main__"})
    outcomes = [_broken] * len(tests) if _broken else [_outcome(test)[1] for test in tests.values()]
    wrong = [outcome for outcome in outcomes if outcome]
    score = f"{len(tests) - len(wrong)}/{len(tests)}"
    detail = [] if "-q" in sys.argv[1:] else wrong[:1]
    print(score, "FAIL" if wrong else "PASS" if tests else "there are no examples", *detail)
    sys.exit(bool(wrong))


def _outcome(test: Callable[[], Any]) -> tuple[Any, str]:
    """Call a function within the time limit; return its result and, if it failed, why in one line."""
    import signal

    def late(*_: Any) -> None:
        raise TimeoutError("endless loop")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        return test(), ""
    except BaseException as error:  # noqa: BLE001  (a test fails by raising anything)
        signal.alarm(0)
        return None, " ".join(_explain(error).split())[:200]
    finally:
        signal.alarm(0)


def _explain(error: BaseException) -> str:
    """Say which assertion of the tests failed and what was got, else what was raised."""
    import ast
    import traceback

    said = f"{type(error).__name__}: {error}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__") != "__main__":
            continue
        with open(frame.f_code.co_filename) as file:  # noqa: PTH123
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
                return f"{ast.unparse(node.test)}{_got(error, node.test, frame) or f': {said}'}"
    return said


def _got(error: BaseException, test: Any, frame: types.FrameType) -> str:
    import ast

    if not isinstance(error, AssertionError) or not isinstance(test, ast.Compare):
        return " does not hold" if isinstance(error, AssertionError) else ""
    left = compile(ast.Expression(test.left), "t.py", "eval")
    return f", got {eval(left, frame.f_globals, frame.f_locals)!r}"
