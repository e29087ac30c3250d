"""What runs that were killed left behind on this machine: processes, control groups, mounts and folders.

Invariant: only what belongs to a process of this user that is certainly dead is ever listed or removed, whoever asks,
so this may run at any time beside living runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rtmc.environments.sandbox import cgroups, folders, mounts, owner
from agentgym_rtmc.errors import SandboxError

_lock = threading.Lock()
_done: set[int] = set()


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that nobody owns any more."""

    kind: str
    """`process`, `cgroup`, `mount`, `folder`, or a kind of object of a container engine."""
    name: str
    """Process number, path, or the engine's id."""
    detail: str
    remove: Callable[[], None] = field(compare=False, repr=False)
    """Removes it; what is gone already is fine. Raises OSError or SandboxError when that is refused."""


def local_leftovers() -> list[Leftover]:
    """Everything on this machine, in the order in which it can be removed."""
    if not Path("/proc/self/mountinfo").exists():  # not Linux: only plain folders can be left
        return list(_folders())
    return [*_processes(), *_groups(), *_mounts(), *_folders()]


def remove_once() -> None:
    """What every process does before its first sandbox: take away what dead runs left."""
    with _lock:
        if os.getpid() in _done:
            return
        _done.clear()
        _done.add(os.getpid())
    for leftover in local_leftovers():
        with contextlib.suppress(OSError, SandboxError):  # it does no harm, and `agentgym-rtmc clean` will tell
            leftover.remove()


def _processes() -> Iterator[Leftover]:
    """Programs that were setting up a sandbox when their trainer died, and were missed by its end."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _abandoned(int(entry.name)):
            pid = int(entry.name)
            with contextlib.suppress(OSError):
                words = _shown((entry / "cmdline").read_bytes())
                yield Leftover("process", entry.name, words, lambda pid=pid: _kill(pid))  # type: ignore[misc]


def _shown(command_line: bytes) -> str:
    """A command line as far as a terminal may be shown it: an agent's process may claim to belong to a dead one.

    >>> _shown(b"sleep" + bytes([0]) + bytes([27]) + b"[2J")
    'sleep ?[2J'
    """
    words = command_line[:60].replace(b"\0", b" ").decode(errors="replace").strip()
    return "".join(char if char.isprintable() else "?" for char in words)


def _abandoned(pid: int) -> bool:
    """Whether a process carries the mark of a dead owner."""
    mark = f"{owner.MARK}=".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(
        word.startswith(mark) and owner.is_dead(word[len(mark) :].decode(errors="replace")) for word in variables
    )


def _kill(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _abandoned(pid):  # still the same, now that its number cannot be given to another
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _groups() -> Iterator[Leftover]:
    for folder in cgroups.left_by_the_dead():
        yield Leftover("cgroup", str(folder), "", lambda folder=folder: cgroups.remove(folder))  # type: ignore[misc]


def _mounts() -> Iterator[Leftover]:
    for folder in folders.stale_run_folders():
        for point in reversed(mounts.below(folder)):
            yield Leftover("mount", str(point), "", lambda point=point: _unmount(point))  # type: ignore[misc]


def _unmount(point: Path) -> None:
    if point in mounts.below(point):
        mounts.detach(point)


def _folders() -> Iterator[Leftover]:
    for folder in folders.stale_run_folders():
        yield Leftover("folder", str(folder), "", lambda folder=folder: folders.remove_stale(folder))  # type: ignore[misc]
