"""Reads recorded episodes of any known format, one bad row at a time: unreadable ones are located, the rest goes on.

Formats, told from the content: `episodes` (our `episodes.jsonl`), `steps` (rows with `steps`), `swe-agent` (`.traj`),
`mini-swe-agent` (`.traj.json`), `chat` (JSON lines with `messages` and a `reward`). Packed files are unpacked.
Invariants: an episode whose outcome nobody recorded is counted as unlabelled, and left out (credit cannot be assigned
without) unless asked for; its return is then 0 and says nothing. Nothing is dropped without being counted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episode_file import FORMAT, EpisodeReader
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import EpisodeFileError, nearest
from agentgym_rtmc.importers.chats import calls_of, turns_of_messages
from agentgym_rtmc.importers.step_rows import episode_of_row, is_step_row
from agentgym_rtmc.packed import DAMAGED, open_unpacked
from agentgym_rtmc.tasks import Task

FORMATS = ("episodes", "steps", "swe-agent", "mini-swe-agent", "chat")
Outcomes = Mapping[str, float]
"""File as it was named (`file:line` for a row), its name without endings, or task id -> return where none is held."""

ONE_A_FILE = ("swe-agent", "mini-swe-agent")
ONE_A_FILE_SUFFIXES = (".traj", ".json")
_TASK_KEYS = ("task_id", "instance_id", "task", "group", "prompt_id")  # a plain "id" mostly numbers the rows
_REWARD_KEYS = ("reward", "score", "resolved")
_NO_TURNS = "no turns of an agent in it"


@dataclass(frozen=True)
class Problem:
    """A file or row that gave no episode, and why."""

    where: str
    reason: str


@dataclass
class Recorded:
    """What some files hold: labelled episodes, the ids of unlabelled ones, and what could not be read."""

    episodes: list[Episode] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_recorded(
    paths: Iterable[str | Path],
    *,
    format: str | None = None,
    outcomes: Outcomes | None = None,
    keep_unlabelled: bool = False,
) -> Recorded:
    """Read files of any known format. Raises EpisodeFileError for an unknown one; all else is a problem on record.

    With `keep_unlabelled` the episodes of unknown outcome are among `episodes` too; `unlabelled` holds their ids.
    """
    if format is not None and format not in FORMATS:
        raise EpisodeFileError(f"there is no format {format!r}{nearest(format, FORMATS)}")
    recorded = Recorded()
    for path in map(Path, paths):
        try:
            _read_file(path, format, outcomes or {}, keep_unlabelled, recorded)
        except (OSError, *DAMAGED, EpisodeFileError) as error:
            recorded.problems.append(Problem(str(path), _reason(error)))
    return recorded


def read_outcomes(path: Path) -> dict[str, float]:
    """Read outcomes: `{id: number or true/false}`, or an evaluation report with `resolved_ids`, `unresolved_ids`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EpisodeFileError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise EpisodeFileError(f"{path}: not an object of outcomes by task id")
    if isinstance(value.get("resolved_ids"), list):
        lost = [*(value.get("unresolved_ids") or ()), *(value.get("empty_patch_ids") or ())]
        return {**dict.fromkeys(map(str, lost), 0.0), **dict.fromkeys(map(str, value["resolved_ids"]), 1.0)}
    return {str(key): float(number) for key, number in value.items() if isinstance(number, int | float)}


