"""Control groups: the kernel's own limits on the memory, processes and CPU of all processes of a sandbox together.

Used where this process may make groups below its own one: as root on hierarchies of version 1 (and on the hybrids of
both), in a delegated group of version 2. Elsewhere the watchdog and the per-process limits hold alone, and `reasons`
says why.

Layout: `<own group>/agentgym-rtmc-<owner.me()>.<number>` in each hierarchy, one for each sandbox.

Invariants:
- The groups lie directly below the process's own group, so limits that somebody put on that hold for sandboxes too,
  and each sandbox gets the CPU time that one more process of the trainer would get.
- With `Cgroup.enter`, a process is in its group before it runs anything of an agent's. What a process in a group
  starts is born into the group.
- A group is removed with its sandbox, and those of a dead process by the next one that starts.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgym_rtmc.environments.sandbox import owner
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.errors import SandboxError

CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "agentgym-rtmc-"
_REST = f"{_PREFIX}rest"
"""Where version 2 has us put the processes of a group that gets groups below it."""
_PERIOD = 100_000
"""Microseconds over which the share of CPUs is held."""
_HELPERS = 8
"""Processes that set a sandbox up, on top of the agent's."""
_ROUNDS = 4
"""Looks for processes that were born while their parents were taken into a group."""
_PATIENCE = 2.0
"""Seconds that a group of dead processes may take to become empty."""
DELEGATE = (
    "start the trainer in a group of its own: `systemd-run --user --scope -p Delegate=yes agentgym-rtmc train …`, "
    "or as root"
)

_lock = threading.Lock()
_numbers = itertools.count()
_homes: dict[int, _Home] = {}
_open: set[Cgroup] = set()


@dataclass(frozen=True)
class _Hierarchy:
    version: int
    top: Path
    """Where it is mounted."""
    own: Path
    """This process's group."""


@dataclass(frozen=True)
class _Home:
    """Where groups are made for each controller that can be used, and why others cannot."""

    folders: dict[str, Path]
    versions: dict[str, int]
    reasons: dict[str, str]


def reasons() -> dict[str, str]:
    """Controller to why the kernel does not hold its limit for sandboxes of this process; empty where all are held."""
    return dict(_home().reasons)


def holds_memory() -> bool:
    """Whether the kernel counts all memory of a sandbox of this process, wherever it is."""
    return "memory" in _home().folders


def _home() -> _Home:
    with _lock:
        pid = os.getpid()
        if pid not in _homes:
            _homes.clear()  # of the process we were forked from
            _open.clear()
            _homes[pid] = _make_home()
            atexit.register(lambda: _close_all() if os.getpid() == pid else None)
        return _homes[pid]


def _close_all() -> None:
    """Remove the groups of sandboxes that nobody has closed."""
    for group in list(_open):
        with contextlib.suppress(OSError, SandboxError):  # the next process removes what is still busy
            group.close()


def _make_home() -> _Home:
    hierarchies = _hierarchies()
    found: dict[str, Path] = {}
    versions: dict[str, int] = {}
    reasons = {
        controller: f"the {controller} controller is not to be seen below /sys/fs/cgroup"
        for controller in CONTROLLERS
        if controller not in hierarchies
    }
    for hierarchy in set(hierarchies.values()):
        controllers = [controller for controller in CONTROLLERS if hierarchies.get(controller) == hierarchy]
        try:
            _check(hierarchy, controllers)
        except OSError as error:
            reasons |= dict.fromkeys(controllers, f"{hierarchy.own}: {error.strerror}")
            continue
        found |= dict.fromkeys(controllers, hierarchy.own)
        versions |= dict.fromkeys(controllers, hierarchy.version)
    return _Home(found, versions, reasons)


def _check(hierarchy: _Hierarchy, controllers: list[str]) -> None:
    """Make a group for trial and put a process into it. Raises OSError where that is refused."""
    enabled = _enable(hierarchy, controllers) if hierarchy.version == 2 else []
    folder = hierarchy.own / f"{_PREFIX}{owner.me()}.try"
    try:
        folder.mkdir()
        try:
            words = ["/bin/sh", "-c", 'echo 0 >"$1"', "sh", str(folder / "cgroup.procs")]
            if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode:
                raise OSError(errno.EPERM, "processes cannot be put into groups below it")
        finally:
            _remove(folder)
    except OSError:
        for controller in enabled:
            _write(hierarchy.own / "cgroup.subtree_control", f"-{controller}")
        raise


