"""Answers calls to untrusted modules with typed values. Runs inside a sandbox, as a plain script.

Invariants: standard library only, nothing of this project is imported and no expected value is ever known here.
Whatever the module does to this process can only change the answers, which are compared elsewhere. A value leaves only
if its type *is* one of the built-in ones: an instance with an `__eq__` of its own never does.

Typed values are JSON: None, bool, int, str and list stand for themselves; {"f": text} is a float, {"t": [..]} a tuple,
{"s": [..]} a set, {"d": [[key, value], ..]} a dict, {"e": name} an exception raised, {"x": why} no answer.
A call is [function, [arguments]], or [class, [arguments], [method, [arguments]], ..], answered by the list of what the
methods returned.

Protocol: standard input is a Python literal {"jobs": [{"source", "calls"}, ..], "seconds", "lines"}; standard output is
one JSON list of answers a job, in lines of the same order, or "late" for a job that was stopped. Each job runs in a
child process of its own for at most `seconds` of wall time (the sandbox limits CPU time and memory); `lines` limits the
executed lines of one call (0: no limit). After one call without an answer the rest of a job is skipped.

Only modules that start in no time are imported: json, signal and typing would double what a grading costs.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MAX_DEPTH = 12
MAX_ANSWER = 1 << 18
KILL = 9


class NoAnswer(BaseException):
    """Why a call has no typed answer. Not an Exception, so that `except Exception` in a program does not stop it."""


def encode(value: Any, depth: int = 0) -> Any:
    """Return the typed JSON form of a value made of exact built-in types; raises NoAnswer for any other."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if depth > MAX_DEPTH:
        raise NoAnswer("nested too deep")
    if kind is float:
        return {"f": float.__repr__(value)}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is tuple:
        return {"t": [encode(item, depth + 1) for item in value]}
    if kind is set or kind is frozenset:
        return {"s": sorted((encode(item, depth + 1) for item in value), key=to_json)}
    if kind is dict:
        pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]
        return {"d": sorted(pairs, key=to_json)}
    raise NoAnswer("not a built-in value")


def to_json(value: Any) -> str:
    """Return a typed value as JSON in ASCII."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    return "{" + ",".join(f"{to_json(key)}:{to_json(item)}" for key, item in value.items()) + "}"


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    code = ord(letter)
    if 32 <= code < 127:
        return letter
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def perform(names: dict[str, Any], call: list[Any]) -> Any:
    """Carry out one call among the names of a module and return its plain result."""
    made = names[call[0]](*call[1])
    if len(call) == 2:
        return made
    return [getattr(made, method)(*arguments) for method, arguments in call[2:]]


def answer(names: dict[str, Any], call: list[Any], lines: int) -> Any:
    """Return the typed answer to one call, within so many executed lines (0: no limit)."""
    executed = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal executed
        executed += 1
        if executed > lines:
            raise NoAnswer("endless")
        return trace

    try:
        if lines:
            sys.settrace(trace)
        result = perform(names, call)
        sys.settrace(None)
        return encode(result)
    except NoAnswer as reason:
        return {"x": str(reason)}
    except Exception as error:  # noqa: BLE001  (whatever a program raises is its answer)
        return {"e": type(error).__name__}
    finally:
        sys.settrace(None)


def run_job(job: dict[str, Any], lines: int = 0) -> list[Any]:
    """Return the answers of one job; the module is loaded from its source text under the name `m`."""
    module = type(sys)("m")
    sys.modules["m"] = module
    try:
        exec(compile(job["source"], "m.py", "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001  (a module may raise anything, SystemExit too)
        return [{"e": type(error).__name__}] * len(job["calls"])
    answers: list[Any] = []
    for call in job["calls"]:
        lost = answers and type(answers[-1]) is dict and "x" in answers[-1]
        answers.append({"x": "skipped"} if lost else answer(module.__dict__, call, lines))
    return answers


def run_child(work: Callable[[], str], out: int) -> NoReturn:
    """Write what `work` returns, in ASCII, into a pipe, with everybody's own output going nowhere; never returns."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        text = work().encode()
        while text:
            text = text[os.write(out, text) :]
    finally:
        os._exit(0)


def collect(source: int, seconds: float, limit: int = MAX_ANSWER) -> bytes:
    """Read a pipe to its end; more than `limit` bytes are no answer, what comes after so many seconds is late."""
    deadline = time.monotonic() + seconds
    text = b""
    while select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(source, 1 << 16)
        text += piece
        if not piece or len(text) > limit:
            return text if len(text) <= limit else b""
    return b'"late"'


def main() -> None:
    """Serve one request from standard input."""
    request = eval(sys.stdin.read())  # the grader's own text, a literal
    for job in request["jobs"]:
        source, out = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(source)
            run_child(lambda job=job: to_json(run_job(job, request["lines"])), out)  # type: ignore[misc]
        os.close(out)
        text = collect(source, request["seconds"])
        os.close(source)
        os.kill(child, KILL)
        os.waitpid(child, 0)
        line = text.decode("ascii", "replace").replace("\n", " ")
        print(line or "null", flush=True)


if __name__ == "__main__":
    main()
