"""An agent's files on the host: a folder whose size is limited and that can be forked.

Two kinds. `OverlayWorkspace`, where this process may mount: the kernel enforces the size, and a fork takes the same
few milliseconds however much there is, so that all episodes of a group can start from one prepared workspace.
`FolderWorkspace`, for everybody else: a plain folder that is measured while commands run, and forked by copying.
`new_workspace` makes the better one that this process can have.

Invariants:
- What is at `path` belongs to an agent: the host opens files in it by `folders.read_file` and `write_file` alone.
- After a fork neither workspace ever sees what is written in the other, also through a descriptor opened before: one
  that is open for writing makes the fork fail.
- Only files are forked, and only while no command runs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

from agentgym_rtmc.environments.sandbox import folders, layers, mounts, tree, watch
from agentgym_rtmc.environments.sandbox.base import SandboxSpec, WorkspacePathError
from agentgym_rtmc.environments.sandbox.layers import BLOCK, Layer, Stack
from agentgym_rtmc.errors import SandboxBusyError, SandboxError

MAX_DEPTH = 8
"""Most frozen layers below a workspace; each one costs every look-up of a name."""


class Workspace(Protocol):
    """A folder for one agent's files."""

    path: Path
    """Where it is on the host."""

    @property
    def limited(self) -> bool:
        """Whether the kernel keeps its limits: a write past them fails with "No space left on device"."""
        ...

    @property
    def how(self) -> Literal["overlay", "copy"]:
        """How it is forked."""
        ...

    def meter(self) -> watch.DiskMeter:
        """What tells, for one command that is about to start, whether it passes the limits."""
        ...

    def fork(self, at: Path) -> Workspace:
        """A workspace with the same files at the existing empty folder `at`.

        Raises SandboxBusyError while a file is open for writing (told by overlays only), WorkspacePathError when an
        agent made the files such that they cannot be copied, OSError when the machine refuses.
        """
        ...

    def close(self) -> None:
        """Give back what it takes. The folder at `path` stays, empty or not; its owner removes it."""
        ...


def new_workspace(spec: SandboxSpec, at: Path, base: Path | None = None) -> Workspace:
    """A workspace at the existing empty folder `at` with the limits of `spec`.

    `base`: a folder whose files it starts with. It is never written to, must not change while the workspace or a fork
    of it lasts, and does not count against the limits; its files keep their owners, so what the agent may change has
    to be the agent's. Raises OSError when the machine refuses, TreeRefusedError for a base too large to be copied.
    """
    if not layers.why_not():
        return OverlayWorkspace.new(spec, at, base)
    return FolderWorkspace(spec, at, base)


