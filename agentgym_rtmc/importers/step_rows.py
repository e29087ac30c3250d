"""Reads agent runs kept as one JSON row each: `{instance_id, agent, model, resolved, steps: [{tool, cmd|args, obs}]}`.

Invariants: pure and lenient. Every step becomes a turn; a step whose call could not be parsed has no calls, unless its
observation repeats the call it belongs to. `resolved` becomes the reward of the last turn (1 or 0); unknown results
leave it 0 and are marked in the opening's info. Group = instance.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.tasks import Task

SHELL_TOOLS = ("bash", "run_bash_cmd")
UNPARSED = "<parse_error>"
_REPEATED = re.compile(r"^(\w+)\(args=(\{.*?\})\)\n-+TOOL RESULT BEGIN", re.DOTALL)
_FIELDS = {"instance_id", "steps"}


def is_step_row(row: object) -> bool:
    """Whether a JSON value looks like such a row."""
    return isinstance(row, Mapping) and row.keys() >= _FIELDS


def episode_of_row(row: Mapping[str, Any], number: int = 0) -> Episode:
    """Turn one row into an episode; `number` makes its id unique within a file."""
    resolved = row.get("resolved")
    turns = [turn_of_step(step) for step in row["steps"]]
    if turns and resolved is True:
        turns[-1] = turns[-1].model_copy(update={"reward": 1.0})
    info = {key: row[key] for key in ("agent", "model", "family", "resolved") if key in row}
    opening = Opening(task=Task(id=str(row["instance_id"])), observation="", info=info)
    return Episode(
        id=f"{row['instance_id']}/{number}",
        group=str(row["instance_id"]),
        opening=opening,
        turns=tuple(turns),
        terminated=True,
    )


def turn_of_step(step: Mapping[str, Any]) -> Turn:
    """Turn one step into a turn."""
    observation = str(step.get("obs") or "")
    call = _call(step, observation)
    text = str(step.get("cmd") or "") or (json.dumps(call.model_dump(), sort_keys=True) if call else "")
    info: dict[str, Any] = {} if step.get("rc") is None else {"exit_code": step["rc"]}
    if step.get("obs_sha") is not None:
        info["observation_sha"] = step["obs_sha"]
    return Turn(text=text, calls=(call,) if call else (), observation=observation, reward=0.0, info=info)


def _call(step: Mapping[str, Any], observation: str) -> Call | None:
    tool, command, arguments = step.get("tool"), step.get("cmd"), step.get("args")
    if tool == UNPARSED:
        return _repeated(observation)
    if tool in SHELL_TOOLS and isinstance(command, str):
        return Call(name="shell", arguments={"command": command})
    if isinstance(arguments, Mapping):
        # Some runs carry stray keys that the agent's own format left behind.
        kept = {str(key): value for key, value in arguments.items() if re.fullmatch(r"[A-Za-z]\w*", str(key))}
        name = str(tool).rpartition("\n")[2]
        if name in SHELL_TOOLS and isinstance(kept.get("command"), str):
            return Call(name="shell", arguments={"command": kept["command"]})
        return Call(name=name, arguments=kept)
    if isinstance(command, str) and command.startswith("str_replace_editor "):
        return _editor_line(command)
    return Call(name=str(tool)) if tool else None


def _repeated(observation: str) -> Call | None:
    """The call that an observation repeats before its result."""
    found = _REPEATED.match(observation)
    if found is None:
        return None
    try:
        arguments = ast.literal_eval(found.group(2))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    name = "shell" if found.group(1) in SHELL_TOOLS else found.group(1)
    return Call(name=name, arguments={str(key): str(value) for key, value in arguments.items()})


def _editor_line(command: str) -> Call:
    """`str_replace_editor view PATH --view_range A B` as a call."""
    import shlex

    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    arguments: dict[str, Any] = {"command": words[1] if len(words) > 1 else "view"}
    index = 2
    if len(words) > 2 and not words[2].startswith("--"):
        arguments["path"] = words[2]
        index = 3
    while index < len(words):
        if words[index] == "--view_range" and index + 2 < len(words):
            arguments["view_range"] = [words[index + 1], words[index + 2]]
            index += 3
        elif words[index].startswith("--") and index + 1 < len(words):
            arguments[words[index][2:]] = words[index + 1]
            index += 2
        else:
            index += 1
    return Call(name="str_replace_editor", arguments=arguments)
