"""Read a workspace's files into memory and write them back, touching only what differs.

Entries are relative paths to (mode, data, digest): plain files with their bytes, links with their target (never
followed), folders and pipes with no bytes. Sockets and devices cannot be kept and are removed from the folder; how
many is told. Owners, times, extended attributes and hard links are no part of it: a hard-linked file becomes two.

Invariant: only called while no command runs on the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.base import AGENT_UID
from agentgym_rtmc.environments.sandbox.watch import MAX_DEPTH

EPOCH = 1_577_836_800
"""Modification time of everything in a workspace that was written from a snapshot: 2020-01-01, so that `ls -l` says
the same in equal runs."""

_MAX_PATH = 3000
"""Longest path of a folder in bytes, such that one of a file in it is below the kernel's own limit."""
_EPOCH_NS = EPOCH * 10**9
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(NamedTuple):
    """One file, link, folder or pipe."""

    mode: int
    """Type and permission bits as in `stat.st_mode`, without set-id and sticky bits."""
    data: bytes
    digest: bytes
    """SHA-256 of `data`."""


def make_entry(mode: int, data: bytes = b"") -> Entry:
    """An entry with its digest worked out."""
    return Entry(mode, data, hashlib.sha256(data).digest())


_NOTHING = hashlib.sha256(b"").digest()


class TreeRefusedError(ValueError):
    """A folder holds more than may be read, or is nested too deep. The message is meant for the agent."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What `read` found."""

    entries: dict[str, Entry]
    dropped: int
    """Sockets and devices, which were removed."""


def read(
    folder: Path, known: Mapping[str, Entry] | None = None, max_bytes: int = 1 << 30, max_files: int = 100_000
) -> Reading:
    """Read everything below `folder`. Bytes equal to those in `known` share their memory with it.

    Raises TreeRefusedError past `max_bytes`, `max_files` or the deepest path that can be written back.
    """
    reader = _Reader(known or {}, max_bytes, max_files)
    reader.read_folder(os.open(folder, _FOLDER), "")
    return Reading(reader.entries, reader.dropped)


class _Reader:
    def __init__(self, known: Mapping[str, Entry], max_bytes: int, max_files: int) -> None:
        self.entries: dict[str, Entry] = {}
        self.dropped = 0
        self._known = known
        self._bytes_left = max_bytes
        self._files_left = max_files

    def read_folder(self, descriptor: int, prefix: str) -> None:
        """Read an open folder, which is closed afterwards."""
        try:
            if prefix.count("/") > MAX_DEPTH or len(os.fsencode(prefix)) > _MAX_PATH:
                raise TreeRefusedError("its folders are nested too deep")
            with os.scandir(descriptor) as found:
                children = [(child.name, child.stat(follow_symlinks=False)) for child in found]
            for name, status in children:
                self._read_child(descriptor, name, prefix + name, status)
            _reset_time(".", descriptor)
        finally:
            os.close(descriptor)

    def _read_child(self, descriptor: int, name: str, path: str, status: os.stat_result) -> None:
        kind = stat.S_IFMT(status.st_mode)
        mode = kind | (status.st_mode & 0o777)
        self._files_left -= 1
        self._bytes_left -= status.st_size if kind == stat.S_IFREG else 0
        if self._files_left < 0 or self._bytes_left < 0:
            raise TreeRefusedError("it holds more than its limit")
        if kind == stat.S_IFDIR:
            self.entries[path] = Entry(mode, b"", _NOTHING)
            with folders.opened_up(name, status.st_mode, 0o700, descriptor):
                self.read_folder(os.open(name, _FOLDER, dir_fd=descriptor), path + "/")
            return
        if kind == stat.S_IFREG:
            with (
                folders.opened_up(name, status.st_mode, 0o400, descriptor),
                os.fdopen(os.open(name, _FILE, dir_fd=descriptor), "rb", buffering=0) as file,
            ):
                data = file.readall()
        elif kind == stat.S_IFLNK:
            data = os.fsencode(os.readlink(name, dir_fd=descriptor))
        elif kind == stat.S_IFIFO:
            data = b""
        else:
            os.unlink(name, dir_fd=descriptor)
            self.dropped += 1
            return
        old = self._known.get(path)
        same = old is not None and old.mode == mode and old.data == data
        self.entries[path] = old if old is not None and same else make_entry(mode, data)
        if status.st_mtime_ns != _EPOCH_NS:
            _reset_time(name, descriptor)


