"""What a shell command does: operations, the values that canonical commands and operation keys are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentgym_rtmc.signatures.shell_text import Line, ended, quote, statements
from agentgym_rtmc.signatures.shell_tree import Sequence, Word, text_word
from agentgym_rtmc.signatures.shell_words import Place, quote_path

Category = Literal[
    "view", "search", "list", "inspect", "create", "append", "modify", "insert", "delete", "move", "revert",
    "execute", "test", "install", "vcs", "say", "finish", "other",
]  # fmt: skip

Range = tuple[int, int | None]
"""First and last line, 1-based and inclusive; None is the end of the file."""


@dataclass(frozen=True)
class View:
    """Lines shown of files (none: of standard input). `ranges` None is everything, `tail` the last so many lines."""

    paths: tuple[str, ...]
    ranges: tuple[Range, ...] | None = None
    tail: int | None = None

    def line(self) -> Line:
        """Write the view the one way."""
        paths = "".join(" " + path_quote(path) for path in self.paths)
        if self.tail is not None:
            return Line(f"tail -n {self.tail}{paths}")
        if self.ranges is None:
            return Line(f"cat{paths}")
        if len(self.paths) > 1:  # sed would count lines across the files
            first, last = self.ranges[0]
            return Line(f"head -n {last}{paths}" if last is not None else f"tail -n +{first}{paths}")
        script = ";".join(_range_text(first, last) for first, last in self.ranges)
        return Line(f"sed -n {quote(script)}{paths}")


def _range_text(first: int, last: int | None) -> str:
    if last is None:
        return f"{first},$p"
    return f"{first}p" if first == last else f"{first},{last}p"


def union(ranges: list[Range]) -> tuple[Range, ...] | None:
    """Sort and join ranges that overlap or touch; None when they make the whole file.

    >>> union([(11, 20), (1, 10), (30, 30)])
    ((1, 20), (30, 30))
    """
    out: list[Range] = []
    for first, last in sorted(ranges, key=lambda r: (r[0], float("inf") if r[1] is None else r[1])):
        if out and (out[-1][1] is None or first <= out[-1][1] + 1):
            previous = out[-1][1]
            out[-1] = (out[-1][0], None if previous is None or last is None else max(previous, last))
        else:
            out.append((first, last))
    return None if out == [(1, None)] else tuple(out)


def within(outer: tuple[Range, ...] | None, inner: tuple[Range, ...] | None) -> tuple[Range, ...] | None:
    """Lines `inner` of what `outer` lets through, as lines of the file; None is everything.

    >>> within(((50, None),), ((1, 10),))
    ((50, 59),)
    """
    if outer is None:
        return inner
    if inner is None:
        return outer
    out: list[Range] = []
    for first, last in inner:
        passed = 0
        for low, high in outer:
            size = None if high is None else high - low + 1
            start = low + max(0, first - passed - 1)
            if last is None:
                end = high
            else:
                end = low + last - passed - 1
                end = end if high is None else min(end, high)
            if (high is None or start <= high) and (end is None or end >= start) and (last is None or last > passed):
                out.append((start, end))
            if size is None:
                break
            passed += size
    return union(out) if out else ()


def path_quote(path: str) -> str:
    """Quote a path that is fixed text."""
    return quote_path(text_word(path))


@dataclass(frozen=True)
class Operation:
    """One thing a command does.

    `line` is its canonical shell; `paths` what it touches; `detail` what distinguishes two operations of one category
    on one path (pattern, edit script, content); `reads` marks commands that change nothing and only show;
    `silent` those whose output shows nothing of a file (so where it goes does not matter); `certain` those that
    cannot fail; `idle` those without any effect. `parts` are the operations inside a compound command.
    `raw` is the canonical shell with what only concerns the look of the output (line numbers, order of names), for
    what takes that output; `kept` the shell to the letter, for what keeps the output in a file; `status` the one that
    ends with the exit status given, for what asks for that. They are None where `line` has it all. `errors`: error
    messages go into the pipe as well.
    """

    category: Category
    line: Line
    paths: tuple[str, ...] = ()
    detail: str = ""
    view: View | None = None
    reads: bool = False
    silent: bool = False
    certain: bool = False
    idle: bool = False
    parts: tuple[Operation, ...] = ()
    raw: Line | None = None
    status: Line | None = None
    kept: Line | None = None
    errors: bool = False

    def wrapped(self, before: Line | str = "", after: Line | str = "") -> Operation:
        """The operation with something written before and behind it, in all of its spellings."""

        def wrap(line: Line | None) -> Line | None:
            return None if line is None else (Line(before) if isinstance(before, str) else before) + line + after

        line = wrap(self.line) or self.line
        return replace(self, line=line, raw=wrap(self.raw), status=wrap(self.status), kept=wrap(self.kept))

    def written(self, line: Line, **changes: Any) -> Operation:
        """The operation with one spelling, for whatever asks, and so no view any more."""
        return replace(self, line=line, view=None, raw=None, status=None, kept=None, errors=False, **changes)

    def output(self) -> Line:
        """The shell whose output is, to the letter, what was asked for."""
        return self.kept or self.raw or self.line


def viewing(view: View, numbered: bool = False) -> Operation:
    """Make the operation of a view; `numbered` where the lines are shown with their numbers.

    In which order files are shown, and how often, only matters to what reads the output: `raw` has it.
    """
    distinct = replace(view, paths=tuple(sorted(set(view.paths))))
    raw = None
    if numbered:
        raw = Line("cat -n" + "".join(" " + path_quote(path) for path in view.paths))
    elif distinct != view:
        raw = view.line()
    return Operation("view", distinct.line(), distinct.paths, view=view, reads=True, raw=raw)


def idle(text: str = "true") -> Operation:
    """Make an operation without effect."""
    return Operation("say", Line(text), certain=True, idle=True, reads=True)


def with_status(operation: Operation) -> Operation:
    """The operation written so that it ends with the exit status it was given with, for what asks for it."""
    return operation if operation.status is None else replace(operation, line=operation.status, status=None)


Handler = Callable[[str, tuple[Word, ...], Place], "Operation | None"]
"""Reads the arguments of one command: (head, words after it, place) -> operation, or None if it cannot tell."""


@dataclass(frozen=True)
class Item:
    """An operation in a script and what joins it to the one before (`;`, `&&`, `||`)."""

    joint: str
    operation: Operation
    background: bool = False


ScriptReader = Callable[[Sequence, Place], "list[Item]"]
"""Reads a script inside a command (`bash -c`, a here-document for `sh`)."""


def script_line(items: list[Item]) -> Line:
    """Write items as a script."""
    chains: list[Line] = []
    background: list[bool] = []
    for item in items:
        if item.joint == ";" or not chains:
            chains.append(item.operation.line)
            background.append(item.background)
        else:
            chains[-1] = chains[-1] + f" {item.joint} " + item.operation.line
            background[-1] = item.background
    return statements(chains, tuple(background))


def combine(parts: list[Operation], line: Line) -> Operation:
    """One operation that stands for several."""
    return Operation(
        "other",
        line,
        tuple(sorted({path for part in parts for path in part.paths})),
        detail=line.flat(),
        reads=bool(parts) and all(part.reads for part in parts),
        silent=bool(parts) and all(part.silent for part in parts),
        parts=tuple(parts),
    )


def as_one(items: list[Item]) -> Item:
    """Make one item of several, in braces."""
    if not items:
        return Item(";", idle())
    if len(items) == 1:
        return items[0]
    return Item(";", combine([item.operation for item in items], Line("{ " + ended(script_line(items)) + " }")))
