"""Measure what a running command uses: processes, memory and disk, also where it tries to hide them.

The kernel's per-process limits (`prlimit`) are exact but do not add up over processes, and say nothing about unlinked
files, memory files or a folder's total. This watchdog adds those up while the command runs. It looks first after
`FIRST_LOOK` seconds and then as often as its own cost allows, so short commands pay nothing for it.

Invariant: measuring never follows a link, so a hostile workspace cannot lead it elsewhere, and stops counting once a
limit is passed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.cgroups import Cgroup

FIRST_LOOK = 0.03
"""Seconds after a command's start at which it is first measured."""
LATE = 0.2
"""Seconds after which a command that was not put into its control group at once is taken in."""
MAX_DEPTH = 64
"""Deepest nesting of folders a workspace may have."""
Limit = Literal["memory", "processes", "disk", "files", "full-disk", "full-files"]
"""What was passed; `full-…`: what the kernel kept from being passed."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Size of a folder's contents; counting stops as soon as a limit is passed, so the values are then lower bounds."""

    bytes: int
    files: int
    too_deep: bool = False


def disk_use(folder: Path, max_bytes: int, max_files: int) -> DiskUse:
    """Add up a folder without following links. Sparse files count with their full size, as copies would."""
    count = _Count(max_bytes, max_files)
    with contextlib.suppress(_EnoughError), folders.opened_up(folder, folder.lstat().st_mode, 0o700):
        count.add(os.open(folder, _FOLDER), 0)
    return DiskUse(count.bytes, count.files, count.too_deep)


class _EnoughError(Exception):
    """Counting can stop."""


class _Count:
    def __init__(self, max_bytes: int, max_files: int) -> None:
        self.bytes = self.files = 0
        self.too_deep = False
        self._max_bytes = max_bytes
        self._max_files = max_files

    def add(self, descriptor: int, depth: int) -> None:
        """Count what is in an open folder, and close it."""
        try:
            if depth > MAX_DEPTH:
                self.too_deep = True
                raise _EnoughError
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # a running command may remove it under our eyes
                        self._add_entry(descriptor, entry, depth)
        finally:
            os.close(descriptor)

    def _add_entry(self, folder: int, entry: os.DirEntry[str], depth: int) -> None:
        status = entry.stat(follow_symlinks=False)
        self.files += 1
        if stat.S_ISREG(status.st_mode):
            self.bytes += max(status.st_size, status.st_blocks * 512)
        if self.bytes > self._max_bytes or self.files > self._max_files:
            raise _EnoughError
        if stat.S_ISDIR(status.st_mode):
            with folders.opened_up(entry.name, status.st_mode, 0o700, folder):
                self.add(os.open(entry.name, _FOLDER, dir_fd=folder), depth + 1)


class DiskMeter(Protocol):
    """Measures a workspace for one command."""

    def look(self) -> Limit | None:
        """While the command runs: the limit for which it must be killed."""
        ...

    def end(self) -> Limit | None:
        """After the command: the limit that it has passed or met."""
        ...


