"""Tool calls as JSON between `<tool_call>` tags, the form Qwen and Hermes models are trained on.

Invariants: stateless and pure; nothing but a `ProtocolError` is ever raised, and it names the line and column. A call
is read whole or refused: values are taken over as they stand and none is invented.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Never

from pydantic import ValidationError

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.thinking import after_thinking
from agentgym_rtmc.errors import ProtocolError, nearest

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
_KEYS = ("name", "arguments")
_BEFORE = re.compile(r"\s*(?:```[a-zA-Z]*[ \t]*\n\s*)?")
_AFTER = re.compile(r"\s*(?:```\s*)?(?:</tool_call>)?")
_COMMA_BEFORE_END = re.compile(r'("(?:\\.|[^"\\])*")|,(\s*[}\]])', re.DOTALL)
# Tags that may not stand inside a rendered string: readers and samplers other than this one look for them.
_TAGS = re.compile(r"<(?=/?(?:tool_call|tool_response|think)>)")


@dataclass(frozen=True)
class ToolCallProtocol:
    """Reads one or more `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

    Read as well: prose around, leading `<think>…</think>`, a missing closing tag, a code fence within the tags, a list
    of calls, `parameters` for `arguments`, arguments as a JSON string, OpenAI's `{"function": {…}}` wrapper, Python
    literals (single quotes, True), trailing commas, raw newlines within strings, and a text that is nothing but the
    JSON object.

    >>> ToolCallProtocol().parse("<tool_call>{'name': 'look', 'arguments': {'up': True,}}")[0]
    Call(name='look', arguments={'up': True})
    """

    max_calls: int = 16
    max_chars: int = 64_000
    name: str = "tool_call"
    stop: tuple[str, ...] = ("<tool_response>",)

    def parse(self, text: str) -> tuple[Call, ...]:
        """Read the calls of one turn, in order. Raises ProtocolError."""
        text = after_thinking(text, OPEN)
        if len(text) > self.max_chars:
            raise ProtocolError(f"the turn has {len(text)} characters, the limit is {self.max_chars}; send less")
        calls: list[Call] = []
        for place, value in _values(text):
            for member in value if isinstance(value, list) else [value]:
                calls.append(_call(member, place))
        if not calls:
            raise ProtocolError(f"no tool call; write {_FORM}")
        if len(calls) > self.max_calls:
            raise ProtocolError(f"{len(calls)} tool calls in one turn, the limit is {self.max_calls}; send fewer")
        return tuple(calls)

    def render(self, call: Call) -> str:
        """Write a call between tags."""
        body = json.dumps(call.model_dump(), ensure_ascii=False)
        return f"{OPEN}\n{_TAGS.sub(chr(92) + chr(92) + 'u003c', body)}\n{CLOSE}"

    def instructions(self) -> str:
        """Explain the form to a model."""
        return (
            "To act, write a tool call: a JSON object with the tool's name and its arguments between tags, like\n\n"
            f'{OPEN}\n{{"name": "tool_name", "arguments": {{"argument": "value"}}}}\n{CLOSE}\n\n'
            "Several calls may follow each other; they are carried out in order."
        )


def _values(text: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, decoded value) for every tag of the text, or for a text that is JSON as a whole."""
    at = text.find(OPEN)
    if at < 0:
        start = _end(_BEFORE, text, 0)
        if text[start : start + 1] in ("{", "[") and text.rstrip().endswith(("}", "]", "```")):
            value, end = _decode(text, start)
            if text[end:].strip() in ("", "```"):
                yield _place(text, start), value
        elif CLOSE in text:
            raise ProtocolError(f"{CLOSE} at {_place(text, text.index(CLOSE))} has no {OPEN} before it; write {_FORM}")
    while at >= 0:
        start = _end(_BEFORE, text, at + len(OPEN))
        value, end = _decode(text, start)
        yield _place(text, at), value
        after = _end(_AFTER, text, end)
        at = text.find(OPEN, after)
        rest = text[after : at if at >= 0 else len(text)]
        # What follows a call is prose, unless its closing tag is still to come: then the JSON broke off early.
        if CLOSE in rest:
            raise ProtocolError(f"text follows the JSON object at {_place(text, after)}, before {CLOSE}; write {_FORM}")


def _decode(text: str, start: int) -> tuple[Any, int]:
    """Decode the value that starts at `start`; return it and where it ends. Raises ProtocolError."""
    if start == len(text) or text.startswith(CLOSE, start):
        raise ProtocolError(f"the tool call at {_place(text, start)} is empty; write {_FORM}")
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        complaint = f"{error.msg} at {_place(text, error.pos)}"
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not readable JSON at {_place(text, start)}: {error}") from error
    # Not JSON: what stands up to the closing tag may be a Python literal, or JSON with trailing commas.
    ends = [end for tag in (CLOSE, OPEN) if (end := text.find(tag, start)) >= 0]
    end = min(ends, default=len(text))
    body = text[start:end].strip().removesuffix("```").strip()
    try:
        return ast.literal_eval(body), end
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        pass
    try:
        return _DECODER.decode(_COMMA_BEFORE_END.sub(r"\1\2", body)), end
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not valid JSON: {complaint}") from error


def _call(value: Any, place: str) -> Call:
    """Make a call of a decoded value. Raises ProtocolError."""
    who = f"the tool call at {place}"
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise ProtocolError(f"{who} is a JSON {_kind(value)}, not an object; write {_FORM}")
    fields = {key: item for key, item in value.items() if key not in ("id", "type")}
    if "parameters" in fields and "arguments" not in fields:
        fields["arguments"] = fields.pop("parameters")
    for key in fields:
        if key not in _KEYS:
            raise ProtocolError(f"{who} has an unknown key {_short(key)}{nearest(str(key)[:60], _KEYS)}; write {_FORM}")
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str) or not name.strip():
        raise ProtocolError(f'{who} has no "name"; write {_FORM}')
    if isinstance(arguments, str):
        arguments = _from_string(arguments, who)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ProtocolError(
            f'the "arguments" of {_short(name)} at {place} are a JSON {_kind(arguments)}, not an object'
        )
    try:
        return Call(name=name, arguments=arguments)
    except ValidationError as error:
        first = error.errors()[0]
        where = _short(".".join(map(str, first["loc"])))
        raise ProtocolError(f"{who} is not plain JSON: {where}: {first['msg']}") from error


def _from_string(arguments: str, who: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return _decode(arguments.strip(), 0)[0]
    except ProtocolError as error:
        raise ProtocolError(f'the "arguments" of {who} are a string, and that is not JSON: {error}') from error


def _kind(value: Any) -> str:
    for type_, name in ((bool, "boolean"), (str, "string"), ((int, float), "number"), (list, "array")):
        if isinstance(value, type_):
            return name
    return "null" if value is None else type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON; use a finite number or null")


# Raw newlines within strings are common from models and unambiguous, hence strict=False.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at)
    return f"line {line + 1} column {at - text.rfind(chr(10), 0, at)}"