def _reset_time(name: str, descriptor: int) -> None:
    os.utime(name, ns=(_EPOCH_NS, _EPOCH_NS), dir_fd=descriptor, follow_symlinks=False)


def write(folder: Path, current: Mapping[str, Entry], target: Mapping[str, Entry]) -> None:
    """Turn `folder`, which holds exactly `current`, into `target`.

    Plain paths are safe here: nothing runs, and every folder in them is known to be one.
    """
    changed = [path for path, entry in target.items() if current.get(path) != entry]
    gone = [path for path in current if path not in target]
    if not changed and not gone:
        return
    root = os.open(folder, _FOLDER)
    try:
        closed = [path for path, entry in current.items() if stat.S_ISDIR(entry.mode) and entry.mode & 0o700 != 0o700]
        for path in sorted(closed) if os.geteuid() != 0 else ():
            os.chmod(path, 0o700, dir_fd=root)
        touched = _remove(root, gone, changed, current, target)
        folders_to_set = {path for path in closed if path in target and stat.S_ISDIR(target[path].mode)}
        for path in sorted(changed):
            entry = target[path]
            touched.add(path.rpartition("/")[0])
            if stat.S_ISDIR(entry.mode):
                folders_to_set.add(path)
                if not (path in current and stat.S_ISDIR(current[path].mode)):
                    os.mkdir(path, 0o700, dir_fd=root)
            else:
                _create(root, path, entry)
        for path in touched | folders_to_set:
            if path in target and stat.S_ISDIR(target[path].mode):
                _reset_time(path, root)
            elif not path:
                _reset_time(".", root)
        for path in sorted(folders_to_set, reverse=True):  # a closed folder hides those below it
            if os.geteuid() == 0:
                os.chown(path, AGENT_UID, AGENT_UID, dir_fd=root, follow_symlinks=False)
            os.chmod(path, target[path].mode & 0o777, dir_fd=root)
    finally:
        os.close(root)


def _remove(
    root: int,
    gone: list[str],
    changed: list[str],
    current: Mapping[str, Entry],
    target: Mapping[str, Entry],
) -> set[str]:
    """Remove what is gone, and what gives way to something else; return the folders that held it."""
    touched = set()
    replaced = [path for path in changed if path in current]
    for path in sorted([*gone, *replaced], reverse=True):  # what a folder holds before the folder
        is_folder = stat.S_ISDIR(current[path].mode)
        if is_folder and path in target and stat.S_ISDIR(target[path].mode):
            continue
        (os.rmdir if is_folder else os.unlink)(path, dir_fd=root)
        touched.add(path.rpartition("/")[0])
    return touched


def _create(root: int, path: str, entry: Entry) -> None:
    if stat.S_ISREG(entry.mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600, dir_fd=root), "wb", buffering=0) as file:
            data = memoryview(entry.data)
            while data:
                data = data[file.write(data) :]
            folders.give_to_agent(file.fileno())
            os.fchmod(file.fileno(), entry.mode & 0o777)
    elif stat.S_ISLNK(entry.mode):
        os.symlink(entry.data, os.fsencode(path), dir_fd=root)
    else:
        os.mkfifo(path, 0o600, dir_fd=root)
        os.chmod(path, entry.mode & 0o777, dir_fd=root)
    if os.geteuid() == 0:
        os.chown(path, AGENT_UID, AGENT_UID, dir_fd=root, follow_symlinks=False)
    _reset_time(path, root)
