"""Unified diffs as `git diff` writes them, read strictly and written in one form.

Invariants:
- A hunk has exactly the lines its header counts, so text inside a file ("diff --git …", "--- …") is never taken for a
  header, and what follows a hunk never for its content. Whatever is not understood raises `DiffError` with its line.
- `write_diff` repeats only what was parsed: prefixes are `a/` and `b/`, names are quoted where git would need it, and
  text around the sections is gone. What a reader of `FileChange` decided on is what git is given.
- Lines end at newline characters alone; carriage returns, form feeds and the like are content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Never

LINK_MODE, SUBMODULE_MODE = "120000", "160000"

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_MODE = re.compile(r"(old mode|new mode|new file mode|deleted file mode) ([0-7]{6})")
_MOVE = re.compile(r"(rename|copy) (from|to) (.+)", re.DOTALL)
_INDEX = re.compile(r"index ([0-9a-f]+\.\.[0-9a-f]+)(?: ([0-7]{6}))?")
_SIMILARITY = re.compile(r"(?:dis)?similarity index \d+%")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_NULL = "/dev/null"


class DiffError(ValueError):
    """A text is not a diff that git would apply; the message names the line, counted from 1."""


@dataclass(frozen=True)
class Hunk:
    """A run of lines, each with its mark (blank, `+`, `-`, or `\\` for "no newline at end of file")."""

    old_start: int
    new_start: int
    lines: tuple[str, ...]
    heading: str = ""

    @property
    def counts(self) -> tuple[int, int]:
        """Lines of the old and of the new file."""
        marks = [line[:1] for line in self.lines]
        return sum(mark in " -" for mark in marks), sum(mark in " +" for mark in marks)


@dataclass(frozen=True)
class FileChange:
    """What a diff does to one file. `old` is None where it is created, `new` where it is deleted; paths have no
    prefix.

    A path that is not UTF-8 carries its bytes as surrogate escapes. `index` are the abbreviated object names.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    new_mode: str | None = None
    moved: Literal["", "rename", "copy"] = ""
    binary: bool = False
    index: str | None = None
    line: int = 1

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths it names."""
        return tuple(dict.fromkeys(path for path in (self.old, self.new) if path is not None))

    @property
    def path(self) -> str:
        """The path of the file after the change, of a deleted one its last."""
        return self.paths[-1]


def parse_diff(text: str) -> tuple[FileChange, ...]:
    """Read all sections of a diff; text before and between them is passed over, as git does. Raises DiffError."""
    return tuple(_Reader(text).changes())


def write_diff(changes: Sequence[FileChange]) -> str:
    """Write a diff that git applies; nothing for no changes."""
    return "".join(f"{line}\n" for change in changes for line in _section(change))


def _section(change: FileChange) -> list[str]:
    old, new = change.old or change.path, change.new or change.path
    # Blanks are quoted here: git itself cannot tell "a/x /y b/x /y" apart.
    lines = [f"diff --git {quote_path('a/' + old, ' ')} {quote_path('b/' + new, ' ')}"]
    if change.old is None:
        lines.append(f"new file mode {change.new_mode or '100644'}")
    elif change.new is None:
        lines.append(f"deleted file mode {change.old_mode or '100644'}")
    elif change.old_mode != change.new_mode:
        lines += [f"old mode {change.old_mode}", f"new mode {change.new_mode}"]
    if change.moved:
        lines += [f"{change.moved} from {quote_path(old)}", f"{change.moved} to {quote_path(new)}"]
    if change.index is not None:
        same = change.old_mode if change.old is not None and change.old_mode == change.new_mode else None
        lines.append(f"index {change.index}" + (f" {same}" if same else ""))
    if change.hunks:
        lines.append("--- " + (_NULL if change.old is None else _ending(quote_path(f"a/{old}"))))
        lines.append("+++ " + (_NULL if change.new is None else _ending(quote_path(f"b/{new}"))))
    for hunk in change.hunks:
        counts = hunk.counts
        lines.append(f"@@ -{hunk.old_start},{counts[0]} +{hunk.new_start},{counts[1]} @@{hunk.heading}")
        lines += hunk.lines
    return lines


def _ending(name: str) -> str:
    """git ends an unquoted name with blanks in it by a tab."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def quote_path(path: str, also: str = "") -> str:
    """Write a path as git does with core.quotePath off: in C's quotes where it has control characters or quotes.

    `also` are further characters that make it quoted.

    >>> quote_path('a/one two'), quote_path('a/tab\\there')
    ('a/one two', '"a/tab\\\\there"')
    """
    if not any(ch < " " or ch in f'"\\\x7f{also}' or "\ud800" <= ch <= "\udfff" for ch in path):
        return path
    names = {value: f"\\{name}" for name, value in _ESCAPES.items()}
    out = ""
    for byte in path.encode("utf-8", "surrogateescape"):
        out += names.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
    return f'"{out}"'


