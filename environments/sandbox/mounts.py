"""Mounting file systems: mount(2) and umount2(2) by way of ctypes, and what is mounted below a folder.

Only for a process that may do so: root with CAP_SYS_ADMIN over its mount namespace. `why_not` tries it for real.

Invariants: every file system mounted here is `nosuid,nodev`; detaching is lazy, so a process that still stands in a
mount cannot keep it where others see it; nothing is deleted here, and nothing may be deleted through a mount.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_READ_ONLY, _NO_SET_ID, _NO_DEVICES, _REMOUNT, _BIND = 1, 2, 4, 32, 4096
_PRIVATE, _SHARED = 1 << 18, 1 << 20
_DETACH, _NOFOLLOW = 2, 8
_SAFE = _NO_SET_ID | _NO_DEVICES

_libc = ctypes.CDLL(None, use_errno=True)
_lock = threading.Lock()
_reasons: dict[tuple[int, int], str] = {}


class MountError(OSError):
    """The kernel refused to mount or unmount something."""


class MountBusyError(MountError):
    """It refused because somebody holds a file of it open for writing."""


def _check(result: int, doing: str, at: Path) -> None:
    if result == 0:
        return
    number = ctypes.get_errno()
    kind = MountBusyError if number == errno.EBUSY else MountError
    raise kind(number, f"cannot {doing}: {os.strerror(number)}", str(at))


def _mount(source: str, at: Path, kind: str | None, flags: int, options: str | None, doing: str) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, os.fspath(at), kind, options)]
    _check(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), doing, at)


def tmpfs(at: Path, size: int, files: int, owner: int = 0, mode: int = 0o700) -> None:
    """Mount an empty memory file system of at most `size` bytes and `files` files, itself included."""
    options = f"size={size},nr_inodes={files},uid={owner},gid={owner},mode={mode:o}"
    _mount("tmpfs", at, "tmpfs", _SAFE, options, "mount a memory file system")


def overlay(at: Path, lowers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount `upper` over `lowers` (topmost first); `work` is an empty folder beside `upper`.

    Renaming a folder of a lower layer works as on any file system (`redirect_dir`); changing a hard-linked file of
    one gives that name a file of its own.
    """
    layers = ":".join(_escape(path) for path in lowers)
    options = f"lowerdir={layers},upperdir={_escape(upper)},workdir={_escape(work)},redirect_dir=on,index=off"
    _mount("overlay", at, "overlay", _SAFE, options, "mount an overlay")


def _escape(path: Path) -> str:
    return re.sub(r"([\\,:])", r"\\\1", str(path))


def bind(source: Path, at: Path) -> None:
    """Make the folder `source` appear at `at` as well, with the flags of the mount that it lies in."""
    _mount(str(source), at, None, _BIND, None, "bind a folder")


def make_shared(at: Path) -> None:
    """Make what is mounted below the mount `at` from now on appear in its copies too: other namespaces, containers.

    It shares with nothing that it was itself a copy of.
    """
    _mount("none", at, None, _PRIVATE, None, "make a mount private")
    _mount("none", at, None, _SHARED, None, "make a mount shared")


def freeze(at: Path) -> None:
    """Make the whole file system mounted at `at` read-only, for everybody and through every mount of it.

    Raises MountBusyError, having changed nothing, while any file of it is open or mapped for writing.
    """
    _mount("none", at, None, _REMOUNT | _READ_ONLY | _SAFE, None, "make a file system read-only")


def thaw(at: Path) -> None:
    """Undo `freeze`."""
    _mount("none", at, None, _REMOUNT | _SAFE, None, "make a file system writable")


def detach(at: Path) -> None:
    """Unmount the topmost mount at `at`; processes that still use it keep it for themselves."""
    _check(_libc.umount2(os.fsencode(at), _DETACH | _NOFOLLOW), "unmount", at)


def below(folder: Path) -> list[Path]:
    """Mount points at and below `folder` in this process's mount namespace, in the order they were mounted.

    A place with several mounts on top of each other is listed once for each.
    """
    prefix = os.fsencode(folder.resolve())
    found = []
    with Path("/proc/self/mountinfo").open("rb") as table:
        for line in table:
            point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), line.split(b" ", 5)[4])
            if point == prefix or point.startswith(prefix + b"/"):
                found.append(Path(os.fsdecode(point)))
    return found


def detach_below(folder: Path) -> None:
    """Unmount everything at and below `folder`, last mounted first. Raises MountError where the kernel refuses."""
    for point in reversed(below(folder)):
        try:
            detach(point)
        except MountError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):  # it went together with another
                raise


def why_not(scratch: Path) -> str:
    """Why this process cannot mount what workspaces need, or an empty string. Tried once in `scratch`, a folder."""
    if sys.platform != "linux":
        return f"mounts need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "only root may mount file systems"
    with _lock:
        who = (os.getpid(), os.geteuid())
        if who not in _reasons:
            _reasons[who] = _try(scratch)
        return _reasons[who]


def _try(scratch: Path) -> str:
    """Mount, freeze and stack layers the way workspaces do."""
    layers = [scratch / "one", scratch / "two"]
    view = scratch / "view"
    try:
        for folder in (*layers, view):
            folder.mkdir()
        for layer in layers:
            tmpfs(layer, 1 << 20, 16)
            (layer / "upper").mkdir()
            (layer / "work").mkdir()
        (layers[0] / "upper" / "folder").mkdir()
        freeze(layers[0])
        overlay(view, [layers[0] / "upper"], layers[1] / "upper", layers[1] / "work")
        (view / "folder").rename(view / "renamed")
        works = (layers[1] / "upper" / "renamed").is_dir()
        return "" if works else "an overlay was mounted but does not do what it should"
    except OSError as error:
        return f"{error.strerror or error}"
    finally:
        detach_below(scratch)
        for folder in (*layers, view):
            if folder.exists():
                folder.rmdir()
