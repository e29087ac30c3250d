"""The diff that takes a diff back: what turns a planted bug into its repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgym_rtmc.environments.swebench.diff import DiffError, FileChange, Hunk


def reverse_diff(changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
    """Return the diff that takes a diff back. Raises DiffError for copies and binary files, which have no reverse."""
    turned = []
    for change in reversed(changes):
        if change.moved == "copy" or change.binary:
            raise DiffError(f"line {change.line}: a {change.moved or 'binary file'} cannot be reversed")
        hunks = tuple(
            Hunk(hunk.new_start, hunk.old_start, _reverse_lines(hunk.lines), hunk.heading) for hunk in change.hunks
        )
        there = replace(change, old=change.new, new=change.old, hunks=hunks, index=None)
        turned.append(replace(there, old_mode=change.new_mode, new_mode=change.old_mode))
    return tuple(turned)


def _reverse_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Swap additions and deletions, deletions first, each with its note on a missing newline."""
    out: list[str] = []
    groups: dict[str, list[str]] = {"-": [], "+": []}
    mark = " "
    for line in lines:
        if line[:1] != "\\":
            mark = line[:1]
        if mark == " ":
            out += [*groups["-"], *groups["+"], line]
            groups = {"-": [], "+": []}
        else:
            other = "-" if mark == "+" else "+"
            groups[other].append(line if line[:1] == "\\" else other + line[1:])
    return (*out, *groups["-"], *groups["+"])
