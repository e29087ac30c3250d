"""Edits: the state is what the files *are*, however they came to be so.

Invariants:
- Where the environment gives `info["files"]` (path -> digest of the normalised content, or null for a file that is
  gone; only paths that differ from the start), the state is exactly that mapping: an edit that was reverted meets the
  start again, and two ways to one content meet each other.
- Elsewhere the edits are replayed: a created file is its content, any other edit extends the file's history, a revert
  takes it away, and a whole `git diff` that was shown replaces all of it. Such keys begin with `~`: approximate.
- Linear: a turn costs time in the number of its changed paths. Keys are short digests of bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.signatures.digests import short_digest, text_digest
from agentgym_rtmc.signatures.operations import Level, OperationsSignature
from agentgym_rtmc.signatures.shell_commands import DEFAULT_ROOT
from agentgym_rtmc.signatures.shell_operations import Operation
from agentgym_rtmc.signatures.test_outcomes import outcome_key
from agentgym_rtmc.signatures.tools import read_call

SCRATCH = ("reproduce*", "repro_*", "repro.*", "debug*", "scratch*", "verify_*", "check_*.py", "*.pyc", "*.orig",
           "*.rej", "*.log", "__pycache__", ".pytest_cache", "*.egg-info", ".tox", "build", ".coverage")  # fmt: skip
"""Name patterns of files that agents make for themselves or that tools generate; any part of a path may match."""


@dataclass(frozen=True)
class EditState:
    """`files`: path -> digest or None, for every path that differs from the start; `outcome` the last test outcome."""

    files: tuple[tuple[str, str | None], ...] = ()
    outcome: str = ""
    known: bool = False
    key: str = "start"


class EditsSignature:
    """State: the changed files' contents. Action: the operation on its target.

    `outcome` adds the last test outcome to the state (registered as `workspace`); `scratch=False` drops files that
    look like the agent's own scratch or generated files, `new_files=False` every path the agent created (replayed edits
    only); `whitespace=False` ignores white space in replayed edits and diffs; `action` chooses the level of action keys
    (`exact`, `bucket` or `file`).
    """

    def __init__(
        self,
        outcome: bool = False,
        scratch: bool = False,
        new_files: bool = True,
        whitespace: bool = True,
        action: Level = "exact",
        root: str = DEFAULT_ROOT,
    ) -> None:
        self._outcome = outcome
        self._scratch = scratch
        self._new_files = new_files
        self._whitespace = whitespace
        self._root = root
        self._operations = OperationsSignature(level=action, root=root)

    def start(self, opening: Opening) -> EditState:
        """Return the state of untouched files (or of those the opening's info already calls changed)."""
        given = _given(opening.info)
        return EditState() if given is None else self._state(EditState(known=True), given, "")

    def action_key(self, turn: Turn) -> str:
        """Name the turn by its operations."""
        return self._operations.action_key(turn)

    def advance(self, state: EditState, turn: Turn) -> EditState:
        """Take over what the turn's info says of files and tests; replay its edits where it says nothing."""
        outcome = (outcome_key(turn) if self._outcome else "") or state.outcome
        given = _given(turn.info)
        if given is not None:
            return self._state(replace(state, known=True), given, outcome)
        if state.known:
            return self._state(state, dict(state.files), outcome)
        return self._state(state, self._replayed(dict(state.files), turn), outcome)

    def state_key(self, state: EditState) -> str:
        """Return the digest of the state, `start` where nothing differs and no test ran."""
        return state.key

    def _state(self, state: EditState, files: Mapping[str, str | None], outcome: str) -> EditState:
        kept = tuple(sorted((path, value) for path, value in files.items() if self._scratch or not is_scratch(path)))
        if kept == state.files and outcome == state.outcome:
            return state
        key = short_digest(kept) if kept else "start"
        key = key if state.known or not kept else f"~{key}"
        return replace(state, files=kept, outcome=outcome, key=f"{key}/{outcome}" if outcome else key)

    def _replayed(self, files: dict[str, str | None], turn: Turn) -> dict[str, str | None]:
        for call in turn.calls:
            for operation in read_call(call, self._root):
                self._replay(files, operation, turn)
        return files

    def _replay(self, files: dict[str, str | None], operation: Operation, turn: Turn) -> None:
        category = operation.category
        if category == "revert":
            for path in [f for f in files if _below(f, operation.paths) and not (files[f] or "").startswith("new")]:
                del files[path]
        elif category in ("create", "append", "modify", "insert", "delete", "move"):
            patch = diff_files(operation.detail, self._whitespace) if category == "modify" else None
            if patch:
                for path, digest in patch.items():
                    files[path] = text_digest(f"{files.get(path)}\n{digest}")
                return
            for path in operation.paths:
                self._edit(files, path, operation)
        elif operation.line.text in ("git diff", "git_diff") and _whole(turn):
            shown = diff_files(turn.observation, self._whitespace)
            if shown is not None:
                new = {path: value for path, value in files.items() if (value or "").startswith("new")}
                files.clear()
                files.update({**new, **shown})

    def _edit(self, files: dict[str, str | None], path: str, operation: Operation) -> None:
        if operation.category == "delete":
            if (files.get(path) or "").startswith("new"):
                del files[path]
            else:
                files[path] = None
            return
        detail = operation.detail if self._whitespace else re.sub(r"\s+", "", operation.detail)
        if operation.category == "create":
            if self._new_files:
                files[path] = f"new{text_digest(detail)}"
            return
        before = files.get(path, "")
        prefix = "new" if (before or "").startswith("new") else ""
        files[path] = prefix + text_digest(f"{before}\n{operation.category}\n{detail}")


def _given(info: Mapping[str, Any]) -> dict[str, str | None] | None:
    files = info.get("files")
    if not isinstance(files, Mapping):
        return None
    return {str(path): None if digest is None else str(digest) for path, digest in files.items()}


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(folder == "." or path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _whole(turn: Turn) -> bool:
    return len(turn.observation) < 100_000 and "diff --git" in turn.observation[:2000]


def diff_files(text: str, whitespace: bool = True) -> dict[str, str | None] | None:
    """Digest what a diff does to each file (null: deleted); None where the text holds no readable diff.

    >>> diff_files("not a diff") is None
    True
    """
    start = re.search(r"^(?:diff --git |--- )", text, re.MULTILINE)
    if start is None:
        return None
    try:
        patch = PatchSet(text[start.start() :])
    except (UnidiffParseError, UnicodeDecodeError):
        return None
    found: dict[str, str | None] = {}
    for file in patch:
        lines = [f"{line.line_type}{line.value}" for hunk in file for line in hunk if line.line_type in "+-"]
        body = "".join(lines if whitespace else (re.sub(r"\s+", "", line) for line in lines))
        found[file.path] = None if file.is_removed_file else text_digest(body)
    return found or None


@lru_cache(maxsize=65_536)
def is_scratch(path: str) -> bool:
    """Whether a path looks like an agent's scratch file or a generated one.

    >>> is_scratch("reproduce_issue.py"), is_scratch("pkg/__pycache__/m.cpython-311.pyc"), is_scratch("pkg/m.py")
    (True, True, False)
    """
    return path.startswith("/") or any(fnmatch(part, pattern) for part in path.split("/") for pattern in SCRATCH)


def workspace(**options: Any) -> EditsSignature:
    """Build the `workspace` signature: edits and the last test outcome."""
    return EditsSignature(outcome=True, **options)
