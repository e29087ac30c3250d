"""Calls and the text protocols that carry them.

Invariants: a protocol is stateless and pure; it is tolerant in reading (what open models really emit) and exact in
complaining: everything it cannot read raises a `ProtocolError` whose message an agent can act on.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentgym_rtmc.json_values import JsonObject, Text


class Call(BaseModel):
    """One parsed action: a tool's name and its arguments. A shell command is `shell(command=...)`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    arguments: JsonObject = Field(default_factory=dict)


class TextProtocol(Protocol):
    """How an agent writes its calls into text.

    `instructions` is the paragraph of the system prompt that explains the form.
    """

    @property
    def name(self) -> str:
        """The protocol's short name."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings after which sampling may end; a text cut before or after one still parses."""
        ...

    def parse(self, text: str) -> tuple[Call, ...]:
        """Read the calls of one turn (at least one). Raises ProtocolError."""
        ...

    def render(self, call: Call) -> str:
        """Write a call the way a model is asked to; `parse(render(call)) == (call,)`.

        Raises ProtocolError for a call that the protocol has no form for.
        """
        ...

    def instructions(self) -> str:
        """Explain the form to a model."""
        ...
