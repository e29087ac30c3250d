"""Calls and their expected values as data, and how they are written for people.

Invariants: a call is JSON, [function, [arguments]] or [class, [arguments], [method, [arguments]], …]; values are the
typed JSON of `driver.py`. Comparing them runs no code of the compared program.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from pydantic import JsonValue

from agentgym_rtmc.errors import TaskError

CallData = list[Any]
"""[name, [arguments], then [method, [arguments]] for each call on the object made]."""


def parse_call(text: str) -> CallData:
    """Read a call, or a chain of calls on one object, with literal arguments.

    >>> parse_call("clamp(5, 1, 3)")
    ['clamp', [5, 1, 3]]
    >>> parse_call("Stack().push(2).pop()")
    ['Stack', [], ['push', [2]], ['pop', []]]
    """
    steps: list[Any] = []
    node: ast.expr = ast.parse(text, mode="eval").body
    while isinstance(node, ast.Call) and not node.keywords:
        arguments = [ast.literal_eval(argument) for argument in node.args]
        if isinstance(node.func, ast.Name):
            return [node.func.id, arguments, *reversed(steps)]
        if not isinstance(node.func, ast.Attribute):
            break
        steps.append([node.func.attr, arguments])
        node = node.func.value
    raise TaskError(f"{text!r} is not a call or a chain of calls with literal arguments")


def show_steps(call: CallData) -> list[str]:
    """Return the call's steps as Python text.

    >>> show_steps(["Stack", [], ["push", [2]], ["pop", []]])
    ['Stack()', 'push(2)', 'pop()']
    """
    return [f"{name}({', '.join(map(repr, arguments))})" for name, arguments in (call[:2], *call[2:])]


def decode(value: JsonValue) -> Any:
    """Return the Python value of a typed one. Raises TaskError for an exception or a missing answer.

    >>> decode({"t": [1, {"f": "0.5"}, {"d": [["a", None]]}]})
    (1, 0.5, {'a': None})
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"f": str(text)}:
            return float(text)
        case {"t": list(items)}:
            return tuple(decode(item) for item in items)
        case {"s": list(items)}:
            return {decode(item) for item in items}
        case {"d": list(pairs)}:
            return {decode(pair[0]): decode(pair[1]) for pair in pairs if isinstance(pair, list)}
    raise TaskError(f"{value!r} is not a typed value")


def is_value(answer: JsonValue) -> bool:
    """Whether an answer is a value, not an exception raised and not the lack of an answer."""
    return not (isinstance(answer, dict) and ("e" in answer or "x" in answer))


def same(expected: Any, answer: Any) -> bool:
    """Whether an answer equals the expected typed value: exact types, floats within 1e-9.

    `answer` is whatever JSON an untrusted process wrote; no depth or type of it raises.

    >>> same(1, True), same([1, 2], {"t": [1, 2]}), same({"f": "0.3"}, {"f": "0.30000000000000004"})
    (False, False, True)
    """
    if type(expected) is not type(answer):
        return False
    if isinstance(expected, list):
        return len(expected) == len(answer) and all(map(same, expected, answer))
    if not isinstance(expected, dict):
        return bool(expected == answer)
    if expected.keys() != answer.keys():
        return False
    if "f" in expected:
        return _same_float(str(expected["f"]), answer["f"])
    return all(same(item, answer[key]) for key, item in expected.items())


def _same_float(expected: str, answer: Any) -> bool:
    if not isinstance(answer, str) or len(answer) > 40:
        return False
    try:
        wanted, got = float(expected), float(answer)
    except ValueError:
        return False
    return (math.isnan(wanted) and math.isnan(got)) or math.isclose(wanted, got, rel_tol=1e-9, abs_tol=1e-12)