def _enable(hierarchy: _Hierarchy, controllers: list[str]) -> list[str]:
    """Let groups below ours have controllers, which version 2 allows only where no process is in ours itself.

    Returns those that were not enabled before.
    """
    switch = hierarchy.own / "cgroup.subtree_control"
    missing = [controller for controller in controllers if controller not in switch.read_text().split()]
    words = " ".join(f"+{controller}" for controller in missing)
    try:
        _write(switch, words)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        if not _ours_to_arrange(hierarchy):
            raise OSError(errno.EBUSY, "processes are in it, and it has not been delegated to them") from error
        leaf = hierarchy.own / _REST
        leaf.mkdir(exist_ok=True)
        for pid in (hierarchy.own / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)
        _write(switch, words)
    return missing


def _ours_to_arrange(hierarchy: _Hierarchy) -> bool:
    """Whether the group was handed over to its processes: by systemd, or as the whole of what a container sees."""
    if hierarchy.own == hierarchy.top:
        return True
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(hierarchy.own, name) == b"1":
                return True
    return False


def _hierarchies() -> dict[str, _Hierarchy]:
    """Controller (and `cgroup.procs` for the one of version 2) to its hierarchy."""
    paths: dict[str, str] = {}
    for line in _lines(Path("/proc/self/cgroup")):
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(",") if names else ["version 2"], path)
    found = {}
    for line in _lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" and "version 2" in paths:
            own = _below(Path(point), root, paths["version 2"])
            if own is not None and own.name == _REST:
                own = own.parent
            if own is not None and (own / "cgroup.controllers").exists():
                for name in (own / "cgroup.controllers").read_text().split():
                    found[name] = _Hierarchy(2, Path(point), own)
        elif kind == "cgroup":
            for name in set(options.split(",")) & set(paths) & set(CONTROLLERS):
                own = _below(Path(point), root, paths[name])
                if own is not None:
                    found[name] = _Hierarchy(1, Path(point), own)
    return found


def _lines(table: Path) -> list[str]:
    """Lines of a table that names files, which may be no text."""
    return [os.fsdecode(line) for line in table.read_bytes().split(b"\n") if line]


def _below(point: Path, root: str, path: str) -> Path | None:
    """Where the group `path` is seen in a mount at `point` that shows `root`."""
    inside = os.path.relpath(path, root)
    return None if inside.startswith("..") else point / inside if inside != "." else point