def _read_file(path: Path, format: str | None, outcomes: Outcomes, keep_unlabelled: bool, into: Recorded) -> None:
    with open_unpacked(path) as file:
        head = _json_object(file.readline())
    if format == "episodes" or (format is None and head is not None and head.get("format") == FORMAT):
        reader = EpisodeReader(path, strict=False)
        try:
            into.episodes.extend(reader)
        finally:
            into.problems += [Problem(f"{path}:{skipped.line}", skipped.reason) for skipped in reader.skipped]
        return
    read = False
    for where, document in _documents(path, format):
        read = True
        try:
            episode, labelled = _episode(format, json.loads(document), path, where, outcomes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            into.problems.append(Problem(where, _reason(error)))
            continue
        if not labelled:
            into.unlabelled.append(where)
        if labelled or keep_unlabelled:
            into.episodes.append(episode)
    if not read:
        into.problems.append(Problem(str(path), "the file is empty"))


def _json_object(text: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def _documents(path: Path, format: str | None) -> Iterator[tuple[str, bytes]]:
    """Each JSON document of a file with its place: the whole file where it is one document, else its lines."""
    one = format in ONE_A_FILE
    if format is None and path.name.removesuffix(".gz").endswith(ONE_A_FILE_SUFFIXES):
        with open_unpacked(path) as file:  # where the first line is complete and others follow, these are lines
            one = _json_object(file.readline()) is None or not file.read().strip()
    with open_unpacked(path) as file:
        if one and (document := file.read()).strip():
            yield str(path), document
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}:{number}", line


def _kind_of(value: Mapping[str, Any]) -> str:
    if is_step_row(value):
        return "steps"
    if isinstance(value.get("trajectory"), list):
        return "swe-agent"
    if isinstance(value.get("messages"), list):
        return "mini-swe-agent" if "trajectory_format" in value or "info" in value else "chat"
    raise ValueError("none of the known formats: no steps, trajectory or messages in it")


def _episode(format: str | None, value: Any, path: Path, where: str, outcomes: Outcomes) -> tuple[Episode, bool]:
    """The episode of a document, and whether its outcome is known."""
    if not isinstance(value, Mapping):
        raise ValueError(f"a {type(value).__name__}, not an object")
    kind = format or _kind_of(value)
    if kind == "steps":
        if not is_step_row(value):
            raise ValueError("a row needs instance_id and steps")
        resolved = value.get("resolved")
        if not isinstance(resolved, bool | None):
            raise ValueError(f"resolved is {resolved!r}, not true, false or null")
        episode = episode_of_row(value, int(where.rpartition(":")[2]))
        if not episode.turns:
            raise ValueError(_NO_TURNS)
        return episode.model_copy(update={"id": where}), resolved is not None
    stem = _stem(path)
    rewards = [_number("rewards", reward) for reward in value.get("rewards") or ()]
    if kind == "swe-agent":
        opening, turns = "", _swe_agent_turns(value["trajectory"])
    else:
        opening, turns = turns_of_messages(value["messages"], rewards)
    if not turns:
        raise ValueError(_NO_TURNS)
    task = next((str(value[key]) for key in _TASK_KEYS if isinstance(value.get(key), str | int)), None)
    if task is None:
        task = _title(opening) or stem if kind == "chat" else stem
    outcome = sum(rewards) if rewards else _outcome(value, outcomes, (where, str(path), stem, task))
    if not rewards:
        turns[-1] = turns[-1].model_copy(update={"reward": outcome or 0.0})
    episode = Episode(
        id=where,
        group=task,
        opening=Opening(task=Task(id=task), observation=opening),
        turns=tuple(turns),
        terminated=True,
    )
    return episode, outcome is not None


def _title(prompt: str) -> str:
    """A name for the task that a prompt sets: the prompt itself, or its beginning and a digest."""
    text = prompt.strip()
    return text if len(text) <= 200 else f"{text[:180]}… {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _stem(path: Path) -> str:
    """The name without the endings of trajectories; other dots belong to the task's id."""
    name = path.name
    for ending in (".gz", ".jsonl", ".json", ".traj"):
        name = name.removesuffix(ending)
    return name


def _outcome(value: Mapping[str, Any], outcomes: Outcomes, names: Iterable[str]) -> float | None:
    for name in names:
        if name in outcomes:
            return outcomes[name]
    info = value.get("info")
    for holder in (value, info if isinstance(info, Mapping) else {}):
        for key in _REWARD_KEYS:
            if holder.get(key) is not None:
                return _number(key, holder[key])
    return None


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} {value!r} is not a finite number")
    return float(value)


def _swe_agent_turns(steps: Iterable[Mapping[str, Any]]) -> list[Turn]:
    turns = []
    for step in steps:
        action = str(step.get("action") or "").strip()
        calls = calls_of(step) if step.get("tool_calls") else ()
        if not calls and action:
            calls = (Call(name="shell", arguments={"command": action}),)
        text = str(step.get("response") or step.get("thought") or action)
        turns.append(Turn(text=text, calls=calls, observation=str(step.get("observation") or ""), reward=0.0))
    return turns


def _reason(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, KeyError):
        return f"lacks {error}"
    if isinstance(error, DAMAGED):
        return f"the packed file is cut off or damaged: {error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).partition("\n")[0] or type(error).__name__
