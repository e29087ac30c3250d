"""The workspace of a container: where an agent's files are, how they are read, written and forked.

Three ways, from the best to the last:
- `overlay`: the engine runs on this machine and we may mount. A workspace of the host (`workspace.OverlayWorkspace`) is
  mounted on a folder that appears in the container; a fork takes milliseconds, files are read and written directly.
- `copy`: any engine. A memory file system of the container; files go through commands in it, a fork is a tar archive.
- `commit`: the image's own folder, for `writable_root`; a fork is an image made of the container.

Invariants: nothing of the agent's runs while files are read, written or forked; nothing is followed through a link.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Literal, Protocol

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.base import SandboxSpec, WorkspaceFileNotFoundError, WorkspacePathError
from agentgym_rtmc.environments.sandbox.docker import scripts
from agentgym_rtmc.environments.sandbox.docker.command import Bytes, Commands
from agentgym_rtmc.environments.sandbox.watch import DiskMeter, Limit
from agentgym_rtmc.environments.sandbox.workspace import Workspace
from agentgym_rtmc.errors import SandboxError

How = Literal["overlay", "copy", "commit"]
PATIENCE = 60.0
"""Seconds that reading, writing or packing files may take inside."""
_PACKED = 1 << 20
"""Bytes that an archive of nothing may have, and per file a few more."""
_RUN = "/.sandbox/sh"


class Files(Protocol):
    """The files of one container."""

    def read(self, parts: tuple[str, ...]) -> bytes:
        """See `Sandbox.read`."""
        ...

    def write(self, parts: tuple[str, ...], data: bytes, mode: int) -> None:
        """See `Sandbox.write`."""
        ...

    def meter(self) -> DiskMeter:
        """What tells whether a command that is about to start passes the limits. Raises TreeRefusedError."""
        ...

    def settle(self) -> None:
        """A command has ended."""
        ...

    def close(self) -> None:
        """Give back what they take beside the container."""
        ...


class HostFiles:
    """`overlay`: they lie on this machine."""

    def __init__(self, spec: SandboxSpec, workspace: Workspace) -> None:
        self._spec = spec
        self.workspace = workspace

    def read(self, parts: tuple[str, ...]) -> bytes:
        """See `Files`."""
        return folders.read_file(self.workspace.path, parts, self._spec.file_bytes)

    def write(self, parts: tuple[str, ...], data: bytes, mode: int) -> None:
        """See `Files`."""
        folders.write_file(self.workspace.path, parts, data, mode, self.workspace.limited)

    def meter(self) -> DiskMeter:
        """See `Files`."""
        return self.workspace.meter()

    def settle(self) -> None:
        """See `Files`."""
        self.workspace.path.chmod(0o755)  # the agent owns it and may have closed it

    def close(self) -> None:
        """See `Files`."""
        self.workspace.close()


class NoMeter:
    """For what is limited by the kernel, and looked at from inside."""

    def look(self) -> Limit | None:
        """See `DiskMeter`."""
        return None

    def end(self) -> Limit | None:
        """See `DiskMeter`."""
        return None


class InsideFiles:
    """`copy` and `commit`: they are reached by commands in the container."""

    def __init__(self, spec: SandboxSpec, commands: Commands, meter: Callable[[], DiskMeter] = NoMeter) -> None:
        self._spec = spec
        self._commands = commands
        self.meter = meter

    def read(self, parts: tuple[str, ...]) -> bytes:
        """See `Files`."""
        path = "/".join(parts)
        limit = self._spec.file_bytes
        sink = Bytes(limit + 1)
        too_large = f"{path!r} is larger than the file limit of {limit} bytes"
        end = self._run(scripts.READ, [path], sink, None, lambda: "size" if sink.total > limit else None)
        if sink.total > limit:
            raise WorkspacePathError(too_large)
        if end:
            raise _refusal(end, path)
        return bytes(sink.data)

    def write(self, parts: tuple[str, ...], data: bytes, mode: int) -> None:
        """See `Files`."""
        path = "/".join(parts)
        words = [path, f"{mode & 0o777:o}", str(len(data))]
        end = self._run(scripts.WRITE, words, Bytes(1000), data, lambda: None)
        if end:
            raise _refusal(end, path)

    def pack(self) -> bytes:
        """A tar archive of all files. Raises WorkspacePathError when they are such that they cannot be copied."""
        limit = 2 * self._spec.disk_bytes + 2048 * self._spec.disk_files + _PACKED
        sink, told = Bytes(limit), Bytes(500)
        words = [_RUN, "-c", scripts.PACK]
        end = self._commands.run(
            [word.encode() for word in words],
            PATIENCE,
            [sink, told],
            None,
            lambda: "size" if sink.total > limit else None,
        )
        if end.killed_for == "time":
            raise SandboxError(f"copying a workspace takes longer than {PATIENCE:g} s")
        if end.killed_for or end.code:
            reason = "it is too large" if end.killed_for else told.data.decode(errors="replace").strip()
            raise WorkspacePathError(f"the workspace cannot be copied: {reason}")
        return bytes(sink.data)

    def unpack(self, archive: bytes) -> None:
        """Add the files of a tar archive.

        Raises SandboxError when they do not fit, WorkspacePathError for paths that are longer than the kernel takes:
        an agent can make them step by step.
        """
        told = Bytes(1 << 20)
        words = [_RUN, "-c", scripts.UNPACK]
        end = self._commands.run([word.encode() for word in words], PATIENCE, [told], archive)
        lines = told.data.decode(errors="replace").splitlines()
        # The folder itself may be root's, who has opened it to all; its mode and time cannot be set, then.
        complaints = [
            line for line in lines if not line.startswith("tar: .: ") and "due to previous errors" not in line
        ]
        if any(line.endswith("File name too long") for line in complaints):
            raise WorkspacePathError(errno.ENAMETOOLONG, "the workspace cannot be copied: its paths are too long")
        if end.killed_for or (end.code and (complaints or not lines)):
            raise SandboxError(f"a workspace could not be filled: {'; '.join(complaints)[:2000] or end}")

    def settle(self) -> None:
        """See `Files`."""

    def close(self) -> None:
        """See `Files`."""

    def _run(
        self, script: str, words: list[str], sink: Bytes, stdin: bytes | None, watch: Callable[[], str | None]
    ) -> int:
        """The script's exit code, or 137 where `watch` had it killed."""
        argv = [_RUN, "-c", script, "sh", *words]
        encoded = [word.encode("utf-8", "surrogateescape") for word in argv]
        end = self._commands.run(encoded, PATIENCE, [sink, Bytes(1000)], stdin, watch)
        if end.killed_for == "time":
            raise SandboxError(f"a file is not read or written within {PATIENCE:g} s")
        return end.code


def _refusal(code: int, path: str) -> WorkspacePathError:
    """What an exit code of `scripts.READ` or `scripts.WRITE` means."""
    if code == scripts.NOT_FOUND:
        return WorkspaceFileNotFoundError(errno.ENOENT, "no such file in the workspace", path)
    number, reason = {
        scripts.CROSSED: (errno.ELOOP, "is or crosses a link or a file"),
        scripts.CLOSED: (errno.EACCES, "is closed to its own owner"),
        scripts.FOLDER_THERE: (errno.EISDIR, "is a folder"),
        scripts.NOT_PLAIN: (errno.EINVAL, "is not a plain file"),
        scripts.NO_ROOM: (errno.ENOSPC, "there is no room in the workspace, or its folder is closed"),
    }.get(code, (errno.EIO, f"cannot be read or written (exit code {code})"))
    return WorkspacePathError(number, reason, path)
