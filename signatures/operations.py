"""The operations signature: the state is what has been seen and done so far, the action what a turn does.

After the paper's table, as restated in `docs/signatures.md`. State: an order-invariant, cumulative record of operations
per file (`Vf` whole view, `V[b]` views in buckets, `S` search, `C` create, `M` modify, `I` insert) and flags (failed
and passed tests). Action: `category[:scope]@target[:ok|error]`, several operations of one turn joined by `+`.

Invariants:
- A file taken back (`git checkout -- f`) loses its edits from the record: a reverted edit meets the start again.
- Linear: a turn costs time in its own operations; the state key is a sum of digests that is kept up as the record
  grows, so its cost does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.errors import SignatureError
from agentgym_rtmc.signatures.digests import bounded, short_digest
from agentgym_rtmc.signatures.growing import GrowingMap, GrowingSet
from agentgym_rtmc.signatures.shell_commands import DEFAULT_ROOT
from agentgym_rtmc.signatures.shell_operations import Operation
from agentgym_rtmc.signatures.test_outcomes import outcome_key
from agentgym_rtmc.signatures.tools import read_call

Level = Literal["exact", "bucket", "file"]
BUCKET = 100
"""Lines per bucket of a partial view."""
_MASK = (1 << 64) - 1
_EDITS = ("M", "I", "D")
"""First letters of marks that a revert takes away (created files stay)."""


@dataclass(frozen=True)
class Record:
    """What has been done: looked at and created, as (path, mark) pairs; edited, as marks by path; the last outcome."""

    seen: GrowingSet = field(default_factory=GrowingSet)
    edits: GrowingMap = field(default_factory=GrowingMap)
    tests: str = ""


class OperationsSignature:
    """State: the record of operations. Action: the turn's operations.

    `level`: `exact` keeps line ranges, patterns and arguments, `bucket` counts views in hundreds of lines, `file` only
    keeps which kind of operation touched which file. `content_hashes`: edits carry a digest of their content (default:
    at level `exact`); `outcome`: the action key ends in `:ok` or `:error`, read from the turn's info or observation;
    `tests`: the last failed and passed counts are part of the state. `root` is where shell commands start.
    """

    def __init__(
        self,
        level: Level = "exact",
        content_hashes: bool | None = None,
        outcome: bool = False,
        tests: bool = True,
        root: str = DEFAULT_ROOT,
    ) -> None:
        if level not in ("exact", "bucket", "file"):
            raise SignatureError(f"level {level!r} is none of 'exact', 'bucket', 'file'")
        self._level = level
        self._hashes = level == "exact" if content_hashes is None else content_hashes
        self._outcome = outcome
        self._tests = tests
        self._root = root

    def start(self, opening: Opening) -> Record:
        """Return the empty record."""
        return Record()

    def action_key(self, turn: Turn) -> str:
        """Name the turn's operations, in order; `unparsed` where no call could be read."""
        if not turn.calls:
            return "unparsed"
        names = [self._name(operation) for operation in self._operations(turn)]
        key = bounded("+".join(dict.fromkeys(names)) or "think")
        return key + (f":{outcome_of(turn)}" if self._outcome else "")

    def advance(self, state: Record, turn: Turn) -> Record:
        """Add the turn's operations."""
        seen, edits = state.seen, state.edits
        ran = "tests" in turn.info
        for operation in self._operations(turn):
            if operation.category == "revert":
                edits = _reverted(edits, operation.paths)
                continue
            ran = ran or operation.category in ("test", "execute", "other")
            mark = self._mark(operation)
            for path in (operation.paths or (".",)) if mark else ():
                if mark.startswith(_EDITS):
                    edits = edits.with_marks(path, edits.marks(path) | {mark})
                else:
                    seen = seen.with_item((path, mark))
        # Only counts, as in the table; which tests failed is the business of `test_outcomes`.
        tests = outcome_key(turn).partition(":")[0] if self._tests and ran else ""
        return Record(seen, edits, tests or state.tests)

    def state_key(self, state: Record) -> str:
        """Return the digest of the record; `start` before anything is known."""
        total = (state.seen.total + state.edits.total) & _MASK
        key = f"{total:016x}" if total else "start"
        return f"{key}/{state.tests}" if state.tests else key

    def _operations(self, turn: Turn) -> list[Operation]:
        return [operation for call in turn.calls for operation in read_call(call, self._root)]

    def _name(self, operation: Operation) -> str:
        category = _CATEGORIES.get(operation.category, operation.category)
        target = ",".join(operation.paths)
        scope = ""
        if self._level == "exact":
            scope = self._exact_scope(operation)
        elif self._level == "bucket":
            scope = _view_scope(operation, BUCKET) if operation.view is not None else self._exact_scope(operation)
        elif self._hashes and operation.category in _HASHED:
            scope = short_digest(operation.detail, 4)
        if not target:
            target = "" if scope or self._level == "exact" else operation.line.text.split(" ")[0]
        return f"{category}{':' + scope if scope else ''}@{target}"

    def _exact_scope(self, operation: Operation) -> str:
        if operation.view is not None:
            return _view_scope(operation, 1)
        if operation.category in _HASHED:
            return short_digest(operation.detail, 8) if self._hashes else ""
        if operation.category == "revert":
            return ""
        return _short(operation.line.flat())

    def _mark(self, operation: Operation) -> str:
        category = operation.category
        hashed = f":{short_digest(operation.detail, 8)}" if self._hashes else ""
        if category == "view":
            if self._level == "file":
                return "V"
            return f"V[{_view_scope(operation, BUCKET if self._level == 'bucket' else 1)}]"
        if category in ("search", "list", "inspect"):
            return (
                "" if category == "inspect" else "S" + (f":{_short(operation.detail)}" if self._level != "file" else "")
            )
        marks = {"create": "C", "append": "I", "insert": "I", "modify": "M", "delete": "D", "move": "D"}
        return marks[category] + hashed if category in marks else ""


