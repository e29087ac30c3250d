"""Answers calls to untrusted modules with typed values. Runs inside a sandbox, as a plain script.

Invariants: standard library only, nothing of this project is imported and no expected value is ever known here.
Whatever the module does to this process can only change the answers, which are compared elsewhere. A value leaves only
if its type *is* one of the built-in ones: an instance with an `__eq__` of its own never does.

Typed values are JSON: None, bool, int, str and list stand for themselves; {"f": text} is a float, {"t": [..]} a tuple,
{"s": [..]} a set, {"d": [[key, value], ..]} a dict, {"e": name} an exception raised, {"x": why} no answer.
A call is [function, [arguments]], or [class, [arguments], [method, [arguments]], ..], answered by the list of what the
methods returned.

Protocol: standard input is JSON {"jobs": [{"source", "calls"}, ..], "seconds", "lines"}; standard output is one JSON
list of answers a job, in lines of the same order. Each job runs in a child process of its own. `seconds` are CPU
seconds of a call (after one call without an answer the rest of a job is skipped), `lines` limits a call's executed
lines (0: no limit).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import types

TYPE_CHECKING = False  # typing is not imported: every start of the driver would pay for it
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_DEPTH = 12
MAX_ANSWER = 1 << 18


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
        return {"s": sorted((encode(item, depth + 1) for item in value), key=json.dumps)}
    if kind is dict:
        pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]
        return {"d": sorted(pairs, key=json.dumps)}
    raise NoAnswer("not a built-in value")


def perform(names: dict[str, Any], call: list[Any]) -> Any:
    """Carry out one call among the names of a module and return its plain result."""
    made = names[call[0]](*call[1])
    if len(call) == 2:
        return made
    return [getattr(made, method)(*arguments) for method, arguments in call[2:]]


def answer(names: dict[str, Any], call: list[Any], seconds: float, lines: int) -> Any:
    """Return the typed answer to one call, within `seconds` of CPU time and `lines` executed lines."""
    executed = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal executed
        executed += 1
        if executed > lines:
            raise NoAnswer("endless")
        return trace

    def stop(number: int, frame: Any) -> None:
        raise NoAnswer("endless")

    signal.signal(signal.SIGVTALRM, stop)
    # Repeats, so that a program that swallows the first interruption meets the next.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.05)
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
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def run_job(job: dict[str, Any], seconds: float, lines: int) -> list[Any]:
    """Return the answers of one job; the module is loaded from its source text under the name `m`."""
    module = types.ModuleType("m")
    sys.modules["m"] = module
    try:
        exec(compile(job["source"], "m.py", "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001  (a module may raise anything, SystemExit too)
        return [{"e": type(error).__name__}] * len(job["calls"])
    answers: list[Any] = []
    for call in job["calls"]:
        lost = answers and type(answers[-1]) is dict and "x" in answers[-1]
        answers.append({"x": "skipped"} if lost else answer(module.__dict__, call, seconds, lines))
    return answers


def run_child(job: dict[str, Any], seconds: float, lines: int, out: int) -> NoReturn:
    """Answer one job on a pipe, with the module's own output going nowhere; never returns."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        text = json.dumps(run_job(job, seconds, lines)).encode()
        while text:
            text = text[os.write(out, text) :]
    finally:
        os._exit(0)


def collect(source: int, deadline_seconds: float) -> bytes:
    """Read a pipe to its end or for so long; what comes late or too large is no answer."""
    text = b""
    while select.select([source], [], [], deadline_seconds)[0]:
        piece = os.read(source, 1 << 16)
        text += piece
        if not piece or len(text) > MAX_ANSWER:
            break
    return text if len(text) <= MAX_ANSWER else b""


def main() -> None:
    """Serve one request from standard input."""
    request = json.load(sys.stdin)
    for job in request["jobs"]:
        source, out = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(source)
            run_child(job, request["seconds"], request["lines"], out)
        os.close(out)
        text = collect(source, 4 * request["seconds"] + 1)
        os.close(source)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        line = text.decode("ascii", "replace").replace("\n", " ")
        print(line or "null", flush=True)


if __name__ == "__main__":
    main()
