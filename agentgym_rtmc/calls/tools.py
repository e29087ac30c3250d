"""Typed tools: plain Python functions with type hints and a docstring, offered to a model as JSON schemas.

Invariants: all calls of a turn are validated before the first one runs, so a refused turn has no side effects. What an
agent did wrong is a `ProtocolError` (a call that does not fit) or a result that starts with `error:` (a tool that
refused with `ToolError`); any other exception is a defect of the tool and is passed on.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.errors import ProtocolError, RegistrationError, ToolError, nearest


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered, as text for the agent. `ok` is False where the tool refused."""

    name: str
    text: str
    ok: bool = True


class Tool:
    """A function with its schema.

    The description is the docstring up to its `Args:` section, whose entries describe the arguments. Values are
    validated by pydantic, which also takes `"3"` for an int. Raises RegistrationError for a function that cannot be
    offered: without type hints, with `*args`, or with a type that has no JSON form.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.description, described = _read_docstring(inspect.getdoc(function) or "")
        self._names: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for parameter in self._parameters():
            # Internal field names keep clear of pydantic's own ("copy", "json"); the agent only sees the alias.
            internal = f"field_{len(fields)}"
            self._names[internal] = parameter.name
            default = ... if parameter.default is parameter.empty else parameter.default
            # Only what is given: an explicit None would cover a description that stands in the annotation.
            extra: dict[str, Any] = {"description": described[parameter.name]} if parameter.name in described else {}
            info = Field(default, alias=parameter.name, **extra)
            fields[internal] = (parameter.annotation, info)
        try:
            self._model: type[BaseModel] = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)
            self.parameters = self._schema()
        except PydanticUserError as error:
            raise RegistrationError(f"tool {self.name!r} cannot be offered to a model: {error.message}") from error

    def _parameters(self) -> list[inspect.Parameter]:
        signature = inspect.signature(self.function)
        try:
            hints = typing.get_type_hints(self.function, include_extras=True)
        except (NameError, TypeError) as error:
            raise RegistrationError(f"tool {self.name!r}: its type hints cannot be resolved: {error}") from error
        parameters = []
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise RegistrationError(
                    f"tool {self.name!r}: {parameter} cannot be passed by name; give it a plain name"
                )
            if parameter.name not in hints:
                raise RegistrationError(f"tool {self.name!r}: argument {parameter.name!r} has no type; annotate it")
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
        return parameters

    def _schema(self) -> dict[str, JsonValue]:
        schema = self._model.model_json_schema()
        schema.pop("title", None)
        for member in schema.get("properties", {}).values():
            member.pop("title", None)
        schema.setdefault("properties", {})
        return typing.cast("dict[str, JsonValue]", schema)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return tuple(self._names.values())

    @property
    def schema(self) -> dict[str, JsonValue]:
        """The tool in OpenAI's function form, as chat templates take it."""
        function: dict[str, JsonValue] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    @property
    def usage(self) -> str:
        """The tool as one line: `transfer(amount: integer, to?: string)`."""
        properties = typing.cast("dict[str, Any]", self.parameters["properties"])
        required = typing.cast("list[str]", self.parameters.get("required", []))
        parts = (f"{name}{'' if name in required else '?'}: {_type_name(of)}" for name, of in properties.items())
        return f"{self.name}({', '.join(parts)})"

    def validate(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raises ProtocolError naming each that does not fit."""
        try:
            made = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            complaints = [self._complain(dict(one)) for one in error.errors(include_url=False)]
            more = f"; and {len(complaints) - 4} more" if len(complaints) > 4 else ""
            raise ProtocolError(f"{self.name}: {'; '.join(complaints[:4])}{more}. Usage: {self.usage}") from error
        return {name: getattr(made, internal) for internal, name in self._names.items()}

    def _complain(self, error: dict[str, Any]) -> str:
        where = ".".join(map(str, error["loc"])) or "the call"
        if error["type"] == "missing":
            return f"argument {where!r} is missing"
        if error["type"] == "extra_forbidden":
            return f"there is no argument {_short(where)}{nearest(where[:60], self._names.values())}"
        message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        return f"argument {where!r} {message}, got {_short(error['input'])}"

    def __repr__(self) -> str:
        return f"Tool({self.usage})"


class Toolbox:
    """The tools of an environment, by name. Raises RegistrationError for two of one name."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]]) -> None:
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            tool = tool if isinstance(tool, Tool) else Tool(tool)
            if tool.name in self.tools:
                raise RegistrationError(f"two tools are named {tool.name!r}; pass Tool(function, name=...) for one")
            self.tools[tool.name] = tool

    @property
    def schemas(self) -> list[dict[str, JsonValue]]:
        """All tools in OpenAI's function form."""
        return [tool.schema for tool in self.tools.values()]

    def instructions(self) -> str:
        """Describe the tools to a model whose chat template does not: one schema a line, as open models know it."""
        lines = "\n".join(pydantic_core.to_json(schema).decode() for schema in self.schemas)
        return f"You may call these tools:\n<tools>\n{lines}\n</tools>"

    def run(self, calls: Sequence[Call]) -> list[ToolResult]:
        """Validate all calls, then carry them out in order. Raises ProtocolError before anything has run."""
        bound: list[tuple[Tool, dict[str, Any]]] = []
        for call in calls:
            if call.name not in self.tools:
                raise ProtocolError(f"there is no tool {_short(call.name)}{nearest(call.name[:60], self.tools)}")
            tool = self.tools[call.name]
            bound.append((tool, tool.validate(call.arguments)))
        results: list[ToolResult] = []
        for tool, arguments in bound:
            try:
                results.append(ToolResult(tool.name, render_result(tool.function(**arguments))))
            except ToolError as error:
                results.append(ToolResult(tool.name, f"error: {error}", ok=False))
        return results


def render_result(value: Any) -> str:
    """Write what a tool returned as text: strings as they are, nothing as `done`, all else as JSON."""
    if isinstance(value, str):
        return value
    return "done" if value is None else pydantic_core.to_json(value).decode()


def render_results(results: Sequence[ToolResult]) -> str:
    """Write the results of one turn as one observation; several are headed by their tool's name."""
    if len(results) == 1:
        return results[0].text
    return "\n".join(f"[{index} {result.name}]\n{result.text}" for index, result in enumerate(results, 1))


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description and, by argument, what the `Args:` section says (continuation lines joined)."""
    parts = _SECTION.split(text)
    described: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        name = ""
        for line in inspect.cleandoc(body).splitlines() if title in ("Args", "Arguments", "Parameters") else ():
            entry = _ENTRY.match(line)
            if entry:
                name = entry[1]
                described[name] = entry[2].strip()
            elif name and line.strip():
                described[name] = f"{described[name]} {line.strip()}".strip()
    return parts[0].strip(), described


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return " | ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " | ".join(_type_name(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    name = str(schema.get("type", "any"))
    return f"array of {_type_name(schema['items'])}" if name == "array" and schema.get("items") else name


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
