"""Answers recorded calls with an untrusted program. Runs inside a sandbox, which holds no test and no expected value.

Invariants: whatever the program does to this process can only change the answers, which are taken apart elsewhere
(`objects.py`); they leave through a pipe, and the program's own output goes nowhere. All calls are answered in order by
one process, so a program may keep state between them; after a call without an answer the rest is skipped.

Standard input is a Python literal {"modules": {name: text}, "source": text, "calls": [...], "seconds": number}.
Standard output is one line of JSON: a list of answers, or "late". An answer is a message of `objects.py` with one
value, {"e": name} for an exception raised, or {"x": why} for no answer.
"""

from __future__ import annotations

import os
import sys

from agentgym_rtmc.environments.code_repair import driver
from agentgym_rtmc.environments.code_repair.asserts.objects import Packer, UnsendableError, classes_of, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_ANSWERS = 4 << 20


def load(name: str, text: str) -> Any:
    """Make a module of its text and register it."""
    module = type(sys)(name)
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def answer(names: dict[str, Any], call: dict[str, Any], classes: dict[str, type]) -> Any:
    """Return the answer to one call."""
    try:
        values, objects = unpack(call, classes)
        named = dict(zip(call["named"], values[len(values) - len(call["named"]) :], strict=True))
        result = names[call["name"]](*values[: len(values) - len(named)], **named)
        return Packer({kind: name for name, kind in classes.items()}, objects).pack([result])
    except UnsendableError as reason:
        return {"x": str(reason)}
    except Exception as error:  # noqa: BLE001  (whatever a program raises is its answer)
        return {"e": type(error).__name__}
    except BaseException:  # noqa: BLE001  (SystemExit and the like are no answer)
        return {"x": "left"}


def run_job(request: dict[str, Any]) -> list[Any]:
    """Return the answers to all calls; the program is loaded under the name `m`."""
    classes: dict[str, type] = {}
    for name, text in request["modules"].items():
        classes.update(classes_of(load(name, text)))
    try:
        names = vars(load("m", request["source"]))
    except BaseException as error:  # noqa: BLE001  (a module may raise anything, SystemExit too)
        return [{"e": type(error).__name__}] * len(request["calls"])
    answers: list[Any] = []
    for call in request["calls"]:
        lost = answers and "x" in answers[-1]
        answers.append({"x": "skipped"} if lost else answer(names, call, classes))
    return answers


def main() -> None:
    """Serve one request from standard input."""
    request = eval(sys.stdin.read())  # the grader's own text, a literal
    source, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _run_child(request, out)
    os.close(out)
    text = driver.collect(source, request["seconds"], MAX_ANSWERS)
    os.kill(child, driver.KILL)
    os.waitpid(child, 0)
    print(text.decode("ascii", "replace").replace("\n", " ") or "null", flush=True)


def _run_child(request: dict[str, Any], out: int) -> NoReturn:
    driver.run_child(lambda: driver.to_json(run_job(request)), out)


if __name__ == "__main__":
    main()
