"""Layers of workspaces: one memory file system each, frozen and shared once a fork builds on it.

A layer holds the folders `upper` (what was written while it was on top) and `work` (overlayfs's own). Its pages lie in
memory or swap, up to its size, and are charged to whoever writes them.

Invariants:
- A layer's size and number of files are held by the kernel.
- A frozen layer never changes again. It is unmounted when the last workspace that shows it lets go of it.
- Everything mounted lies below this process's run folder, in a mount of its own: it is seen where copies of that mount
  are (containers), and whoever finds the folder later can unmount it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from agentgym_rtmc.environments.sandbox import folders, mounts
from agentgym_rtmc.environments.sandbox.base import AGENT_UID

BLOCK = 4096
"""Smallest unit of a memory file system, in bytes."""
_OWN_FILES = 4
"""Files a new layer holds already: its root, `upper`, `work` and what overlayfs puts in there."""
_ALMOST_BYTES, _ALMOST_FILES = 4 * BLOCK, 2
"""A layer with less room than this counts as full: programs often take back what did not fit."""

_lock = threading.Lock()
_prepared: set[tuple[int, Path]] = set()


def why_not() -> str:
    """Why this process cannot have layers, or an empty string; then its run folder is ready for them."""
    if os.geteuid() != 0:
        return "only root may mount file systems"
    run = folders.run_folder()
    with _lock:
        if (os.getpid(), run) not in _prepared:
            scratch = Path(tempfile.mkdtemp(prefix="try-", dir=run))
            try:
                reason = mounts.why_not(scratch)
            finally:
                scratch.rmdir()
            if reason:
                return reason
            mounts.bind(run, run)
            mounts.make_shared(run)
            _prepared.add((os.getpid(), run))
    return ""


class Layer:
    """A mounted memory file system, counted by how many workspaces show it; a new one counts one.

    Either it has the two folders of overlayfs, and lies in a folder of its own; or it is plain, and lies where it is
    shown until `park` gives it a second place. Every mount costs each process that gets a namespace of mounts.
    """

    def __init__(self, size: int, files: int, at: Path | None = None) -> None:
        """`size` in bytes; `at`: where a plain one is to be shown. Raises MountError or OSError where it is refused."""
        self.place = at or folders.new_folder("layer")
        """Where it is mounted."""
        self.plain = at is not None
        self.parked = at is None
        """Whether `place` is its own."""
        self._own_files = 1 if self.plain else _OWN_FILES
        self._holders = 1
        size, files = max(size, BLOCK), max(files, 1) + self._own_files
        if self.plain:
            mounts.tmpfs(self.place, size, files, owner=AGENT_UID, mode=0o755)
            return
        try:
            mounts.tmpfs(self.place, size, files)
            self.upper.mkdir(mode=0o755)
            self.work.mkdir(mode=0o700)
        except BaseException:
            self._remove()
            raise

    @property
    def upper(self) -> Path:
        """What was written while the layer was on top."""
        return self.place if self.plain else self.place / "upper"

    @property
    def work(self) -> Path:
        """A folder for overlayfs alone."""
        return self.place / "work"

    def park(self) -> None:
        """Give it a place of its own, if it has none, which it keeps where it is no longer shown."""
        if not self.parked:
            place = folders.new_folder("layer")
            mounts.bind(self.place, place)
            self.place, self.parked = place, True

    def use(self) -> tuple[int, int]:
        """Bytes and files it holds, unlinked but open ones too."""
        status = os.statvfs(self.place)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return used, max(0, status.f_files - status.f_ffree - self._own_files)

    def full(self) -> str:
        """`disk` or `files` when (almost) none are left, else an empty string."""
        status = os.statvfs(self.place)
        if status.f_bfree * status.f_frsize < _ALMOST_BYTES:
            return "disk"
        return "files" if status.f_ffree < _ALMOST_FILES else ""

    def freeze(self) -> None:
        """Make it, parked as it is, read-only. Raises MountBusyError, and changes nothing, while a file of it is open
        for writing."""
        mounts.freeze(self.place)

    def thaw(self) -> None:
        """Undo `freeze`, which only the one workspace that shows the layer may do."""
        mounts.thaw(self.place)

    def hold(self) -> None:
        """One more workspace shows it."""
        with _lock:
            self._holders += 1

    def let_go(self) -> None:
        """One workspace fewer shows it; the last one's leaving frees its memory."""
        with _lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(mounts.MountError):  # it may never have been mounted
            mounts.detach(self.place)
        if self.parked:
            with contextlib.suppress(FileNotFoundError):
                self.place.rmdir()


@dataclass(frozen=True)
class Stack:
    """Frozen layers over a base folder, with the limits for them and the one that is to come on top."""

    frozen: tuple[Layer, ...]
    """Topmost first."""
    base: Path | None
    bytes: int
    files: int
    wanted_bytes: int
    """Room that a workspace would have with nothing in it."""
    wanted_files: int

    def left(self) -> tuple[int, int]:
        """Bytes and files that remain for a layer on top."""
        used = [layer.use() for layer in self.frozen]
        return self.bytes - sum(size for size, _ in used), self.files - sum(files for _, files in used)

    def roomy(self) -> bool:
        """Whether half of what was wanted is left."""
        size, files = self.left()
        return 2 * size >= self.wanted_bytes and 2 * files >= self.wanted_files

    def new_top(self) -> Layer:
        """An empty layer with the room that is left; its folder looks as the one below does."""
        layer = Layer(*self.left())
        try:
            status = self.folders()[0].stat()
            os.chown(layer.upper, status.st_uid, status.st_gid)
            layer.upper.chmod(status.st_mode & 0o777)
            os.utime(layer.upper, ns=(status.st_atime_ns, status.st_mtime_ns))
        except BaseException:
            layer.let_go()
            raise
        return layer

    def folders(self) -> list[Path]:
        """What overlayfs stacks, topmost first."""
        return [layer.upper for layer in self.frozen] + ([self.base] if self.base is not None else [])

    def hold(self) -> None:
        """One more workspace stands on this."""
        for layer in self.frozen:
            layer.hold()

    def let_go(self) -> None:
        """One workspace fewer stands on this."""
        for layer in self.frozen:
            layer.let_go()
