"""Folders of a run on the host: where they lie, how they are removed, and file access that follows no link.

Layout: `<temporary folder>/agentgym-rtmc-<uid>/<pid>-<random>/…`, one folder per process, which holds a lock on it as
long as it lives. Invariants:
- A folder whose lock nobody holds belongs to a dead process and is removed by the next one that starts.
- A path below a workspace is opened one component at a time without following links, so nothing an agent leaves there
  can make the host read or write elsewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from agentgym_rtmc.environments.sandbox import mounts
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, WorkspaceFileNotFoundError, WorkspacePathError
from agentgym_rtmc.errors import SandboxError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_lock = threading.Lock()
_mine: tuple[int, Path] | None = None


@contextlib.contextmanager
def machine_failures(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses to us, such as space or descriptors, into a SandboxError."""
    try:
        yield
    except WorkspacePathError:
        raise
    except OSError as error:
        raise SandboxError(f"cannot {doing}: {error}; see `agentgym-rtmc doctor`") from error


def run_folder() -> Path:
    """This process's private folder (mode 0700), made on first use and removed at exit; a forked child gets its own."""
    global _mine
    with _lock:
        if _mine is None or _mine[0] != os.getpid():
            _mine = (os.getpid(), _make_run_folder())
        return _mine[1]


def _parent_of_run_folders() -> Path:
    return Path(tempfile.gettempdir()) / f"agentgym-rtmc-{os.geteuid()}"


def _make_run_folder() -> Path:
    parent = _parent_of_run_folders()
    try:
        folder = _make_locked_folder(parent)
    except OSError as error:
        raise SandboxError(f"cannot make a run folder in {parent}: {error}; set TMPDIR to a writable place") from error
    owner = os.getpid()
    atexit.register(lambda: _remove_run_folder(folder) if os.getpid() == owner else None)
    return folder


def _make_locked_folder(parent: Path) -> Path:
    while True:
        parent.mkdir(mode=0o700, exist_ok=True)
        status = parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise SandboxError(f"{parent} is not a folder of this user; remove it or set TMPDIR to another place")
        # The last process to end removes the parent, maybe at this very moment; then we make it again.
        with contextlib.suppress(FileNotFoundError), _locked(parent):
            for stale in filter(_is_stale, parent.iterdir()):
                with contextlib.suppress(SandboxError):  # `agentgym-rtmc clean` tells about it
                    remove_tree(stale)
            folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process ends, whichever way
            return folder


def _remove_run_folder(folder: Path) -> None:
    remove_tree(folder)
    with contextlib.suppress(OSError):  # others are still there
        folder.parent.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of making and removing run folders for a moment."""
    descriptor = os.open(folder, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def stale_run_folders() -> list[Path]:
    """Run folders of this user, in this temporary folder, whose process is dead."""
    parent = _parent_of_run_folders()
    with contextlib.suppress(FileNotFoundError), _locked(parent):
        return [folder for folder in sorted(parent.iterdir()) if _is_stale(folder)]
    return []


def remove_stale(folder: Path) -> None:
    """Remove a run folder, if it is still there and stale."""
    with contextlib.suppress(FileNotFoundError), _locked(folder.parent):
        if folder.is_dir() and _is_stale(folder):
            remove_tree(folder)


def _is_stale(folder: Path) -> bool:
    """Whether the process that made `folder` is dead: its lock is free, or it died before it made one."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def new_folder(name: str) -> Path:
    """A fresh folder in this process's run folder."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run_folder()))


def give_to_agent(descriptor: int) -> None:
    """Make the agent the owner of an open file or folder, where we are root and the agent is somebody else."""
    if os.geteuid() == 0:
        os.fchown(descriptor, AGENT_UID, AGENT_UID)


@contextlib.contextmanager
def opened_up(name: str | Path, mode: int, need: int, folder: int | None = None) -> Iterator[None]:
    """For a moment, give us rights `need` on a file or folder that its owner, which we are too, closed to itself.

    Safe while the agent's command runs: what is opened up is what was looked at, whatever takes its name meanwhile.
    Root passes anyway.
    """
    if mode & need == need or os.geteuid() == 0:
        yield
        return
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    path = Path(f"/proc/self/fd/{descriptor}")
    try:
        path.chmod(mode & 0o777 | need)
        try:
            yield
        finally:
            path.chmod(mode & 0o777)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever an agent did to it: closed folders, endless nesting, odd names.

    What is mounted in it is unmounted first, so nothing is ever deleted through a mount.
    """
    if os.geteuid() == 0:
        mounts.detach_below(folder)
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if not folder.exists():
        return
    # coreutils walk trees deeper than Python's recursion and never follow links on the way.
    for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf", "--one-file-system"]):
        subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False)
    if folder.exists():
        raise SandboxError(f"cannot remove {folder}; remove it by hand")


@contextlib.contextmanager
def _parent(workspace: Path, parts: tuple[str, ...], create: bool) -> Iterator[int]:
    """Open the folder that holds `parts[-1]`, following no link."""
    descriptor = os.open(workspace, _FOLDER)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _FOLDER, dir_fd=descriptor)
            except FileNotFoundError:
                if not create:
                    raise
                os.mkdir(part, 0o755, dir_fd=descriptor)
                below = os.open(part, _FOLDER, dir_fd=descriptor)
                give_to_agent(below)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn what the operating system says about a path into a `WorkspacePathError`."""
    try:
        yield
    except WorkspacePathError:
        raise
    except FileNotFoundError as error:
        raise WorkspaceFileNotFoundError(errno.ENOENT, "no such file in the workspace", path) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EDQUOT):
            raise SandboxError(f"the host cannot serve {path!r}: {error}") from error
        reason = (
            "is or crosses a link or a file" if error.errno in (errno.ELOOP, errno.ENOTDIR) else str(error.strerror)
        )
        raise WorkspacePathError(error.errno, reason, path) from error


def read_file(workspace: Path, parts: tuple[str, ...], max_bytes: int) -> bytes:
    """Read a plain file of at most `max_bytes` below `workspace` without following any link."""
    path = "/".join(parts)
    with _explained(path), _parent(workspace, parts, create=False) as folder:
        # O_NONBLOCK: opening a pipe that an agent left must not wait for a writer.
        descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise WorkspacePathError(f"{path!r} is not a plain file")
            if status.st_size > max_bytes:
                raise WorkspacePathError(f"{path!r} is larger than the file limit of {max_bytes} bytes")
            return file.read()


def write_file(workspace: Path, parts: tuple[str, ...], data: bytes, mode: int, limited: bool = False) -> None:
    """Create or replace a plain file below `workspace`; a link or pipe at its place is replaced, never written to.

    What cannot be written whole leaves the old file as it was. `limited`: the workspace is a file system with the
    agent's limits, so a lack of room is the agent's doing, and else the machine's.
    """
    path = "/".join(parts)
    try:
        with _explained(path), _parent(workspace, parts, create=True) as folder:
            # A new file rather than an overwritten one: the old may be hard-linked to another name or still be open.
            _replace(folder, parts[-1], data, mode & 0o777)
    except SandboxError as error:
        if limited and isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC:
            raise WorkspacePathError(errno.ENOSPC, "there is no room in the workspace", path) from error
        raise


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    new = f".{secrets.token_hex(8)}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            give_to_agent(descriptor)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(new, dir_fd=folder)
        raise
