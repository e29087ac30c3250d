"""Single edits of a program as shell commands: `sed -zi 's|old|new|N' m.py`, the N-th occurrence in the whole file.

Invariant: `sed_script(text, edit)` run by a real sed turns `text` into `edit.apply(text)`, whatever characters the edit
holds. `-z` makes the file one line, so that N counts over all of it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agentgym_rtmc.environments.code_repair.mutations import Edit, find_edits
from agentgym_rtmc.errors import TaskError

_TOKEN = re.compile(r"\w+|[ \t]+|\n|[<>=!+\-*/%]+|.")
_WORD = re.compile(r"\w+|\S")
REVERT = "git checkout -q ."
"""Takes back all edits of tracked files."""


def difference(before: str, after: str) -> Edit:
    """Return the one edit, of whole tokens, that turns `before` into `after`.

    >>> difference("if a < b:", "if a <= b:")
    Edit(start=5, end=6, new='<=', operator='difference')
    """
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start = sum(map(len, old[:head]))
    end = len(before) - sum(map(len, old[len(old) - tail :]))
    return Edit(start, end, "".join(new[head : len(new) - tail]), "difference")


def sed_script(text: str, edit: Edit, unique: bool = False) -> str:
    """Return the `s|old|new|N` that carries out an edit of `text`.

    The pattern takes in the blank before the edit, and tokens after it (at the end of the text: what stands before)
    until it is one that sed counts at this place; with `unique`, until it occurs nowhere before, so that N is 1.

    >>> text = "while a < b and c < d:"
    >>> sed_script(text, Edit(18, 19, "<=", "compare"))
    's| <| <=|2'
    """
    start, end = edit.start, edit.end
    if start > 0 and text[start - 1] == " ":
        start -= 1
    while not text[start:end].strip() or not _fits(_occurrence(text, start, end), unique):
        following = _WORD.search(text, end)
        if following is not None:
            end = following.end()
        elif start > 0:
            start -= 1
        else:
            break
    old, new = text[start:end], text[start : edit.start] + edit.new + text[edit.end : end]
    return f"s|{escape_pattern(old)}|{escape_replacement(new)}|{_occurrence(text, start, end) or 1}"


def _fits(occurrence: int | None, unique: bool) -> bool:
    return occurrence == 1 if unique else occurrence is not None


def _occurrence(text: str, start: int, end: int) -> int | None:
    """Return which match of `text[start:end]` the one at `start` is, from 1 and without overlaps, as sed counts."""
    old, place, number = text[start:end], 0, 0
    if not old:
        return None
    while (place := text.find(old, place)) >= 0 and place <= start:
        number += 1
        if place == start:
            return number
        place += len(old)
    return None


def escape_pattern(text: str) -> str:
    """Escape literal text for a basic regular expression between bars."""
    return re.sub(r"[\\.*\[^$|]", lambda hit: "\\" + hit[0], text).replace("\n", "\\n")


def escape_replacement(text: str) -> str:
    """Escape literal text for the right side of `s` between bars."""
    return re.sub(r"[\\&|]", lambda hit: "\\" + hit[0], text).replace("\n", "\\n")


def edit_command(script: str, revert: bool = True, test: str = "python t.py") -> str:
    """Return the command that takes back earlier edits, makes this one and runs the tests (`test`), in one turn.

    >>> edit_command("s| <| <=|1")
    "git checkout -q . && sed -zi 's| <| <=|1' m.py && python t.py"
    """
    quoted = script.replace("'", "'\\''")
    return (f"{REVERT} && " if revert else "") + f"sed -zi '{quoted}' m.py" + (f" && {test}" if test else "")


def rewrite_command(text: str, test: bool = True) -> str:
    """Return the command that writes the whole program anew and runs the tests, in one turn.

    >>> rewrite_command("x = 1\\n")
    "cat > m.py <<'END'\\nx = 1\\nEND\\npython t.py"
    """
    mark = "END"
    while mark in text.splitlines():
        mark += "_"
    body = text if text.endswith("\n") else f"{text}\n"
    return f"cat > m.py <<'{mark}'\n{body}{mark}" + ("\npython t.py" if test else "")


@lru_cache(maxsize=4096)
def find_repairs(text: str) -> tuple[Edit, ...]:
    """Return what somebody who knows the kinds of bugs could try: mutations, and the undoing of those not their own
    inverse. Texts that do not parse have none."""
    try:
        found = list(find_edits(text))
    except TaskError:
        return ()
    for pattern, new, operator in _UNDOING:
        found += [Edit(hit.start(1), hit.end(1), new, operator) for hit in pattern.finditer(text)]
    return tuple(found)


_UNDOING = (
    (re.compile(r"[\w)]( [+-] 1)(?=[\]),:])"), "", "wrong_bound"),
    (re.compile(r"range\((1, )"), "", "wrong_bound"),
    (re.compile(r"\[(-)\d"), "", "wrong_index"),
    (re.compile(r"\n *(if) "), "while", "wrong_jump"),
    (re.compile(r"\w (=) "), "+=", "arithmetic"),
    (re.compile(r"(?:if|elif|and|or) (?=\w)()"), "not ", "dropped_not"),
    (re.compile(r"\b(not )\w"), "", "added_not"),
)