class FolderMeter:
    """Adds up a folder that nothing else limits."""

    def __init__(self, folder: Path, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files

    def look(self) -> Limit | None:
        """See `DiskMeter`."""
        use = disk_use(self._folder, self._max_bytes, self._max_files)
        if use.bytes > self._max_bytes:
            return "disk"
        return "files" if use.files > self._max_files or use.too_deep else None

    def end(self) -> Limit | None:
        """See `DiskMeter`."""
        return self.look()


class Meters:
    """Several places with limits of their own."""

    def __init__(self, *meters: DiskMeter) -> None:
        self._meters = meters

    def look(self) -> Limit | None:
        """See `DiskMeter`."""
        return next((limit for meter in self._meters if (limit := meter.look())), None)

    def end(self) -> Limit | None:
        """See `DiskMeter`."""
        return next((limit for meter in self._meters if (limit := meter.end())), None)


def descendants(pid: int) -> list[int]:
    """Process ids below `pid` (without it), parents before children, as far as they are alive while we look."""
    found: list[int] = []
    queue = [pid]
    while queue:
        current = queue.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{current}/task").iterdir():
                with contextlib.suppress(OSError):
                    children = [int(word) for word in (task / "children").read_bytes().split()]
                    found += children
                    queue += children
    return found


def _own_bytes(pid: int) -> int:
    """Memory that belongs to no file on disk: private, or shared between processes."""
    return _sum_of(Path(f"/proc/{pid}/status"), (b"RssAnon:", b"RssShmem:"))


def _proportional_bytes(pid: int) -> int:
    """The same with pages that several processes have counted once, where the process lets us look; slower than
    `_own_bytes`."""
    with contextlib.suppress(PermissionError):
        return _sum_of(Path(f"/proc/{pid}/smaps_rollup"), (b"Pss_Anon:", b"Pss_Shmem:")) or _own_bytes(pid)
    return _own_bytes(pid)


def _sum_of(table: Path, names: tuple[bytes, ...]) -> int:
    """Bytes in those lines of a table of the kernel's that begin with one of `names`."""
    return sum(int(line.split()[1]) * 1024 for line in table.read_bytes().splitlines() if line.startswith(names))


def _unlinked_bytes(pids: list[int]) -> int:
    """Bytes in files that have no name any more but are held open: removed files and memory files."""
    seen: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for opened in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    status = opened.stat()
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if status.st_nlink == 0:
                        seen[status.st_dev, status.st_ino] = status.st_blocks * 512
                    elif not status.st_blocks and opened.readlink().name.startswith("secretmem"):
                        seen[status.st_dev, status.st_ino] = status.st_size  # whose blocks are not told
    return sum(seen.values())


def _scratch_use(pid: int, size: int) -> tuple[int, int]:
    """Bytes and files in the private /tmp and /dev/shm that `pid` sees. While a sandbox is being set up these are still
    the host's, which are told by their size."""
    used = files = 0
    for folder in ("tmp", "dev/shm"):
        with contextlib.suppress(OSError):
            status = os.statvfs(f"/proc/{pid}/root/{folder}")
            if status.f_blocks * status.f_frsize <= size + _PAGE:
                used += (status.f_blocks - status.f_bfree) * status.f_frsize
                files = max(files, status.f_files - status.f_ffree - 1)  # one is the folder itself
    return used, files


class Watchdog:
    """Tells which limit of `spec` a command has passed."""

    def __init__(
        self, spec: SandboxSpec, disk: DiskMeter, scratch: bool, group: Cgroup | None = None, late: bool = False
    ) -> None:
        """`scratch`: its /tmp and /dev/shm are private; `group`: where its processes are, or, if `late`, are to be."""
        self.spec = spec
        self.disk = disk
        self._scratch = scratch
        self._group = group
        self._to_adopt = time.monotonic() + LATE if late else float("inf")
        self._killed_before = group.oom_kills() if group is not None else 0
        self.next_look = time.monotonic() + FIRST_LOOK
        """`time.monotonic()` at which `look` wants to be called again."""

    def look(self, pid: int) -> Limit | None:
        """Measure everything below process `pid` and the workspace; return the first limit passed."""
        started = time.monotonic()
        try:
            if self._group is not None and started >= self._to_adopt:
                self._group.adopt(lambda: [pid, *descendants(pid)])
            return self.killed() or self._processes(pid) or self.disk.look()
        finally:
            now = time.monotonic()
            self.next_look = now + max(FIRST_LOOK, 10 * (now - started))

    def killed(self) -> Limit | None:
        """The limit for which the kernel killed something of the command itself."""
        return "memory" if self._group is not None and self._group.oom_kills() > self._killed_before else None

    def _processes(self, pid: int) -> Limit | None:
        pids = descendants(pid)
        # The back end's own processes come on top of the agent's: at most three.
        if len(pids) > self.spec.processes + 3:
            return "processes"
        scratch, files = _scratch_use(pids[-1], self.spec.disk_bytes) if pids and self._scratch else (0, 0)
        if files > self.spec.disk_files:
            return "files"
        memory = scratch + _unlinked_bytes(pids)
        limit = self.spec.memory_bytes
        if memory + _total(_own_bytes, pids) <= limit:
            return None
        return "memory" if memory + _total(_proportional_bytes, pids) > limit else None


def _total(measure: Callable[[int], int], pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it may have ended
            total += measure(pid)
    return total
