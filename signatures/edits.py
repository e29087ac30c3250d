"""Edits: the state is what the files *are*, however they came to be so.

Invariants:
- Where the environment gives `info["files"]` (path -> digest of the normalised content, or null for a file that is
  gone; only paths that differ from the start), the state is exactly that mapping: an edit that was reverted meets the
  start again, and two ways to one content meet each other.
- Linear: a turn costs time in the number of its changed paths. Keys are short digests of fixed length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.signatures.operations import Level, OperationsSignature, short_digest

SCRATCH = ("reproduce*", "repro_*", "debug*", "scratch*", "*.pyc", "*.orig", "*.rej", "__pycache__", ".pytest_cache")
"""Name patterns of files an agent makes for itself or that tools generate; any part of a path may match."""


@dataclass(frozen=True)
class EditState:
    """`files`: path -> digest or None, for every path that differs from the start; `outcome` the last test outcome."""

    files: tuple[tuple[str, str | None], ...] = ()
    outcome: str = ""
    key: str = "start"


class EditsSignature:
    """State: the changed files' contents. Action: the operation on its target.

    `outcome` adds the last test outcome to the state (registered as `workspace`); `scratch=False` drops files that
    look like the agent's own scratch or generated files; `action` chooses the level of action keys (`exact`, `bucket`
    or `file`).
    """

    def __init__(self, outcome: bool = False, scratch: bool = False, action: Level = "exact") -> None:
        self._outcome = outcome
        self._scratch = scratch
        self._operations = OperationsSignature(level=action)

    def start(self, opening: Opening) -> EditState:
        """Return the state of untouched files (or of those the opening's info already calls changed)."""
        return self._changed(EditState(), opening.info)

    def action_key(self, turn: Turn) -> str:
        """Name the turn by its operations."""
        return self._operations.action_key(turn)

    def advance(self, state: EditState, turn: Turn) -> EditState:
        """Take over what the turn's info says of files and tests."""
        return self._changed(state, turn.info)

    def state_key(self, state: EditState) -> str:
        """Return the digest of the state, `start` where nothing differs and no test ran."""
        return state.key

    def _changed(self, state: EditState, info: Mapping[str, Any]) -> EditState:
        files, outcome = state.files, state.outcome
        given = info.get("files")
        if isinstance(given, Mapping):
            files = tuple(
                sorted((path, digest) for path, digest in given.items() if self._scratch or not is_scratch(path))
            )
        if self._outcome and info.get("tests") is not None:
            outcome = short_digest(info["tests"])
        if files == state.files and outcome == state.outcome:
            return state
        key = f"{short_digest(files) if files else 'start'}" + (f"/{outcome}" if outcome else "")
        return replace(state, files=files, outcome=outcome, key=key)


def is_scratch(path: str) -> bool:
    """Whether a path looks like an agent's scratch file or a generated one.

    >>> is_scratch("reproduce_issue.py"), is_scratch("pkg/__pycache__/m.cpython-311.pyc"), is_scratch("pkg/m.py")
    (True, True, False)
    """
    return any(fnmatch(part, pattern) for part in path.split("/") for pattern in SCRATCH)


def workspace(**options: Any) -> EditsSignature:
    """Build the `workspace` signature: edits and the last test outcome."""
    return EditsSignature(outcome=True, **options)
