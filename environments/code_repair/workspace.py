"""The files an agent starts with: the buggy `m.py`, the visible tests `t.py`, and a repository of one commit.

Where a task has tests instead of cases, `harness.py` runs them, and there may be modules beside the program.

Invariants: a function of the task's public part alone. `t.py` needs nothing but Python; `python t.py` prints one line,
`pytest t.py` works too. Nothing the agent does to it matters for grading.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from string import Template
from typing import Any

from agentgym_rtmc.environments.code_repair.cases import decode, show_steps
from agentgym_rtmc.environments.code_repair.gitfiles import one_commit
from agentgym_rtmc.environments.sandbox import git_index
from agentgym_rtmc.environments.sandbox.snapshot import Snapshot
from agentgym_rtmc.environments.sandbox.tree import Entry
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.tasks import Task

PROGRAM = "m.py"
TESTS = "t.py"
HARNESS = "harness.py"
_TESTS_HEAD = "import harness\n\nglobals().update(harness.names_of('m'))\n\n\n"
_TESTS_TAIL = '\n\nif __name__ == "__main__":\n    __import__("harness").run(globals())\n'
_GENERATED = (".git", "__pycache__", ".pytest_cache")
_INDEX = ".git/index"


@cache
def _package_text(name: str) -> str:
    return files("agentgym_rtmc.environments.code_repair").joinpath(name).read_text(encoding="utf-8")


def system_prompt(version: str, **values: str) -> str:
    """The text of `prompts/system-<version>.txt`, its `$name`s filled in. Raises ConfigError for an unknown version."""
    try:
        text = _package_text(f"prompts/system-{version}.txt")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no system prompt {version!r}; known: v1") from error
    return Template(text).substitute(values).strip()


def start_snapshot(task: Task) -> Snapshot:
    """Return a task's workspace, `.git` included. Raises TaskError naming the field that the task lacks."""
    source, visible, tests = (task.public.get(name) for name in ("source", "visible", "tests"))
    beside = task.public.get("files", {})
    if not isinstance(source, str) or not isinstance(beside, dict):
        raise TaskError(f"task {task.id!r} has no public 'source' (text), or 'files' that are not path to text")
    if isinstance(tests, str):
        return _tests_snapshot(source, tests, json.dumps(beside))
    if not isinstance(visible, list):
        raise TaskError(f"task {task.id!r} has no public 'visible' (list of [call, value]) or 'tests' (text)")
    return _cases_snapshot(source, json.dumps(visible))


@lru_cache(maxsize=1024)
def _cases_snapshot(source: str, visible: str) -> Snapshot:
    return _committed({PROGRAM: source, TESTS: visible_tests(json.loads(visible))})


@lru_cache(maxsize=1024)
def _tests_snapshot(source: str, tests: str, beside: str) -> Snapshot:
    ours = {TESTS: f"{_TESTS_HEAD}{tests.strip()}\n{_TESTS_TAIL}", HARNESS: _package_text("asserts/harness.py")}
    return _committed({**json.loads(beside), PROGRAM: source, **ours})


def _committed(files: Mapping[str, str]) -> Snapshot:
    written = {path: text.encode() for path, text in sorted(files.items())}
    return Snapshot.of({**written, **one_commit(written, "Start")})


def visible_tests(visible: list[Any]) -> str:
    """Return the text of `t.py` for pairs of a call and its typed value."""
    rows = (f"    ({show_steps(call)!r}, {decode(value)!r})," for call, value in visible)
    return _package_text("visible_tests.txt").replace("$CASES", "\n".join(rows))


def changed_files(start: Snapshot, now: Snapshot) -> dict[str, str | None]:
    """Return path to `content_digest` of each file or link that differs from the start, None for a deleted one.

    What git and Python keep for themselves, folders and permission bits do not count.
    """
    if now is start:
        return {}
    before, after = start.entries, now.entries
    changed: dict[str, str | None] = {}
    for path in sorted({*before, *after}):
        if before.get(path) is after.get(path) or any(part in _GENERATED for part in path.split("/")):
            continue
        old, new = _digest(before.get(path)), _digest(after.get(path))
        if old != new:
            changed[_printable(path)] = new
    return changed


def _printable(path: str) -> str:
    """A path as text that every file format can hold: bytes that are not UTF-8 as backslash escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _digest(entry: Entry | None) -> str | None:
    if entry is None or stat.S_ISDIR(entry.mode):
        return None
    return content_digest(b"-> " + entry.data if stat.S_ISLNK(entry.mode) else entry.data)


def reverts_to_start(start: Snapshot, now: Snapshot) -> bool:
    """Whether `git checkout .` would bring back exactly the start: only plain tracked files differ from it."""
    before, after = start.entries, now.entries
    for path in {*before, *after}:
        old, new = before.get(path), after.get(path)
        if old is new or old == new:
            continue
        tracked = old is not None and stat.S_ISREG(old.mode) and not path.startswith(".git/")
        if tracked and (new is None or stat.S_ISREG(new.mode)):
            continue
        if path == _INDEX and old and new and git_index.meaning(old.data) == git_index.meaning(new.data):
            continue
        return False
    return True


def content_digest(data: bytes) -> str:
    """Digest of a file's content up to line ends, blanks at the ends of lines and blank lines at its end.

    >>> content_digest(b"a = 1 \\r\\n\\n") == content_digest(b"a = 1\\n")
    True
    """
    lines = [line.rstrip() for line in data.replace(b"\r\n", b"\n").split(b"\n")]
    return hashlib.sha256(b"\n".join(lines).rstrip(b"\n")).hexdigest()[:16]