def _write(path: Path, text: str) -> None:
    if not text:
        return
    # One system call that tells whether the kernel agreed; `write_text` would truncate, which some of these refuse.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Cgroup:
    """The groups of one sandbox, one in each usable hierarchy; none where there is none."""

    def __init__(self, spec: SandboxSpec, beside: int) -> None:
        """`beside`: bytes of memory that the sandbox's files may take, on top of its processes' memory.

        Raises SandboxError when a group that should be possible is refused.
        """
        self._spec, self._beside = spec, beside
        self._folders: dict[str, Path] = {}
        self._events = -1
        self._make()

    def _make(self) -> None:
        home = _home()
        group = f"{_PREFIX}{owner.me()}.{next(_numbers)}"
        _open.add(self)
        try:
            for controller, parent in home.folders.items():
                folder = self._folders[controller] = parent / group
                folder.mkdir(exist_ok=True)
                for name, value in _limits(self._spec, self._beside, controller, home.versions[controller]):
                    if value is not None and (folder / name).exists():
                        _write(folder / name, value)
            if "memory" in self._folders:
                name = "memory.events" if home.versions["memory"] == 2 else "memory.oom_control"
                self._events = os.open(self._folders["memory"] / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise SandboxError(f"cannot make a control group: {error}; see `agentgym-rtmc doctor`") from error

    def renew(self) -> None:
        """Make new groups where somebody has removed these, which the kernel allows while no command runs.

        Raises SandboxError when that is refused.
        """
        if not all(folder.is_dir() for folder in self._places()):
            self.close()
            self._make()

    @property
    def enter(self) -> list[str]:
        """Words before a command line that put it into the groups; empty where there are none."""
        if not self._folders:
            return []
        moves = "".join(f"echo 0 >{shlex.quote(str(folder))}/cgroup.procs || exit 125; " for folder in self._places())
        return ["sh", "-c", f'{moves}exec "$@"', "sh"]

    def adopt(self, pids: Callable[[], list[int]]) -> None:
        """Take in what `pids` lists and is not there yet, also what that starts meanwhile.

        For commands that are mostly over in less time than `enter` costs (the kernel may wait a few milliseconds for
        all its processors): what was started and allocated before counts for nobody.
        """
        for folder in self._places():
            for _ in range(_ROUNDS):
                outside = set(pids()) - _members(folder)
                for pid in outside:
                    with contextlib.suppress(ProcessLookupError):
                        _write(folder / "cgroup.procs", str(pid))
                if not outside:
                    break

    def _places(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))

    def oom_kills(self) -> int:
        """Processes killed so far because the group was out of memory."""
        if self._events < 0:
            return 0
        found = re.search(rb"^oom_kill (\d+)$", os.pread(self._events, 4096, 0), re.MULTILINE)
        return int(found[1]) if found else 0

    def kill(self) -> bool:
        """Kill everything in the groups; return whether there are groups at all, which know of every process."""
        for folder in self._places()[:1]:
            _kill(folder)
        return bool(self._folders)

    def close(self) -> None:
        """Kill what is in the groups and remove them."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        for folder in self._places():
            _remove(folder)
        self._folders.clear()
        _open.discard(self)


def _limits(spec: SandboxSpec, beside: int, controller: str, version: int) -> Iterator[tuple[str, str | None]]:
    """Files of a group and what to write to them, in this order."""
    memory, quota = str(spec.memory_bytes + beside), str(max(1000, int(spec.cpus * _PERIOD)))
    table = {
        ("memory", 1): [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        ("memory", 2): [("memory.max", memory), ("memory.swap.max", "0")],
        ("pids", 1): [("pids.max", str(spec.processes + _HELPERS))],
        ("pids", 2): [("pids.max", str(spec.processes + _HELPERS))],
        ("cpu", 1): [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", quota)],
        ("cpu", 2): [("cpu.max", f"{quota} {_PERIOD}")],
    }
    yield from table[controller, version]


def _kill(folder: Path) -> None:
    """Kill every process in a group, also those that are born meanwhile."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            _write(folder / "cgroup.kill", "1")
        except FileNotFoundError:  # version 1, or an old kernel
            if not folder.is_dir():
                return
            _kill_each(folder)
        if not (folder / "cgroup.procs").read_text().split():
            return
        if time.monotonic() > give_up:
            raise SandboxError(f"killed processes in {folder} do not die; the machine is at fault")
        time.sleep(0.001)


def _kill_each(folder: Path) -> None:
    """Kill by process number, and never a later process with the number of one that has ended."""
    opened: dict[int, int] = {}
    try:
        for pid in _members(folder):
            with contextlib.suppress(ProcessLookupError):
                opened[pid] = os.pidfd_open(pid)
        for pid in _members(folder) & set(opened):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(opened[pid], signal.SIGKILL)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _members(folder: Path) -> set[int]:
    """Process numbers in a group; 0 stands for those that this process's namespace does not know."""
    return {int(word) for word in (folder / "cgroup.procs").read_text().split()} - {0}


def _remove(folder: Path) -> None:
    """Remove a group with the groups in it and the processes in them."""
    if not folder.is_dir():
        return
    for below in [path for path in folder.iterdir() if path.is_dir()]:
        _remove(below)
    _kill(folder)
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # its processes are dead, but not all of them forgotten yet
            if error.errno != errno.EBUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.001)
        else:
            return


def left_by_the_dead() -> list[Path]:
    """Groups of processes of this user that live no more, in every hierarchy of version 1 or 2."""
    found = []
    for hierarchy in set(_hierarchies().values()):
        for folder, names, _ in os.walk(hierarchy.top):
            ours = [name for name in names if name.startswith(_PREFIX)]
            found += [
                Path(folder, name) for name in ours if owner.is_dead(name.removeprefix(_PREFIX).partition(".")[0])
            ]
            names[:] = [name for name in names if name not in ours]
    return found


def _owner_of(group: str) -> str:
    return group.removeprefix(_PREFIX).partition(".")[0]


def remove(folder: Path) -> None:
    """Remove a group that `left_by_the_dead` found, with what runs in it. Raises OSError when the kernel refuses."""
    _remove(folder)
