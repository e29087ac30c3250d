"""Where a command stands (directory, variables) and how its words are read: paths, options, operands.

Invariants: a path inside the root is written relative to the root without `./`, one outside it absolutely; where the
directory is unknown (`cd "$X"`), relative paths stay as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from agentgym_rtmc.signatures.shell_text import word_text
from agentgym_rtmc.signatures.shell_tree import Part, Sequence, Simple, Word, text_word


class Unfoldable(Exception):  # noqa: N818 - control flow between the files of the parser, never seen outside
    """A script does something whose effect on what follows is not followed; it has to stay as it is written."""


@dataclass
class Place:
    """The shell's surroundings at a command. `directory` is relative to the root ("" = the root) or absolute.

    `unsure`: something before (a `cd`, an assignment) may have failed or not have run, so that only what `&&` joins to
    it can be read; `lost`: nothing after it can be. Reading on raises Unfoldable, unless `strict` is off. `asked`: the
    exit status of what is read is asked for. `doubted`: the directory may not be there.
    """

    root: str = "/testbed"
    directory: str | None = ""
    variables: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    previous: str | None = None
    stack: tuple[str | None, ...] = ()
    errexit: bool = False
    pipefail: bool = False
    nounset: bool = False
    jobs: bool = False
    asked: bool = False
    doubted: bool = False
    unsure: bool = False
    lost: bool = False
    strict: bool = True

    def copy(self) -> Place:
        """Copy, for a subshell."""
        other = copy(self)
        other.variables, other.exported = dict(self.variables), dict(self.exported)
        other.unsure = other.lost = False
        return other

    def become(self, other: Place) -> None:
        """Take over everything of another place."""
        vars(self).update(vars(other))

    def differs(self, other: Place) -> bool:
        """Whether commands would be read in another way here than there."""
        return any(getattr(self, name) != getattr(other, name) for name in _READING)

    def refuse(self) -> None:
        """Give up folding the script."""
        if self.strict:
            raise Unfoldable

    def path_text_of_directory(self) -> str:
        """The directory as canonical text."""
        return quote_path(text_word(self.directory or "."))

    def path(self, text: str) -> str:
        """Normalise a path; `.` is the root itself."""
        if text == "":
            return ""
        if text.startswith("~"):
            return text
        if text.startswith("/"):
            absolute = posixpath.normpath(text)
            if absolute.startswith("//"):
                absolute = absolute[1:]
        elif self.directory is None:
            return posixpath.normpath(text)
        else:
            absolute = posixpath.normpath(posixpath.join(self.root, self.directory, text))
        if absolute == self.root:
            return "."
        if absolute.startswith(self.root.rstrip("/") + "/"):
            return absolute[len(self.root.rstrip("/")) + 1 :]
        return absolute

    def enter(self, target: str) -> None:
        """Change the directory as `cd` does; that it is there is sure of few directories only."""
        old = self.directory
        if target == "-":
            self.directory = self.previous
        elif target.startswith("~") or (self.directory is None and not target.startswith("/")):
            self.directory = None
        else:
            path = self.path(target)
            self.directory = "" if path == "." else path
        self.previous = old
        there = self.directory in ("", "/", "/tmp") or self.directory == old
        above = self.directory and f"{old}/".startswith(f"{self.directory}/")
        self.doubted = not (there or above) or (self.doubted and self.directory == old)
        self.unsure = self.unsure or not (there or above)

    def expand(self, word: Word) -> Word:
        """Put in the values of variables that the same script set, and of `$PWD` and `$(pwd)`."""
        if all(part.kind != "expand" for part in word.parts):
            return word
        parts: list[Part] = []
        for part in word.parts:
            value = self._value(part)
            if value is None or (not part.quoted and re.search(r"[\s*?\[\]~]", value)):
                parts.append(part)
            else:
                parts.append(Part("text", value))
        return merge(parts)

    def _value(self, part: Part) -> str | None:
        if part.kind != "expand":
            return None
        if part.script is not None:
            items = part.script.items if isinstance(part.script, Sequence) else ()
            return self._here() if items == (Simple((text_word("pwd"),)),) and part.text == "$(" else None
        name = re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", part.text)
        if name is None:
            return None
        key = name.group(1) or name.group(2)
        if key in self.variables:
            return self.variables[key]
        return self._here() if key == "PWD" else None

    def _here(self) -> str | None:
        return None if self.directory is None else posixpath.join(self.root, self.directory).rstrip("/") or "/"

    def path_text(self, word: Word) -> str:
        """Write a word that is a path, normalised and quoted."""
        return quote_path(self.path_word(word))

    def path_word(self, word: Word) -> Word:
        """Normalise a word that is a path; with globs or expansions only its beginning is."""
        literal = word.literal
        if literal is not None:
            return text_word(self.path(literal))
        first = word.parts[0]
        rest = word.parts[1:]
        if first.kind == "expand" or first.text.startswith("~"):
            if first.kind == "expand" and self.directory:
                self.refuse()  # a path from here, or from the root of all?
            return word
        if first.kind == "text" and first.text.startswith("/"):
            prefix = self.root.rstrip("/") + "/"
            if first.text.startswith(prefix):
                return merge([Part("text", first.text[len(prefix) :]), *rest])
            return word
        if first.kind == "text":
            stripped = re.sub(r"^(\./+)+", "", first.text)
            if stripped.startswith(".."):
                return word
            first = Part("text", stripped)
        if self.directory:
            return merge([Part("text", self.directory + "/"), first, *rest])
        return merge([first, *rest])


_READING = ("directory", "variables", "exported", "previous", "stack", "errexit", "pipefail", "nounset", "unsure",
            "lost")  # fmt: skip


def merge(parts: Iterable[Part]) -> Word:
    """Join neighbouring text parts and drop empty ones."""
    out: list[Part] = []
    for part in parts:
        if part.kind == "text" and out and out[-1].kind == "text":
            out[-1] = Part("text", out[-1].text + part.text)
        elif part.kind != "text" or part.text:
            out.append(part)
    return Word(tuple(out))


def quote_path(word: Word) -> str:
    """Write a path so that it is not taken for an option."""
    text = word_text(word)
    return f"./{text}" if text.startswith("-") and text != "-" else text


def argument(word: Word, place: Place) -> str:
    """An argument of a program: the root's own path and a leading `./` say nothing."""
    start = word.parts[0].text if word.parts and word.parts[0].kind == "text" else ""
    return place.path_text(word) if start.startswith(("./", place.root.rstrip("/") + "/")) else word_text(word)


