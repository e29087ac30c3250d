"""The files an agent starts with: the buggy `m.py`, the visible tests `t.py`, and a repository of one commit.

Invariants: a function of the task's public part alone. `t.py` needs nothing but Python; `python t.py` prints one line,
`pytest t.py` works too. Nothing the agent does to it matters for grading.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from agentgym_rtmc.environments.code_repair.cases import decode, show_steps
from agentgym_rtmc.environments.code_repair.gitfiles import one_commit
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

PROGRAM = "m.py"
TESTS = "t.py"


@cache
def _package_text(name: str) -> str:
    return files("agentgym_rtmc.environments.code_repair").joinpath(name).read_text(encoding="utf-8")


def system_prompt(version: str) -> str:
    """The text of `prompts/system-<version>.txt`."""
    return _package_text(f"prompts/system-{version}.txt").strip()


def start_files(task: Task) -> dict[str, bytes]:
    """Return path to content of a task's workspace, `.git` included. Raises TaskError naming a field it lacks."""
    source, visible = task.public.get("source"), task.public.get("visible")
    if not isinstance(source, str) or not isinstance(visible, list):
        raise TaskError(f"task {task.id!r} has no public 'source' (text) and 'visible' (list of [call, value])")
    written = {PROGRAM: source.encode(), TESTS: visible_tests(visible).encode()}
    return {**written, **one_commit(written, "Start")}


def visible_tests(visible: list[Any]) -> str:
    """Return the text of `t.py` for pairs of a call and its typed value."""
    rows = (f"    ({show_steps(call)!r}, {decode(value)!r})," for call, value in visible)
    return _package_text("visible_tests.txt").replace("$CASES", "\n".join(rows))


def content_digest(data: bytes) -> str:
    """Digest of a file's content up to line ends, blanks at the ends of lines and blank lines at its end.

    >>> content_digest(b"a = 1 \\r\\n\\n") == content_digest(b"a = 1\\n")
    True
    """
    lines = [line.rstrip() for line in data.replace(b"\r\n", b"\n").split(b"\n")]
    return hashlib.sha256(b"\n".join(lines).rstrip(b"\n")).hexdigest()[:16]
