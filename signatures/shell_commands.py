"""Shell commands in one spelling: commands with one effect get one text, commands with different effects never do.

The effect of a command is the file tree after it, the files and lines it disclosed, and the tests it ran.

Invariants:
- `canonical_command` never raises, is linear in practice (bounded loops are unrolled) and idempotent: its result is
  itself a command, with the same effect when run at the root.
- A script whose commands change what later ones mean in ways that are not followed (`cd` that may fail, functions,
  `eval`, variables set in a branch, `$?`) keeps its commands as written, quoted one way.
- What cannot be parsed is returned as it is, without surrounding white space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from agentgym_rtmc.signatures.shell import parse
from agentgym_rtmc.signatures.shell_operations import Item, Operation, idle, script_line
from agentgym_rtmc.signatures.shell_scripts import Interpreter
from agentgym_rtmc.signatures.shell_text import Line, render
from agentgym_rtmc.signatures.shell_tree import Sequence
from agentgym_rtmc.signatures.shell_words import Place, Unfoldable

DEFAULT_ROOT = "/testbed"
MAX_ROUNDS = 6


@dataclass(frozen=True)
class Reading:
    """A command read: its canonical text, its operations in order, and whether it could be parsed."""

    text: str
    operations: tuple[Operation, ...]
    parsed: bool = True


def canonical_command(text: str, root: str = DEFAULT_ROOT) -> str:
    """Return the canonical spelling of a shell command.

    `root` is the folder the command starts in; paths below it are written relative to it.

    >>> canonical_command("cd /testbed && nl -ba ./pkg/m.py | sed -n '5,9p' 2>/dev/null || true")
    'sed -n 5,9p pkg/m.py'
    """
    return read_command(text, root).text


@lru_cache(maxsize=8192)
def read_command(text: str, root: str = DEFAULT_ROOT) -> Reading:
    """Read a command; see `Reading`.

    The canonical text is read again until it no longer changes, so that it is its own canonical text whatever oddities
    a command holds; one round is the rule. Readings that never settle (not seen) count as not parsed.
    """
    stripped = text.replace("\r\n", "\n").strip()
    seen = [_read(stripped, root)]
    if seen[0].text == stripped:
        return seen[0]
    while len(seen) < MAX_ROUNDS:
        again = _read(seen[-1].text, root)
        if again.text == seen[-1].text:
            return again
        settled = next((one for one in seen if one.text == again.text), None)
        if settled is not None:  # a circle: every member of it names the same one
            return min(seen[seen.index(settled) :], key=lambda one: one.text)
        seen.append(again)
    return _unread(stripped)


def forget_commands() -> None:
    """Empty the memory of commands read; for measuring."""
    read_command.cache_clear()
    _read.cache_clear()


def _unread(text: str) -> Reading:
    return Reading(text, (Operation("other", Line(text), detail=text),), parsed=False)


@lru_cache(maxsize=8192)
def _read(stripped: str, root: str) -> Reading:
    tree = parse(stripped)
    if tree is None:
        return _unread(stripped)
    place = Place(root=root.rstrip("/") or "/")
    try:
        items = Interpreter().script(tree, place)
    except Unfoldable:
        return _as_written(tree, root)
    if not items:
        moved = place.directory not in ("", None)
        items = [Item(";", replace(idle(f"cd {place.path_text_of_directory()}"), idle=False) if moved else idle())]
    line = script_line(items)
    return Reading(line.flat(), tuple(_leaves(items)))


def _as_written(tree: Sequence, root: str) -> Reading:
    """A script that cannot be folded: its text in one spelling, and behind what it does by all appearances, itself."""
    text = render(tree).flat()
    items = Interpreter().script(tree, Place(root=root.rstrip("/") or "/", strict=False))
    return Reading(text, (*_leaves(items), Operation("other", Line(text), detail=text)))


def _leaves(items: list[Item]) -> list[Operation]:
    out: list[Operation] = []
    pending = [item.operation for item in reversed(items)]
    while pending:
        operation = pending.pop()
        if operation.parts:
            pending.extend(reversed(operation.parts))
        else:
            out.append(operation)
    return out