def shape(word: Word) -> str:
    """The word's text with globs as they stand and expansions in their own syntax; for reading options."""
    return "".join(part.text for part in word.parts)


_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])")


def expand_braces(word: Word) -> list[Word]:
    """Expand `{a,b}` and `{1..3}` (at most 100 words); other braces become text."""
    if all(part.kind != "glob" for part in word.parts):
        return [word]
    parts = list(word.parts)
    unread = False
    for index, part in enumerate(parts):
        if part.kind != "glob" or not part.text.startswith("{"):
            continue
        closing = index if part.text != "{" else _closing(parts, index)
        if closing is None:
            continue
        inside = [Part("text", part.text[1:-1])] if closing == index else parts[index + 1 : closing]
        choices = _alternatives(inside)
        ranged = len(choices) == 1 and len(inside) == 1 and ".." in inside[0].text
        if ranged:
            choices = [[Part("text", text)] for text in _range(inside[0].text)]
            unread = unread or not choices
        if 1 - ranged < len(choices) <= 100:
            return _spread(parts[:index], choices, parts[closing + 1 :])
    if unread:
        return [word]
    plain = [Part("text", p.text) if p.kind == "glob" and p.text in ("{", "}") else p for p in parts]
    return [merge(_tilde(plain))]


def _range(text: str) -> list[str]:
    """The words of `1..3`, `01..10..2` or `a..c`; none where there are too many, or it is no range."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return []
    low, high, step, first, last = found.groups()
    if first is not None:
        if first.isupper() != last.isupper():
            return []
        ends = (ord(first), ord(last))
    else:
        ends = (int(low), int(high))
    stride = abs(int(step or 1)) or 1
    numbers = range(ends[0], ends[1] + 1, stride) if ends[0] <= ends[1] else range(ends[0], ends[1] - 1, -stride)
    if len(numbers) > 100:
        return []
    if first is not None:
        return [chr(number) for number in numbers]
    padded = any(re.match(r"-?0\d", end) for end in (low, high))
    width = max(len(low), len(high)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _tilde(parts: list[Part]) -> list[Part]:
    """Brackets that enclose nothing and a `~` within a word are text."""
    opening = next((i for i, p in enumerate(parts) if p.kind == "glob" and p.text == "["), None)
    closed = opening is not None and any(p.kind == "glob" and p.text == "]" for p in parts[opening + 2 :])
    return [
        Part("text", p.text)
        if p.kind == "glob" and ((p.text in ("[", "]") and not closed) or (p.text == "~" and i > 0))
        else p
        for i, p in enumerate(parts)
    ]


def _closing(parts: list[Part], opening: int) -> int | None:
    depth = 0
    for index in range(opening, len(parts)):
        if parts[index].kind == "glob":
            depth += (parts[index].text == "{") - (parts[index].text == "}")
            if depth == 0:
                return index
    return None


def _alternatives(parts: list[Part]) -> list[list[Part]]:
    out: list[list[Part]] = [[]]
    depth = 0
    for part in parts:
        if part.kind == "glob":
            depth += (part.text == "{") - (part.text == "}")
        if part.kind == "text" and depth == 0:
            pieces = part.text.split(",")
            out[-1].append(Part("text", pieces[0]))
            out.extend([Part("text", piece)] for piece in pieces[1:])
        else:
            out[-1].append(part)
    return out


def _spread(before: list[Part], choices: list[list[Part]], after: list[Part]) -> list[Word]:
    words = [w for choice in choices for w in expand_braces(Word((*before, *choice, *after)))]
    return words[:1000]
