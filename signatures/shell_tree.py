"""The syntax tree of a shell script, small and immutable.

Invariants: quoting is resolved, so words that the shell reads alike are equal whatever quotes they were written with.
Constructs kept only as text (`[[ … ]]`, `(( … ))`, `case`, `select`) are `Verbatim` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Literal

from agentgym_rtmc.signatures.shell_heredocs import Heredoc


@dataclass(frozen=True)
class Part:
    """A piece of a word: plain `text`, an unquoted `glob` (also `~` and braces), or an expansion in its own syntax.

    `script` is the parsed inside of a command or process substitution, whose `text` is then its opening (`$(`, `<(`).
    """

    kind: Literal["text", "glob", "expand"]
    text: str
    quoted: bool = False
    script: Node | None = None


@dataclass(frozen=True)
class Word:
    """One word after quote removal. No parts: the empty string."""

    parts: tuple[Part, ...] = ()

    @cached_property
    def literal(self) -> str | None:
        """The word's value where it is fixed, else None (globs and expansions)."""
        if len(self.parts) == 1:
            return self.parts[0].text if self.parts[0].kind == "text" else None
        if any(part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)


def text_word(text: str) -> Word:
    """Make a word of fixed text."""
    return Word((Part("text", text),) if text else ())


@dataclass(frozen=True)
class Redirect:
    """A redirection; `fd` None is the operator's default. Exactly one of `target` and `heredoc` is set."""

    operator: str
    fd: int | None = None
    target: Word | None = None
    heredoc: Heredoc | None = None


@dataclass(frozen=True)
class Simple:
    """A simple command: assignments before it, its words (head first, maybe none), redirections."""

    words: tuple[Word, ...] = ()
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Stages joined by `|`; `both[i]` is true where stage i's stderr goes along (`|&`)."""

    stages: tuple[Node, ...]
    both: tuple[bool, ...] = ()


@dataclass(frozen=True)
class AndOr:
    """`first`, then (operator, node) pairs with `&&` or `||`, read from the left."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Sequence:
    """Statements in order; `background[i]` is true where statement i ends in `&`."""

    items: tuple[Node, ...] = ()
    background: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Group:
    """`( … )` or `{ …; }` with redirections."""

    body: Node
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class For:
    """`for variable in words; do body; done`."""

    variable: str
    words: tuple[Word, ...]
    body: Node
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class While:
    """`while` (or `until`) condition."""

    condition: Node
    body: Node
    until: bool = False
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class If:
    """`branches`: (condition, body) pairs; `otherwise` the else part."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None = None
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class Not:
    """`! node`."""

    node: Node


@dataclass(frozen=True)
class Function:
    """A function definition."""

    name: str
    body: Node


@dataclass(frozen=True)
class Verbatim:
    """A construct kept as its text."""

    text: str
    redirects: tuple[Redirect, ...] = ()


Node = Simple | Pipeline | AndOr | Sequence | Group | For | While | If | Not | Function | Verbatim


def simple_commands(node: object) -> Iterator[Simple]:
    """All simple commands of a tree (or of any part or tuple of one), in whatever structure they stand."""
    pending = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, Simple):
            yield item
        if isinstance(item, tuple):
            pending.extend(reversed(item))
        elif is_dataclass(item):
            pending.extend(getattr(item, field.name) for field in reversed(fields(item)))
