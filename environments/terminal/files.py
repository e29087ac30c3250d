"""Files of a job as JSON, and back: what a task starts with and what it should end with.

A file is its text, or an object: `{"text": …}` or `{"base64": …}` with an optional `mode` (permission bits),
`{"link": target}`, or `{"folder": true}`. Invariants: pure; folders above a path need not be named.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import stat
from collections.abc import Mapping

from pydantic import JsonValue

from agentgym_rtmc.environments.sandbox.snapshot import Snapshot
from agentgym_rtmc.environments.sandbox.tree import Entry, make_entry
from agentgym_rtmc.errors import TaskError

FILE_MODE, FOLDER_MODE, LINK_MODE = 0o644, 0o755, 0o777


def read_file(path: str, spec: JsonValue) -> Entry:
    """Return the entry that a spec describes. Raises TaskError for one that is no spec."""
    fields = {"text": spec} if isinstance(spec, str) else spec
    if isinstance(fields, dict):
        mode = fields.get("mode", FOLDER_MODE if fields.get("folder") else FILE_MODE)
        if isinstance(mode, int) and 0 <= mode <= 0o777:
            if isinstance(text := fields.get("text"), str):
                return make_entry(stat.S_IFREG | mode, text.encode())
            if isinstance(encoded := fields.get("base64"), str):
                try:
                    return make_entry(stat.S_IFREG | mode, base64.b64decode(encoded, validate=True))
                except binascii.Error as error:
                    raise TaskError(f"file {path!r} has a 'base64' that is none: {error}") from error
            if isinstance(target := fields.get("link"), str):
                return make_entry(stat.S_IFLNK | LINK_MODE, target.encode())
            if fields.get("folder") is True:
                return make_entry(stat.S_IFDIR | mode)
    raise TaskError(f"file {path!r} is neither a text nor an object with text, base64, link or folder")


def read_files(files: JsonValue, task_id: str) -> Snapshot:
    """Return the workspace that a task's public `files` describe. Raises TaskError for what is no such object."""
    if not isinstance(files, dict) or not files:
        raise TaskError(f"task {task_id!r} has no public 'files' (path to text, or to an object)")
    entries: dict[str, Entry] = {}
    for path in sorted(files):
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise TaskError(f"task {task_id!r}: {path!r} is no path below the workspace")
        for depth in range(1, len(parts)):
            above = entries.setdefault("/".join(parts[:depth]), make_entry(stat.S_IFDIR | FOLDER_MODE))
            if not stat.S_ISDIR(above.mode):
                raise TaskError(f"task {task_id!r}: {path!r} lies below a file")
        entries[path] = read_file(path, files[path])
    return Snapshot(entries)


def changed_files(start: Snapshot, now: Snapshot) -> dict[str, str | None]:
    """Return path to digest of every file, link or folder that differs from the start; None for what is gone.

    The digest covers kind, permission bits and content, since all of them may be what a job is about.
    """
    if now is start:
        return {}
    before, after = start.entries, now.entries
    return {
        printable(path): None if path not in after else entry_digest(after[path])
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    }


def entry_digest(entry: Entry) -> str:
    """Digest of an entry, 16 hexadecimal characters."""
    return hashlib.sha256(b"%o " % entry.mode + entry.digest).hexdigest()[:16]


def printable(path: str) -> str:
    """A path as text that every file format can hold: bytes that are not UTF-8 as backslash escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def entry_kinds(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return path to `file`, `link`, `folder` or `pipe`."""
    names = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return {path: names.get(stat.S_IFMT(entry.mode), "pipe") for path, entry in entries.items()}
