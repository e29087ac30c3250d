"""Writes shell syntax trees back as text, in one way only.

Invariants: parsing the text gives the same tree again (braces and quotes in their canonical spelling). A `Line` is
text with the bodies of the here-documents it opens; bodies are placed after the line that opens them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from agentgym_rtmc.signatures import shell_tree as tree
from agentgym_rtmc.signatures.shell_heredocs import Heredoc

_RESERVED = {
    "if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in",
    "function", "time", "coproc", "{", "}", "!", "[", "[[",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of shell and the here-document bodies (each ending with its delimiter line) that follow it."""

    text: str
    bodies: tuple[str, ...] = ()

    def __add__(self, other: Line | str) -> Line:
        if isinstance(other, str):
            return Line(self.text + other, self.bodies)
        return Line(self.text + other.text, self.bodies + other.bodies)

    def flat(self) -> str:
        """The line followed by its bodies."""
        return "\n".join((self.text, *self.bodies))


def join(separator: str, lines: list[Line]) -> Line:
    """Join lines that stay on one line."""
    return Line(separator.join(line.text for line in lines), tuple(b for line in lines for b in line.bodies))


def statements(lines: list[Line], background: tuple[bool, ...] = ()) -> Line:
    """Put statements one after the other; here-documents end their line at once."""
    text = ""
    for index, line in enumerate(lines):
        last = index == len(lines) - 1
        mark = " &" if background and background[index] else ""
        text += line.text + mark
        if line.bodies:
            text += "\n" + "\n".join(line.bodies)
            text += "" if last else "\n"
        elif not last:
            text += " " if mark else "; "
    return Line(text)


def quote(text: str) -> str:
    """Quote fixed text for the shell where it needs it."""
    return shlex.quote(text) if "\r" not in text else "$'" + _ansi(text) + "'"


def _ansi(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\r", "\\r").replace("\n", "\\n")


def word_text(word: tree.Word, head: bool = False) -> str:
    """Write a word; as `head` of a command, reserved words and assignments are quoted."""
    literal = word.literal
    if literal is not None:
        if head and (literal in _RESERVED or re.match(r"\w+\+?=", literal)):
            return "'" + literal.replace("'", "'\"'\"'") + "'"
        return quote(literal)
    out = ""
    for index, part in enumerate(word.parts):
        if part.kind == "text":
            out += quote(part.text)
        elif part.kind == "glob":
            out += part.text
        else:
            inner = part.text
            if part.script is not None:
                inner += _closed(render(part.script)) + ")"
            following = word.parts[index + 1] if index + 1 < len(word.parts) else None
            if following is not None and not part.quoted and re.fullmatch(r"\$\w+", inner):
                inner = (
                    f"${{{inner[1:]}}}" if following.text[:1].isalnum() or following.text[:1] in ("_", "[") else inner
                )
            out += f'"{inner}"' if part.quoted else inner
    return out


def heredoc_lines(heredoc: Heredoc) -> tuple[str, str]:
    """Return the opening (`<<'EOF'`) and the body with its delimiter line."""
    lines = heredoc.body.split("\n")
    delimiter, count = "EOF", 0
    while delimiter in lines:
        count += 1
        delimiter = f"EOF{count}"
    opening = f"<<{delimiter}" if heredoc.expand else f"<<'{delimiter}'"
    body = heredoc.body if heredoc.body.endswith("\n") or not heredoc.body else heredoc.body + "\n"
    return opening, body + delimiter


def redirect_line(redirect: tree.Redirect) -> Line:
    """Write one redirection."""
    fd = "" if redirect.fd is None else str(redirect.fd)
    if redirect.heredoc is not None:
        opening, body = heredoc_lines(redirect.heredoc)
        return Line(fd + opening, (body,))
    assert redirect.target is not None
    target = word_text(redirect.target)
    space = "" if redirect.operator in (">&", "<&") and re.fullmatch(r"\d+|-", target) else " "
    return Line(f"{fd}{redirect.operator}{space}{target}")


def render(node: tree.Node) -> Line:
    """Write a tree."""
    if isinstance(node, tree.Simple):
        pieces = [Line(f"{name}={word_text(value)}") for name, value in node.assignments]
        pieces += [Line(word_text(word, head=index == 0)) for index, word in enumerate(node.words)]
        return join(" ", pieces + [redirect_line(r) for r in node.redirects])
    if isinstance(node, tree.Sequence):
        return statements(_lines(node), node.background)
    if isinstance(node, tree.Pipeline):
        line = render(node.stages[0])
        for index, stage in enumerate(node.stages[1:]):
            line = line + (" |& " if node.both and node.both[index] else " | ") + render(stage)
        return line
    if isinstance(node, tree.AndOr):
        line = render(node.first)
        for operator, part in node.rest:
            line = line + f" {operator} " + render(part)
        return line
    if isinstance(node, tree.Not):
        return Line("! ") + render(node.node)
    if isinstance(node, tree.Function):
        return Line(f"{node.name}() ") + render(node.body)
    if isinstance(node, tree.Verbatim):
        line = Line(node.text)
    elif isinstance(node, tree.Group):
        body = render(node.body)
        line = Line(f"( {_closed(body)} )" if node.subshell else f"{{ {ended(body)} }}")
    else:
        line = structure_line(node, render)
    return join(" ", [line, *(redirect_line(r) for r in node.redirects)])


def structure_line(node: tree.For | tree.While | tree.If, inner: Callable[[tree.Node], Line]) -> Line:
    """Write a loop or a condition, whose parts `inner` writes."""
    if isinstance(node, tree.For):
        words = "".join(" " + word_text(word) for word in node.words)
        return Line(f"for {node.variable}{' in' + words if words else ''}; do {ended(inner(node.body))} done")
    if isinstance(node, tree.While):
        kind = "until" if node.until else "while"
        return Line(f"{kind} {ended(inner(node.condition))} do {ended(inner(node.body))} done")
    text = ""
    for index, (condition, body) in enumerate(node.branches):
        text += f"{'elif' if index else 'if'} {ended(inner(condition))} then {ended(inner(body))} "
    if node.otherwise is not None:
        text += f"else {ended(inner(node.otherwise))} "
    return Line(text + "fi")


def _lines(node: tree.Node) -> list[Line]:
    return [render(item) for item in node.items] if isinstance(node, tree.Sequence) else [render(node)]


def _closed(line: Line) -> str:
    text = line.flat()
    return text + "\n" if line.bodies or _ends_with_heredoc(text) else text


def ended(line: Line) -> str:
    """End a statement list so that a reserved word can follow."""
    text = line.flat()
    if line.bodies or _ends_with_heredoc(text):
        return text + "\n"
    return text if text.endswith("&") else text + ";"


def _ends_with_heredoc(text: str) -> bool:
    return re.search(r"\nEOF\d*$", text) is not None
