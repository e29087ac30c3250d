"""Takes here-documents out of a shell script before it is parsed.

The grammar reads most of the shell reliably but not the rest of a line that opens a here-document. So every `<<WORD`
becomes an ordinary redirection from a placeholder file, its body is set aside, and the remaining text is plain.

Invariants: `extract` never raises and is linear. Text inside quotes and comments is left alone; a here-document whose
end is missing runs to the end of the script, as in the shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACEHOLDER = re.compile(r"__HEREDOC_(\d+)__")


@dataclass(frozen=True)
class Heredoc:
    """The body of a here-document. `expand` is true when the shell would expand `$` and backquotes in it."""

    body: str
    expand: bool


@dataclass
class _Pending:
    index: int
    delimiter: str
    strip_tabs: bool
    expand: bool


_OPENING = re.compile(r"<<(-?)[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s'\"\\;&|<>()`#])+)")
_INTERESTING = re.compile(r"[\\'\"`$()#<\n]")


def extract(script: str) -> tuple[str, tuple[Heredoc, ...]]:
    """Return the script with `<<` replaced by `< __HEREDOC_i__`, and the bodies by index."""
    if "<<" not in script:
        return script, ()
    out: list[str] = []
    bodies: dict[int, Heredoc] = {}
    pending: list[_Pending] = []
    # What encloses the position: '"' a double-quoted string, "(" a parenthesis, "`" a backquote.
    nesting: list[str] = []
    count = position = 0
    length = len(script)
    while position < length:
        found = _INTERESTING.search(script, position)
        if found is None:
            out.append(script[position:])
            break
        out.append(script[position : found.start()])
        position = found.start()
        char = script[position]
        quoted = bool(nesting) and nesting[-1] == '"'
        if char == "\\":
            out.append(script[position : position + 2])
            position += 2
            continue
        if char == "'" and not quoted:
            ansi = position > 0 and script[position - 1] == "$"
            end = _end_of_single(script, position, ansi)
            out.append(script[position:end])
            position = end
            continue
        if char == "#" and not quoted and (position == 0 or script[position - 1] in " \t\n;&|("):
            end = script.find("\n", position)
            end = length if end < 0 else end
            out.append(script[position:end])
            position = end
            continue
        if char == "<" and not quoted:
            if script.startswith("<<<", position):
                out.append("<<<")
                position += 3
                continue
            opening = None if _in_arithmetic(nesting, script, position) else _OPENING.match(script, position)
            if opening:
                word = opening.group(2)
                pending.append(_Pending(count, _unquote(word), bool(opening.group(1)), not re.search(r"['\"\\]", word)))
                out.append(f"< __HEREDOC_{count}__ ")
                count += 1
                position = opening.end()
                continue
        if char == "\n" and pending and not quoted:
            out.append("\n")
            position += 1
            for item in pending:
                body, position = _read_body(script, position, item)
                bodies[item.index] = body
            pending.clear()
            continue
        if char == '"':
            if quoted:
                nesting.pop()
            else:
                nesting.append('"')
        elif char == "`":
            if "`" in nesting:
                del nesting[len(nesting) - 1 - nesting[::-1].index("`") :]
            else:
                nesting.append("`")
        elif char == "(" and (not quoted or (position > 0 and script[position - 1] == "$")):
            nesting.append("(")
        elif char == ")" and nesting and nesting[-1] == "(":
            nesting.pop()
        out.append(char)
        position += 1
    for item in pending:
        bodies[item.index] = Heredoc("", item.expand)
    return "".join(out), tuple(bodies[i] for i in range(count))


def _end_of_single(script: str, start: int, ansi: bool) -> int:
    position = start + 1
    while position < len(script):
        if ansi and script[position] == "\\":
            position += 2
            continue
        if script[position] == "'":
            return position + 1
        position += 1
    return len(script)


def _in_arithmetic(nesting: list[str], script: str, position: int) -> bool:
    return nesting[-2:] == ["(", "("] and "((" in script[max(0, position - 200) : position]


def _unquote(word: str) -> str:
    return re.sub(r"\\(.)|['\"]", lambda m: m.group(1) or "", word)


def _read_body(script: str, position: int, item: _Pending) -> tuple[Heredoc, int]:
    start = position
    lines: list[str] = []
    while position < len(script):
        end = script.find("\n", position)
        end = len(script) if end < 0 else end
        line = script[position:end]
        if item.strip_tabs:
            line = line.lstrip("\t")
        if line == item.delimiter:
            return Heredoc("".join(lines), item.expand), min(end + 1, len(script))
        lines.append(line + ("\n" if end < len(script) else ""))
        position = min(end + 1, len(script))
    # No end: the shell takes the rest and warns.
    return Heredoc("".join(lines) if item.strip_tabs else script[start:], item.expand), len(script)