_HASHED = ("create", "append", "modify", "insert")
_CATEGORIES = {"list": "search", "inspect": "view", "append": "insert", "move": "fileop", "delete": "fileop",
               "vcs": "fileop", "say": "think", "other": "execute"}  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= 60 and "\n" not in text else short_digest(text)


def _view_scope(operation: Operation, size: int) -> str:
    view = operation.view
    if view is None or (view.ranges is None and view.tail is None):
        return "f" if view is not None else _short(operation.detail)
    if view.ranges is None:
        return f"-{view.tail if size == 1 else -(-(view.tail or 1) // size) * size}"
    out: list[str] = []
    for first, last in view.ranges:
        low = (first - 1) // size if size > 1 else first
        high = "" if last is None else (last - 1) // size if size > 1 else last
        out.append(f"{low}" if high == low else f"{low}-{high}")
    return ",".join(dict.fromkeys(out))


def _reverted(edits: GrowingMap, paths: tuple[str, ...]) -> GrowingMap:
    if "." in paths:
        return GrowingMap()
    for path in paths:
        edits = edits.with_marks(path, frozenset())
        for inside in [key for key in edits if key.startswith(path.rstrip("/") + "/")] if "." not in path[1:] else ():
            edits = edits.with_marks(inside, frozenset())
    return edits


_ERROR = re.compile(
    r"^(?:\S*(?:Error|Exception)\b|Traceback \(most recent|.*: (?:No such file|command not found))", re.MULTILINE
)


def outcome_of(turn: Turn) -> Literal["ok", "error"]:
    """Whether a turn went well: by `info["exit_code"]` where given, else by the observation."""
    code = turn.info.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        return "error" if code else "ok"
    return "error" if _ERROR.search(turn.observation[:20_000]) else "ok"