class OverlayWorkspace:
    """A memory file system, over the frozen ones of the workspaces it was forked from, over a base folder.

    With nothing below it is shown as it is, which is faster; overlayfs comes with the first fork. Hard links across
    layers are broken: changing one name of a file that was there at the fork leaves its other names as they were.
    """

    limited = True
    how: Literal["overlay"] = "overlay"

    def __init__(self, at: Path, stack: Stack, top: Layer | None = None) -> None:
        """Show `top` (None: an empty one) over `stack`, which are held for this workspace already, at `at`."""
        self.path = at
        self._stack = stack
        made = top is None
        if top is None:
            top = stack.new_top() if stack.folders() else Layer(*stack.left(), at=at)
        self._top = top
        try:
            if top.parked:
                self._show()
            self._untouched = top.use()
        except BaseException:
            if made:
                top.let_go()
            raise

    @classmethod
    def new(cls, spec: SandboxSpec, at: Path, base: Path | None = None) -> OverlayWorkspace:
        """See `new_workspace`. Raises SandboxError where `layers.why_not` has a reason."""
        reason = layers.why_not()
        if reason:
            raise SandboxError(f"this process cannot have layered workspaces: {reason}; use FolderWorkspace")
        limits = spec.disk_bytes, spec.disk_files
        return cls(at, Stack((), base, *limits, *limits))

    def _show(self) -> None:
        """Make the layers appear at `path`."""
        lowers = self._stack.folders()
        if lowers:
            mounts.overlay(self.path, lowers, self._top.upper, self._top.work)
        else:
            mounts.bind(self._top.upper, self.path)

    def meter(self) -> watch.DiskMeter:
        """See `Workspace`."""
        return _LayerMeter(self._top)

    def fork(self, at: Path) -> OverlayWorkspace:
        """See `Workspace`. Takes milliseconds whatever there is, and leaves this one as it is if it has not changed.

        Where `MAX_DEPTH` is reached or half of the limits is used up, everything is copied once. That makes room
        again: until then, what was overwritten or removed in frozen layers counts.
        """
        if self._top.use() == self._untouched:
            return self._sibling(self._stack, at)
        self._freeze()
        try:
            stack = replace(self._stack, frozen=(self._top, *self._stack.frozen))
            if len(stack.frozen) <= MAX_DEPTH and stack.roomy():
                return self._split(stack, at)
            return self._flatten(at)
        except BaseException:
            self._thaw()
            raise

    def _freeze(self) -> None:
        """Make everything read-only, or raise SandboxBusyError and leave it as it was."""
        self._top.park()
        try:
            if self._stack.folders():
                mounts.freeze(self.path)  # before Linux 6.5 writers are counted here, not below
            self._top.freeze()
        except mounts.MountError as error:
            self._thaw()
            if not isinstance(error, mounts.MountBusyError):
                raise
            raise SandboxBusyError(
                "the workspace cannot be forked: a process holds a file of it open for writing; end that process first"
            ) from error

    def _thaw(self) -> None:
        """Undo `_freeze`, as far as it came."""
        self._top.thaw()
        if self._stack.folders():
            with contextlib.suppress(mounts.MountError):  # nothing is there, where showing it again failed
                mounts.thaw(self.path)

    @staticmethod
    def _sibling(stack: Stack, at: Path) -> OverlayWorkspace:
        """A new workspace on layers that another one stands on as well."""
        stack.hold()
        try:
            return OverlayWorkspace(at, stack)
        except BaseException:
            stack.let_go()
            raise

    def _split(self, stack: Stack, at: Path) -> OverlayWorkspace:
        """Put this workspace and a new one on `stack`, which shows the same files; or leave everything as it was."""
        child = self._sibling(stack, at)
        old = self._stack, self._top
        try:
            top = stack.new_top()
            mounts.detach(self.path)
            self._stack, self._top = stack, top
            try:
                self._show()
            except BaseException:
                self._stack, self._top = old
                top.let_go()
                self._show()
                raise
        except BaseException:
            child.close()
            raise
        self._untouched = self._top.use()
        return child

    def _flatten(self, at: Path) -> OverlayWorkspace:
        """Copy everything into one layer: for both workspaces, or, where it is too full, for the new one alone."""
        size, files = self._stack.bytes, self._stack.files
        if self._stack.base is not None:  # its files count from now on
            found = watch.disk_use(self._stack.base, 1 << 62, 1 << 62)
            size, files = size + found.bytes + found.files * BLOCK, files + found.files
        copy = Layer(size, files)
        try:
            _copy(self.path, copy.upper)
            stack = replace(self._stack, frozen=(copy,), base=None, bytes=size, files=files)
            if not stack.roomy():
                child = OverlayWorkspace(at, replace(stack, frozen=()), copy)
                self._thaw()
                return child
            copy.freeze()
            old = self._top, *self._stack.frozen
            child = self._split(stack, at)
        except BaseException:
            copy.let_go()
            raise
        for layer in old:
            layer.let_go()
        return child

    def close(self) -> None:
        """See `Workspace`."""
        if self._top.parked:  # else it is what is shown, and goes with itself
            with contextlib.suppress(mounts.MountError):
                mounts.detach(self.path)
        self._top.let_go()
        self._stack.let_go()


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with owners, times, links and holes. Raises WorkspacePathError, saying what cannot be copied."""
    words = ["cp", "--archive", "--no-target-directory", "--", str(source), str(target)]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, env={"LC_ALL": "C"}, check=False)
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()[:1]
        raise WorkspacePathError(f"the workspace cannot be copied: {''.join(told)}")


class _LayerMeter:
    """Notes whether a layer was full at some time; the kernel keeps the limit, so nothing has to be killed."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._seen = ""

    def look(self) -> watch.Limit | None:
        """See `watch.DiskMeter`."""
        self._seen = self._layer.full() or self._seen
        return None

    def end(self) -> watch.Limit | None:
        """See `watch.DiskMeter`."""
        self.look()
        if not self._seen:
            return None
        return "full-disk" if self._seen == "disk" else "full-files"


class FolderWorkspace:
    """A plain folder, measured while commands run and forked by copying."""

    limited = False
    how: Literal["copy"] = "copy"

    def __init__(self, spec: SandboxSpec, at: Path, base: Path | None = None) -> None:
        """See `new_workspace`."""
        self.path = at
        self._spec = spec
        _own(at)
        if base is not None:
            tree.write(at, {}, tree.read(base).entries)

    def meter(self) -> watch.DiskMeter:
        """See `Workspace`. Raises TreeRefusedError when it holds more than twice its limits."""
        spec = self._spec
        use = watch.disk_use(self.path, 2 * spec.disk_bytes, 2 * spec.disk_files)
        if use.bytes > 2 * spec.disk_bytes or use.files > 2 * spec.disk_files:
            raise tree.TreeRefusedError("the workspace holds more than twice its disk limit")
        # One that is past its limit already must still be usable, to delete files in it.
        return watch.FolderMeter(self.path, max(spec.disk_bytes, use.bytes), max(spec.disk_files, use.files))

    def fork(self, at: Path) -> FolderWorkspace:
        """See `Workspace`. Costs time and disk for every file; sockets an agent left are removed."""
        try:
            files = tree.read(self.path, None, 2 * self._spec.disk_bytes, 2 * self._spec.disk_files)
        except tree.TreeRefusedError as error:
            raise WorkspacePathError(f"the workspace cannot be copied: {error}") from error
        child = FolderWorkspace(self._spec, at)
        tree.write(at, {}, files.entries)
        return child

    def close(self) -> None:
        """See `Workspace`."""


def _own(folder: Path) -> None:
    """Give a folder to the agent, readable by all."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        folders.give_to_agent(descriptor)
        os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)
