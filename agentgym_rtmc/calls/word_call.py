"""Calls as plain words, one a line: the tool's name, then its arguments in order. The shortest form for small models.

Invariants: stateless and pure; nothing but a `ProtocolError` is ever raised. A word is text unless it is a JSON value
(`45`, `true`, `[1,2]`, `"45"` for the text), so rendering and reading are inverse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

from pydantic import JsonValue, ValidationError

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.thinking import after_thinking
from agentgym_rtmc.calls.tool_call import OPEN, ToolCallProtocol
from agentgym_rtmc.calls.tools import Toolbox
from agentgym_rtmc.errors import ProtocolError, nearest

_WORD = re.compile(r"\S+")
_NAMED = re.compile(r"(\w+)=")
_NO_OPENER = "\0"


@dataclass(frozen=True)
class WordCallProtocol:
    """Reads lines like `move_booking 14 8`, or with names, `move_booking 14 day=8`.

    `tools`: the names of each tool's arguments, in order. Blanks part words; a text with blanks is written in double
    quotes, as in JSON. Empty lines and code fences around are skipped; tool calls between tags are read as well.

    >>> protocol = WordCallProtocol({"send": ("order", "city")})
    >>> protocol.parse("send 45 Bonn")[0].arguments
    {'order': 45, 'city': 'Bonn'}
    >>> protocol.render(Call(name="send", arguments={"city": "New York"}))
    'send city="New York"'
    """

    tools: Mapping[str, Sequence[str]] = field(hash=False)
    max_calls: int = 16
    max_chars: int = 8_000
    name: str = "word_call"
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, toolbox: Toolbox) -> WordCallProtocol:
        """Return the protocol for some typed tools."""
        return cls({name: tool.arguments for name, tool in toolbox.tools.items()})

    def parse(self, text: str) -> tuple[Call, ...]:
        """Read the calls of one turn, in order. Raises ProtocolError."""
        first = _WORD.search(text)
        if first is None or first[0] not in self.tools:  # else it opens with the action, and nothing is cut
            text = after_thinking(text, _NO_OPENER)
            if OPEN in text:
                return ToolCallProtocol(self.max_calls, self.max_chars).parse(text)
        if len(text) > self.max_chars:
            raise ProtocolError(f"the turn has {len(text)} characters, the limit is {self.max_chars}; send less")
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("```")]
        if not lines:
            raise ProtocolError("no call; write a tool's name and its arguments on a line")
        if len(lines) > self.max_calls:
            raise ProtocolError(f"{len(lines)} lines, the limit is {self.max_calls} calls in a turn; send fewer")
        return tuple(self._call(line) for line in lines)

    def render(self, call: Call) -> str:
        """Write a call as a line. Raises ProtocolError for a tool that is not known or an argument it does not have."""
        known = self._arguments(call.name)
        for argument in call.arguments:
            if argument not in known:
                raise ProtocolError(f"{call.name} has no argument {argument!r}{nearest(argument, known)}")
        words = [call.name]
        in_order = True
        for argument in known:
            if argument not in call.arguments:
                in_order = False
                continue
            word = _write(call.arguments[argument])
            words.append(word if in_order else f"{argument}={word}")
        return " ".join(words)

    def instructions(self) -> str:
        """Explain the form to a model."""
        usage = "\n".join(" ".join((tool, *arguments)) for tool, arguments in self.tools.items())
        return f"To act, write a tool's name and its arguments on one line. The tools:\n{usage}"

    def _arguments(self, tool: str) -> Sequence[str]:
        if tool not in self.tools:
            raise ProtocolError(f"there is no tool {_short(tool)}{nearest(tool[:60], self.tools)}")
        return self.tools[tool]

    def _call(self, line: str) -> Call:
        match = _WORD.match(line)
        assert match is not None
        tool = match[0]
        known = self._arguments(tool)
        arguments: dict[str, JsonValue] = {}
        for name, value in _values(line, match.end(), known):
            free = [argument for argument in known if argument not in arguments]
            if name is None and not free:
                raise ProtocolError(f"{tool} takes {len(known)} arguments at most: {' '.join((tool, *known))}")
            if name is not None and name in arguments:
                raise ProtocolError(f"{tool}: argument {name!r} is given twice")
            arguments[name or free[0]] = value
        try:
            return Call(
                name=tool, arguments={argument: arguments[argument] for argument in known if argument in arguments}
            )
        except ValidationError as error:
            raise ProtocolError(f"{tool}: {error.errors()[0]['msg']}") from error


def _values(line: str, at: int, known: Sequence[str]) -> Iterator[tuple[str | None, Any]]:
    """Yield (argument's name or None, value) for each word of a line."""
    while (start := _skip_blanks(line, at)) < len(line):
        named = _NAMED.match(line, start)
        name = named[1] if named and named[1] in known else None
        start = named.end() if named and name else start
        if line[start : start + 1] in ('"', "[", "{"):
            try:
                value, at = _DECODER.raw_decode(line, start)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(
                    f"character {start + 1} of a line begins a JSON value that is none: {error}"
                ) from error
            if at < len(line) and not line[at].isspace():
                raise ProtocolError(
                    f"a blank is missing at character {at + 1} of the line, after {_short(line[start:at])}"
                )
        else:
            word = _WORD.match(line, start)
            at = word.end() if word else start
            value = _read(word[0] if word else "")
        yield name, value


def _read(word: str) -> Any:
    try:
        return _DECODER.decode(word)
    except (ValueError, RecursionError):
        return word


def _write(value: JsonValue) -> str:
    """Text as a bare word where it reads back as itself, all else as JSON."""
    if isinstance(value, str) and value.isprintable() and _WORD.fullmatch(value):
        bare = value[0] not in '"[{' and not _NAMED.match(value) and isinstance(_read(value), str)
        return value if bare else json.dumps(value)
    return json.dumps(value, separators=(",", ":"))


def _skip_blanks(line: str, at: int) -> int:
    while at < len(line) and line[at].isspace():
        at += 1
    return at


def _short(value: str) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
