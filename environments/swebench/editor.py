"""An editor for files in a sandbox: view, create, str_replace, insert, undo_edit.

Invariants: files are read and written through the sandbox's own `read` and `write`, which follow no link and leave the
repository for nothing. Bytes that are not UTF-8, line ends and permission bits survive an edit. An edit is carried out
wholly or refused with a `ToolError`, and can be undone as long as nothing else has changed the file since.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym_rtmc.environments.sandbox.base import (
    Sandbox,
    WorkspaceFileNotFoundError,
    WorkspacePathError,
    relative_parts,
)
from agentgym_rtmc.errors import ToolError

MAX_BYTES = 1 << 20
_UNDOABLE = 50
_AROUND = 4
"""Lines shown before and after an edit."""


@dataclass(frozen=True)
class _Edit:
    """What a file was before an edit (None: not there) and after it."""

    path: str
    before: bytes | None
    after: bytes


class Editor:
    """One agent's editor, for one episode. Paths are absolute, or relative to the sandbox's working directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._edits: list[_Edit] = []

    def view(self, path: str, view_range: list[int] | None = None) -> str:
        """Show a file with line numbers, or the lines `[first, last]` of it (last -1: to the end); list a folder."""
        try:
            text = _shown(self._read(path))
        except ToolError:
            listing = self._list(path)
            if listing is None:
                raise
            return listing
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        first, last = self._range(view_range, len(lines))
        return _numbered(lines[first - 1 : last], first) or "[the file is empty]"

    def create(self, path: str, file_text: str) -> str:
        """Write a new file, or replace one."""
        before = self._peek(path)
        self._write(path, before, file_text.encode("utf-8", "surrogateescape"))
        return f"{'created' if before is None else 'replaced'} {path}"

    def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace the only occurrence of a text."""
        if not old_str:
            raise ToolError("old_str is empty; give the text to replace, or use insert")
        before = self._read(path)
        text = _decoded(before)
        if "\r\n" in text and "\r" not in old_str:
            old_str, new_str = (part.replace("\n", "\r\n") for part in (old_str, new_str))
        if old_str == new_str:
            raise ToolError("old_str and new_str are the same: nothing would change")
        places = [match.start() for match in re.finditer(re.escape(old_str), text)]
        if not places:
            raise ToolError(f"old_str does not occur in {path}; it must match exactly, blanks and line ends included")
        if len(places) > 1:
            numbers = ", ".join(str(text.count("\n", 0, at) + 1) for at in places[:10])
            raise ToolError(
                f"old_str occurs {len(places)} times in {path} (lines {numbers}); add lines to make it unique"
            )
        after = text[: places[0]] + new_str + text[places[0] + len(old_str) :]
        self._write(path, before, _encoded(after))
        line = text.count("\n", 0, places[0]) + 1
        return f"edited {path}\n{_around(after, line, new_str.count(chr(10)) + 1)}"

    def insert(self, path: str, insert_line: int, new_str: str) -> str:
        """Insert lines behind line `insert_line` (0: at the top)."""
        before = self._read(path)
        text = _decoded(before)
        end = "\r\n" if "\r\n" in text else "\n"
        lines = text.split("\n")
        count = len(lines) - (lines[-1] == "")
        if not 0 <= insert_line <= count:
            raise ToolError(f"insert_line must lie between 0 and {count}, the number of lines of {path}")
        added = new_str if new_str.endswith("\n") else f"{new_str}\n"
        if end == "\r\n":
            added = added.replace("\r\n", "\n").replace("\n", end)
        head = "".join(f"{line}\n" for line in lines[:insert_line])
        rest = "\n".join(lines[insert_line:])
        if insert_line == count and text and not text.endswith("\n"):
            head, rest = text + end, ""
        after = head + added + rest
        self._write(path, before, _encoded(after))
        return f"edited {path}\n{_around(after, insert_line + 1, added.count(chr(10)))}"

    def undo_edit(self, path: str) -> str:
        """Take the last edit of a file back."""
        wanted = self._key(path)
        place = next((i for i in reversed(range(len(self._edits))) if self._edits[i].path == wanted), None)
        if place is None:
            raise ToolError(f"there is no edit of {path} to undo")
        edit = self._edits[place]
        if self._peek(path) != edit.after:
            raise ToolError(f"{path} has been changed by something else since; undo would lose that")
        if edit.before is None:
            result = self._sandbox.exec(["rm", "-f", "--", "/".join((self._sandbox.spec.workdir, edit.path))])
            if result.code:
                raise ToolError(f"{path} could not be removed: {result.stderr.strip() or result.note}")
        else:
            self._sandbox.write(path, edit.before, self._mode(path))
        del self._edits[place]
        return f"undone: {path} is {'gone again' if edit.before is None else 'as it was before'}"

    # -- the sandbox --------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        try:
            return "/".join(relative_parts(path, self._sandbox.spec.workdir))
        except WorkspacePathError as error:
            raise ToolError(_why(path, error)) from error

    def _read(self, path: str) -> bytes:
        data = self._peek(path)
        if data is None:
            raise ToolError(f"there is no file {path}")
        if len(data) > MAX_BYTES:
            raise ToolError(f"{path} has {len(data)} bytes, more than the editor takes ({MAX_BYTES}); use bash")
        return data

    def _peek(self, path: str) -> bytes | None:
        """A file's content, None where there is none. Raises ToolError for what is no file of the repository."""
        try:
            return self._sandbox.read(path)
        except WorkspaceFileNotFoundError:
            return None
        except WorkspacePathError as error:
            raise ToolError(_why(path, error)) from error

    def _write(self, path: str, before: bytes | None, after: bytes) -> None:
        if len(after) > MAX_BYTES:
            raise ToolError(
                f"the file would have {len(after)} bytes, more than the editor takes ({MAX_BYTES}); use bash"
            )
        mode = self._mode(path) if before is not None else 0o644
        try:
            self._sandbox.write(path, after, mode)
        except WorkspacePathError as error:
            raise ToolError(_why(path, error)) from error
        self._edits.append(_Edit(self._key(path), before, after))
        del self._edits[:-_UNDOABLE]

    def _mode(self, path: str) -> int:
        """The permission bits of a file; those of an ordinary one where they cannot be told."""
        result = self._sandbox.exec(["stat", "-c", "%a", "--", "/".join((self._sandbox.spec.workdir, self._key(path)))])
        bits = result.stdout.strip()
        return int(bits, 8) & 0o777 if re.fullmatch(r"[0-7]{3,4}", bits) else 0o644

    def _list(self, path: str) -> str | None:
        """The files of a folder, two levels deep, hidden ones left out; None for what is no folder."""
        workdir = self._sandbox.spec.workdir
        inside = path.rstrip("/") in ("", ".", workdir)
        folder = workdir if inside else "/".join((workdir, self._key(path)))
        # `find FOLDER/` does not follow a link; with -maxdepth 0 it is told whether it is a folder at all.
        kind = self._sandbox.exec(["find", folder, "-maxdepth", "0", "-type", "d"])
        if kind.code or not kind.stdout.strip():
            return None
        found = self._sandbox.exec(["find", folder, "-mindepth", "1", "-maxdepth", "2", "-not", "-path", "*/.*"])
        return "\n".join([f"files in {folder}, two levels deep:", *sorted(found.stdout.splitlines())])

    def _range(self, view_range: list[int] | None, count: int) -> tuple[int, int]:
        if view_range is None:
            return 1, count
        if len(view_range) != 2:
            raise ToolError("view_range is [first, last], such as [10, 40]; last may be -1")
        first, last = view_range[0], count if view_range[1] == -1 else view_range[1]
        if not 1 <= first <= max(1, count) or last < first:
            raise ToolError(f"view_range {view_range} is not within the {count} lines of the file")
        return first, min(last, count)


def _why(path: str, error: WorkspacePathError) -> str:
    return f"{path}: {error.strerror}" if error.strerror else str(error)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, first))


def _around(text: str, line: int, count: int) -> str:
    """The lines of an edit with some before and after it."""
    lines = _shown(_encoded(text)).split("\n")
    first = max(1, line - _AROUND)
    return _numbered(lines[first - 1 : line + count - 1 + _AROUND], first)