class _Reader:
    """Walks over the lines of a diff."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        body = lines[:-1] if not lines[-1] else lines
        # A text that was translated to CRLF as a whole: git's own fallback strips it, too.
        if body and all(line.endswith("\r") for line in body):
            body = [line.removesuffix("\r") for line in body]
        self._lines = body
        self._at = 0

    def changes(self) -> list[FileChange]:
        """All sections, in order."""
        found = []
        while (line := self._peek()) is not None:
            if line.startswith("diff --git "):
                change = self._git_section()
            elif line.startswith("--- ") and self._is_plain():
                change = self._plain_section()
            elif line.startswith("@@ -"):
                self._fail("a hunk without a header before it")
            else:
                self._at += 1
                continue
            if change is not None:
                found.append(change)
        return found

    # -- sections -----------------------------------------------------------------------------------------------

    def _is_plain(self) -> bool:
        after = self._lines[self._at + 1 : self._at + 3]
        return len(after) == 2 and after[0].startswith("+++ ") and after[1].startswith("@@ -")

    def _plain_section(self) -> FileChange:
        """A section without git's header: `---`, `+++`, hunks."""
        start = self._at
        names = [self._file_name(self._take()[4:]) for _ in range(2)]
        if names[0] is None and names[1] is None:
            self._fail("both sides are /dev/null", start)
        if None not in names and names[0] != names[1]:
            self._fail(f"two names, {names[0]!r} and {names[1]!r}, for one file", start)
        return self._checked(FileChange(names[0], names[1], self._hunks(), line=start + 1), start)

    def _git_section(self) -> FileChange | None:
        start = self._at
        header = self._take().removeprefix("diff --git ")
        modes: dict[str, str] = {}
        moves: dict[tuple[str, str], str] = {}
        index: str | None = None
        while (line := self._peek()) is not None:
            if match := _MODE.fullmatch(line):
                modes[match[1]] = match[2]
            elif match := _MOVE.fullmatch(line):
                moves[match[1], match[2]] = self._unquoted(match[3], self._at)
            elif match := _INDEX.fullmatch(line):
                index = match[1]
                if match[2]:
                    modes.setdefault("old mode", match[2])
                    modes.setdefault("new mode", match[2])
            elif not _SIMILARITY.fullmatch(line):
                break
            self._at += 1
        if ("old mode" in modes) != ("new mode" in modes):
            self._fail("old mode and new mode come together", start)
        binary = self._binary()
        sides: list[str | None] = []
        if not binary and (self._peek() or "").startswith("--- "):
            sides.append(self._file_name(self._take()[4:]))
            if not (self._peek() or "").startswith("+++ "):
                self._fail("a line +++ is expected after ---")
            sides.append(self._file_name(self._take()[4:]))
        old, new, moved = self._names(start, header, modes, moves, sides)
        hunks = () if binary else self._hunks()
        if not (
            hunks or binary or moved or old is None or new is None or modes.get("old mode") != modes.get("new mode")
        ):
            return None
        change = FileChange(
            old,
            new,
            hunks,
            old_mode=None if old is None else modes.get("deleted file mode", modes.get("old mode")),
            new_mode=None if new is None else modes.get("new file mode", modes.get("new mode")),
            moved=moved,
            binary=binary,
            index=index,
            line=start + 1,
        )
        return self._checked(change, start)

    def _names(
        self,
        start: int,
        header: str,
        modes: dict[str, str],
        moves: dict[tuple[str, str], str],
        sides: list[str | None],
    ) -> tuple[str | None, str | None, Literal["", "rename", "copy"]]:
        """The two names of a section, which all of its lines must agree on."""
        created, deleted = "new file mode" in modes, "deleted file mode" in modes
        moved: Literal["", "rename", "copy"] = ""
        pairs = self._header_names(header)
        if moves:
            kinds = {kind for kind, _ in moves}
            if len(kinds) != 1 or len(moves) != 2 or created or deleted:
                self._fail("rename or copy needs one line from, one line to and nothing else", start)
            moved = "rename" if "rename" in kinds else "copy"
            old: str | None = moves[moved, "from"]
            new: str | None = moves[moved, "to"]
        elif sides:
            old, new = sides
        else:
            same = [one for one in pairs if one[0] == one[1]]
            if len(same) != 1:
                self._fail("the header does not tell the file's name", start)
            name = same[0][0]
            old, new = None if created else name, None if deleted else name
        if sides and [old, new] != sides:
            self._fail("the lines --- and +++ name other files than the header", start)
        if (created and old is not None) or (deleted and new is not None) or (old is None and new is None):
            self._fail("/dev/null stands where a file was expected, or the other way round", start)
        if (old or new, new or old) not in pairs:
            self._fail("the header names other files than the lines below it", start)
        if not moved and None not in (old, new) and old != new:
            self._fail(f"two names, {old!r} and {new!r}, without a rename", start)
        return old, new, moved

    def _header_names(self, header: str) -> list[tuple[str, str]]:
        """Every way to read `a/x b/y` as two names without their prefixes."""
        cuts = [i for i, ch in enumerate(header) if ch == " "]
        pairs = []
        for cut in cuts:
            try:
                pairs.append((self._stripped(header[:cut], self._at), self._stripped(header[cut + 1 :], self._at)))
            except DiffError:
                continue
        return pairs

    def _checked(self, change: FileChange, start: int) -> FileChange:
        marks = {line[:1] for hunk in change.hunks for line in hunk.lines} - {"\\"}
        if (change.old is None and marks - {"+"}) or (change.new is None and marks - {"-"}):
            self._fail("a created file has only + lines, a deleted one only - lines", start)
        if (change.old is None or change.new is None) and len(change.hunks) > 1:
            self._fail("a created or deleted file has one hunk", start)
        return change

    def _binary(self) -> bool:
        line = self._peek() or ""
        if line == "GIT binary patch":
            self._at += 1
            # Its base-85 lines are passed over up to the next section; none of them can be a header.
            while (line := self._peek() or "") and not line.startswith("diff --git "):
                self._at += 1
            return True
        if line.startswith("Binary files ") and line.endswith(" differ"):
            self._at += 1
            return True
        return False

    # -- hunks --------------------------------------------------------------------------------------------------

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks = []
        while (self._peek() or "").startswith("@@ -"):
            hunks.append(self._hunk())
        return tuple(hunks)

    def _hunk(self) -> Hunk:
        start = self._at
        match = _HUNK.fullmatch(self._take())
        if match is None:
            self._fail("not a hunk's header", start)
        old, new = int(match[2] or 1), int(match[4] or 1)
        lines: list[str] = []
        while old or new:
            line = self._peek()
            # Some tools strip the blank of an empty line of context; git reads that.
            mark = " " if line == "" else (line or "")[:1]
            if line is None or mark not in {" ", "+", "-", "\\"}:
                self._fail(f"the hunk's header promises {old} more old and {new} more new lines", start)
            old -= mark in {" ", "-"}
            new -= mark in {" ", "+"}
            if old < 0 or new < 0:
                self._fail("the hunk has more lines than its header says", start)
            lines.append(line or " ")
            self._at += 1
        if (self._peek() or "").startswith("\\"):
            lines.append(self._take())
        return Hunk(int(match[1]), int(match[3]), tuple(lines), match[5])

    # -- names --------------------------------------------------------------------------------------------------

    def _file_name(self, text: str) -> str | None:
        """The name on the line --- or +++ just taken; None for /dev/null. What follows a tab is a date."""
        name = text.partition("\t")[0]
        return None if name == _NULL else self._stripped(name, self._at - 1)

    def _stripped(self, name: str, at: int) -> str:
        """Take the first component off, as -p1 does; a bare name has none."""
        name = self._unquoted(name, at)
        return name.partition("/")[2] if "/" in name else name

    def _unquoted(self, name: str, line: int) -> str:
        if not name.startswith('"'):
            return name
        out = bytearray()
        at = 1
        while at < len(name) and name[at] != '"':
            if name[at] != "\\":
                out += name[at].encode("utf-8", "surrogateescape")
                at += 1
            elif (octal := name[at + 1 : at + 4]) and re.fullmatch(r"[0-3][0-7]{2}", octal):
                out.append(int(octal, 8))
                at += 4
            elif (letter := name[at + 1 : at + 2]) in _ESCAPES and letter:
                out.append(_ESCAPES[letter])
                at += 2
            else:
                self._fail(f"{name!r} has an unknown escape", line)
        if at != len(name) - 1:
            self._fail(f"{name!r} is not one quoted name", line)
        return out.decode("utf-8", "surrogateescape")

    # -- lines --------------------------------------------------------------------------------------------------

    def _peek(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _take(self) -> str:
        self._at += 1
        return self._lines[self._at - 1]

    def _fail(self, complaint: str, at: int | None = None) -> Never:
        raise DiffError(f"line {(self._at if at is None else at) + 1}: {complaint}")
