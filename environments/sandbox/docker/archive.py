"""Tar archives that somebody else made: unpacked on this machine such that nothing in them leads outside.

Invariants:
- Every path is walked one folder at a time without following links, so neither `..`, nor an absolute name, nor a link
  that an earlier entry made leads out of the target folder.
- Devices and set-id bits are dropped; where we are root, everything belongs to the agent.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from agentgym_rtmc.environments.sandbox.base import AGENT_UID
from agentgym_rtmc.errors import SandboxError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Chunks(io.RawIOBase):
    """A file to read from, made of pieces that come one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: object) -> int:
        """See `io.RawIOBase`."""
        room = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            try:
                self._rest = memoryview(next(self._pieces))
            except StopIteration:
                return 0
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def unpack(archive: BinaryIO, target: Path) -> int:
    """Unpack the folder that `archive` holds into the empty folder `target`; return how many entries it had.

    The archive has one folder at its top, as those of an engine have. Raises SandboxError for an entry that would lie
    outside, OSError when the machine refuses, tarfile.TarError for a broken archive.
    """
    root = os.open(target, _FOLDER)
    modes: list[tuple[tuple[str, ...], int, float]] = []
    count = 0
    try:
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for entry in tar:
                parts = _inside(entry.name)
                if parts:
                    count += 1
                    _unpack_one(tar, entry, root, parts)
                if entry.isdir():
                    modes.append((parts, entry.mode & 0o777, entry.mtime))
        # Last, for a closed folder could not be filled, and filling one changes its time.
        for parts, mode, time in reversed(modes):
            with _opened(root, parts) as folder:
                os.utime(folder, (time, time))
                os.fchmod(folder, mode)
                if os.geteuid() == 0 and not parts:
                    os.fchown(folder, AGENT_UID, AGENT_UID)
    finally:
        os.close(root)
    return count


def _inside(name: str) -> tuple[str, ...]:
    """Components of a name below the archive's one folder."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise SandboxError(f"an archive of the engine's holds {name!r}, which lies outside of it; nothing was unpacked")
    return parts[1:]


@contextlib.contextmanager
def _opened(root: int, parts: tuple[str, ...]) -> Iterator[int]:
    """The folder at `parts` below `root`, opened without following a link."""
    descriptor = os.dup(root)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _unpack_one(tar: tarfile.TarFile, entry: tarfile.TarInfo, root: int, parts: tuple[str, ...]) -> None:
    name = parts[-1]
    with _opened(root, parts[:-1]) as folder:
        if entry.isdir():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        elif entry.isreg():
            source = tar.extractfile(entry)
            assert source is not None
            with os.fdopen(os.open(name, _NEW, entry.mode & 0o777, dir_fd=folder), "wb") as file:
                while chunk := source.read(1 << 20):
                    file.write(chunk)
                file.flush()
                os.fchmod(file.fileno(), entry.mode & 0o777)
        elif entry.islnk():
            other = _inside(entry.linkname)
            with _opened(root, other[:-1]) as place:
                os.link(other[-1], name, src_dir_fd=place, dst_dir_fd=folder, follow_symlinks=False)
            return
        elif entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
        elif entry.isfifo():
            os.mkfifo(name, entry.mode & 0o777, dir_fd=folder)
        else:
            return
        if os.geteuid() == 0:
            os.chown(name, AGENT_UID, AGENT_UID, dir_fd=folder, follow_symlinks=False)
        if not entry.isdir():
            os.utime(name, (entry.mtime, entry.mtime), dir_fd=folder, follow_symlinks=False)


def for_agent(archive: BinaryIO, target: BinaryIO, top: str) -> int:
    """Copy an engine's archive with `top` as the name of its folder and all of it the agent's; return its entries.

    Devices are left out. Raises what `unpack` raises.
    """
    count = 0
    with tarfile.open(fileobj=archive, mode="r|") as tar, tarfile.open(fileobj=target, mode="w|") as copy:
        for entry in tar:
            parts = _inside(entry.name)
            if not (entry.isdir() or entry.isreg() or entry.islnk() or entry.issym() or entry.isfifo()):
                continue
            entry.name = "/".join((top, *parts))
            if entry.islnk():
                entry.linkname = "/".join((top, *_inside(entry.linkname)))
            entry.uid = entry.gid = AGENT_UID
            entry.uname = entry.gname = ""
            entry.mode &= 0o777
            copy.addfile(entry, tar.extractfile(entry) if entry.isreg() else None)
            count += bool(parts)
    return count


def empty_for_agent(target: BinaryIO, top: str) -> None:
    """Write an archive with nothing but an empty folder that is the agent's."""
    with tarfile.open(fileobj=target, mode="w|") as copy:
        entry = tarfile.TarInfo(top)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        entry.uid = entry.gid = AGENT_UID
        copy.addfile(entry)
