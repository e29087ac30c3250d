"""Is a job done? Judged on the files alone, outside the sandbox, by what the task's private part expects.

`changes` maps a path to what must become of it:

- a text, or an object as in `files.py` (`mode` counts where it is given): exactly this file, link or folder;
- `{"gone": true}`: nothing is there;
- `{"number": x}`, `{"line": text}`, `{"lines": […]}`, `{"set": […]}`: a file that holds this answer;
- `{"json": value}`: a file that holds this JSON value, however it is written;
- `{"archive": {path: text}}`: a tar archive, compressed or not, with exactly these files.

Invariants: every other path must be as it was, permission bits and all, and nothing else may have come up; whatever an
agent puts into a file is only ever read, within bounds, and never raises.
"""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from agentgym_rtmc.environments.sandbox.snapshot import Snapshot
from agentgym_rtmc.environments.sandbox.tree import Entry
from agentgym_rtmc.environments.terminal.archives import read_archive
from agentgym_rtmc.environments.terminal.files import read_file
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

_MOST_BYTES = 200_000
_FILES = ("text", "base64", "link", "folder")
_TOLERANCE = 0.005


@dataclass(frozen=True)
class Verdict:
    """`right` of `wanted` changes are there, and `damaged` paths changed that should not have."""

    right: int
    wanted: int
    damaged: tuple[str, ...] = ()

    @property
    def solved(self) -> bool:
        """Whether all is as it should be."""
        return self.right == self.wanted and not self.damaged

    @property
    def progress(self) -> float:
        """From 0 to 1: the share of the changes that are there, less one change for each damaged path."""
        return max(0, self.right - len(self.damaged)) / self.wanted


def judge(task: Task, start: Snapshot, now: Snapshot) -> Verdict:
    """Judge the files as they are. Raises TaskError for a task that expects nothing."""
    changes = task.private.get("changes")
    if not isinstance(changes, dict) or not changes:
        raise TaskError(f"task {task.id!r} has no private 'changes' (path to what must become of it)")
    right = sum(_is_right(path, wanted, now.entries.get(path)) for path, wanted in changes.items())
    return Verdict(right, len(changes), tuple(_damaged(changes, start.entries, now.entries)))


def _damaged(changes: Mapping[str, JsonValue], start: Mapping[str, Entry], now: Mapping[str, Entry]) -> list[str]:
    above = {path[:end] for path in changes for end, letter in enumerate(path) if letter == "/"}
    damaged = []
    for path in {*start, *now}:
        before, after = start.get(path), now.get(path)
        if before is after or before == after or path in changes:
            continue
        # A folder that a wanted file lies in has to be made, or may be left over.
        if path in above and (after is None or stat.S_ISDIR(after.mode)) and before is None:
            continue
        damaged.append(path)
    return sorted(damaged)


def _is_right(path: str, wanted: JsonValue, found: Entry | None) -> bool:
    if not isinstance(wanted, dict):
        wanted = {"text": wanted}
    if "gone" in wanted:
        return found is None
    if found is None:
        return False
    if any(kind in wanted for kind in _FILES):
        return _is_file(read_file(path, wanted), found, "mode" in wanted)
    if not stat.S_ISREG(found.mode) or len(found.data) > _MOST_BYTES:
        return False
    if "archive" in wanted:
        files = wanted["archive"]
        assert isinstance(files, dict)
        return read_archive(found.data) == {name: str(text).encode() for name, text in files.items()}
    try:
        text = found.data.decode()
    except UnicodeDecodeError:
        return False
    return _answers(path, wanted, text)


def _is_file(wanted: Entry, found: Entry, mode_counts: bool) -> bool:
    """Whether an entry is another, up to line breaks at the end of a file."""
    if stat.S_IFMT(wanted.mode) != stat.S_IFMT(found.mode) or (mode_counts and wanted.mode != found.mode):
        return False
    if stat.S_ISREG(wanted.mode):
        return wanted.data.rstrip(b"\n") == found.data.rstrip(b"\n")
    return wanted.data.rstrip(b"/") == found.data.rstrip(b"/")


def _answers(path: str, wanted: Mapping[str, JsonValue], text: str) -> bool:
    lines = [_as_path(line.strip()) for line in text.splitlines() if line.strip()]
    if "number" in wanted:
        return len(lines) == 1 and _is_number(float(str(wanted["number"])), lines[0])
    if "line" in wanted:
        return lines == [wanted["line"]]
    if "lines" in wanted:
        return lines == wanted["lines"]
    if "set" in wanted:
        assert isinstance(wanted["set"], Sequence)
        return Counter(lines) == Counter(map(str, wanted["set"]))
    if "json" in wanted:
        try:
            return same_json(wanted["json"], json.loads(text))
        except (ValueError, RecursionError):
            return False
    raise TaskError(f"nothing known is expected of {path!r}: {', '.join(wanted)}")


def _as_path(line: str) -> str:
    return line[2:] if line.startswith("./") and len(line) > 2 else line


def _is_number(wanted: float, text: str) -> bool:
    try:
        found = float(text)
    except ValueError:
        return False
    return math.isfinite(found) and abs(found - wanted) <= _TOLERANCE


def same_json(one: JsonValue, other: object) -> bool:
    """Whether two JSON values are the same; unlike in Python, true is not 1.

    >>> same_json({"a": [1, True]}, {"a": [1.0, True]}), same_json(1, True)
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other
