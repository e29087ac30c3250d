"""Runs tests whose calls to the program are answered from elsewhere. Runs inside a sandbox of its own.

The program under test is *not* here. Where the tests call it, this process writes the call down and takes the answer
from a list that was brought along, so that all that is compared is plain data (`objects.py`) and all that runs here is
trusted: the tests and the reference program, which lends its helper functions. Where the list ends, or was made for
other calls, the reference answers in place of the program, so that the calls after it can be written down as well; then
there is no verdict yet, and the caller asks the program and comes again.

Standard input is JSON: {"modules": {name: text}, "reference": text, "entry": [names], "aliases": [module names],
"tests": text, "answered": [[call, answer], ...]}. Standard output is JSON: {"calls": [...], "complete": bool,
"results": {test: null or what went wrong}}; `complete` says that no call went to the reference.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from agentgym_rtmc.environments.code_repair.asserts import harness
from agentgym_rtmc.environments.code_repair.asserts.objects import Packer, UnsendableError, classes_of, unpack

MAX_CALLS = 5_000


class NoAnswerError(BaseException):
    """The program gave no plain answer to a call, or could not be asked. Not for tests to catch with the program's own
    exceptions."""


class RaisedError(Exception):
    """The program raised an exception that Python does not know."""


class Session:
    """The calls of one run of the tests."""

    def __init__(self, classes: dict[str, type], answered: list[Any]) -> None:
        self.calls: list[Any] = []
        self.complete = True
        self._classes = classes
        self._names = {kind: name for name, kind in classes.items()}
        self._answered = answered

    def proxy(self, name: str, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Return what the tests see in place of the program's function."""

        def call(*arguments: Any, **named: Any) -> Any:
            packer = Packer(self._names)
            try:
                message = packer.pack([*arguments, *named.values()])
            except UnsendableError as error:
                raise NoAnswerError(f"{name} cannot be called from another process: {error}") from error
            asked = {"name": name, "named": list(named), **message}
            if len(self.calls) >= MAX_CALLS:
                raise NoAnswerError("too many calls")
            number = len(self.calls)
            self.calls.append(asked)
            if self.complete and number < len(self._answered) and self._answered[number][0] == asked:
                return self._answer(self._answered[number][1], packer.objects)
            self.complete = False
            chance = random.getstate()  # the reference must not move what the tests draw next
            try:
                return reference(*arguments, **named)
            finally:
                random.setstate(chance)

        call.__name__ = call.__qualname__ = name
        return call

    def _answer(self, answer: Any, known: list[Any]) -> Any:
        if isinstance(answer, dict) and "e" in answer:
            kind = getattr(builtins, str(answer["e"]), None)
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not ExceptionGroup:
                raise kind.__new__(kind, "raised by the program")  # some want more arguments, and need none
            raise RaisedError(str(answer["e"])[:80])
        try:
            values, _ = unpack(answer, self._classes, known)
            [value] = values
        except (UnsendableError, ValueError) as error:
            raise NoAnswerError(str(error)[:200]) from error
        return value


def load(name: str, text: str) -> types.ModuleType:
    """Make a module of its text and register it."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of a request; see the module's docstring."""
    sys.modules["pytest"] = harness.stand_in()
    classes: dict[str, type] = {}
    for name, text in request["modules"].items():
        classes.update(classes_of(load(name, text)))
    reference = load("reference", request["reference"])
    session = Session(classes, request["answered"])
    names = {name: thing for name, thing in vars(reference).items() if not name.startswith("__")}
    names.update({name: session.proxy(name, names[name]) for name in request["entry"]})
    for alias in request["aliases"]:
        module = types.ModuleType(alias)
        module.__dict__.update(names)
        sys.modules[alias] = module
    del sys.modules["reference"]
    random.seed(0)  # equal runs make equal calls
    return {"results": run_tests(request["tests"], names), "calls": session.calls, "complete": session.complete}


def run_tests(text: str, names: dict[str, Any]) -> dict[str, str | None]:
    """Run the text of tests, then the test functions in it. Returns what went wrong by test, None for nothing."""
    space: dict[str, Any] = {**names, "__name__": "tests"}
    before = set(names)
    results = {"": _outcome(lambda: exec(compile(text, "tests.py", "exec"), space))}
    if results[""] is None:
        own = {name: thing for name, thing in space.items() if name not in before or names[name] is not thing}
        results.update((name, _outcome(test)) for name, test in harness.collect(own).items())
    return results


def _outcome(test: Callable[[], Any]) -> str | None:
    try:
        test()
    except BaseException as error:  # noqa: BLE001  (a test fails by raising anything)
        return f"{type(error).__name__}: {error}"[:300]
    return None


def serve(work: Callable[[Any], Any]) -> None:
    """Answer one request from standard input on standard output, where nothing else is written meanwhile."""
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    answer = work(json.loads(sys.stdin.read()))
    with os.fdopen(out, "w") as file:
        json.dump(answer, file)


def main() -> None:
    """Serve one request."""
    serve(run)


if __name__ == "__main__":
    main()
