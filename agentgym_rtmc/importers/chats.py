"""Reads conversations in the form of chat APIs: a list of messages with roles, tool calls and tool answers.

Invariants: pure. Every assistant message is a turn; the tool and user messages up to the next one are its observation.
Calls are the message's `tool_calls`, else what the project's text protocols read in its content, else none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.episodes import Turn
from agentgym_rtmc.errors import ProtocolError

SHELL_TOOLS = ("bash", "shell", "execute_bash", "run_command", "terminal")
_PROTOCOLS = (ToolCallProtocol(), ShellProtocol())


def turns_of_messages(messages: Sequence[Mapping[str, Any]], rewards: Sequence[float] = ()) -> tuple[str, list[Turn]]:
    """Return what stood before the first assistant message, and one turn for each such message.

    `rewards` holds one number per turn, if there are any.
    """
    opening: list[str] = []
    said: list[Mapping[str, Any]] = []
    heard: list[list[str]] = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise ValueError(f"a message is a {type(message).__name__}, not an object")
        role = message.get("role")
        if role == "assistant":
            said.append(message)
            heard.append([])
        elif heard:
            heard[-1].append(text_of(message.get("content")))
        elif role != "system":
            opening.append(text_of(message.get("content")))
    if rewards and len(rewards) != len(said):
        raise ValueError(f"{len(rewards)} rewards for {len(said)} assistant messages")
    turns = [
        Turn(
            text=text_of(message.get("content")) or json.dumps(message.get("tool_calls"), sort_keys=True),
            calls=calls_of(message),
            observation="\n".join(answers),
            reward=float(rewards[index]) if rewards else 0.0,
        )
        for index, (message, answers) in enumerate(zip(said, heard, strict=True))
    ]
    return "\n".join(opening), turns


def text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content]
        return "\n".join(str(part) for part in parts if part)
    return "" if content is None else json.dumps(content, sort_keys=True)


def calls_of(message: Mapping[str, Any]) -> tuple[Call, ...]:
    """The calls of an assistant message."""
    given = message.get("tool_calls") or [
        {"function": {"name": "bash", "arguments": action}}
        for action in (message.get("extra") or {}).get("actions") or ()
        if isinstance(action, Mapping)
    ]
    if given:
        return tuple(_structured(call) for call in given)
    text = text_of(message.get("content"))
    for protocol in _PROTOCOLS:
        try:
            return protocol.parse(text)
        except ProtocolError:
            continue
    return ()


def _structured(call: Any) -> Call:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"text": arguments}
    if not isinstance(arguments, Mapping):
        arguments = {"value": arguments}
    name = str(function.get("name", "unknown"))
    if name in SHELL_TOOLS and isinstance(arguments.get("command"), str):
        return Call(name="shell", arguments={"command": arguments["command"]})
    return Call(name=name, arguments=dict(arguments))
