"""Isolation by Landlock and seccomp, where ordinary users may not make namespaces and nobody else may help.

There is no view of its own: the command sees the host's paths, and Landlock refuses whatever is not allowed by name.
Allowed are the sandbox's root, the host's copies of the same programs and libraries (scripts name them), a few devices,
and for writing the workspace and a private folder for temporary files. What namespaces would hide, the system-call
filter refuses instead (`seccomp.strict_program`); a supervisor (`landlock_launcher.py`) ends every process.

Weaker than namespaces, and to be known:
- Names, sizes and times of the host's files can be learnt by asking for a known path; their contents cannot.
- No `/proc`, so no `ps`; no `/dev/shm`; no sockets, also no local ones, but connected pairs; no file watches.
- The agent is the trainer's own user (or, for root, user 65534 as in every such sandbox at once); signals, tracing and
  limits of processes outside are refused one by one, not absent. The host's name and load can be seen.
- Processes are counted by the watchdog, and by a control group where there is one; the kernel counts a user's only.
- The workspace's path is the host's. In command lines `spec.workdir` and `/tmp` are replaced by what stands for them,
  and in output the other way round; in files they are not.

Sources: https://docs.kernel.org/userspace-api/landlock.html, linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import py_compile
import re
import resource
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from agentgym_rtmc.environments.sandbox import cgroups, folders, layers, mounts, seccomp
from agentgym_rtmc.environments.sandbox.backend import (
    HOST_ENVIRONMENT,
    RLIMIT_NICE,
    RLIMIT_RTPRIO,
    at_most,
    environment,
)
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, SandboxSpec
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root import DEVICES, JAIL
from agentgym_rtmc.environments.sandbox.root_sources import SYSTEM_PATH
from agentgym_rtmc.errors import SandboxError, SandboxUnavailableError

NEEDED_VERSION = 6
"""Landlock's version with scopes: earlier ones let a command signal every process of its user. Linux 6.12."""
LAUNCHER = Path(__file__).with_name("landlock_launcher.py")

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_MAKE_DEVICE = 1 << 6 | 1 << 11
_ALL_FILE_RIGHTS = (1 << 16) - 1
_LOOK = _READ_FILE | _READ_FOLDER
_RUN = _EXECUTE | _READ_FILE
_CHANGE = _ALL_FILE_RIGHTS & ~_MAKE_DEVICE & ~_IOCTL_DEVICE
_TCP_RIGHTS, _SCOPES = 0b11, 0b11
_SPARE_PROCESSES = 512
"""The kernel counts a user's processes over all sandboxes, so the limit leaves room for others; see the module."""
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
_TOP = 0o710

_lock = threading.Lock()
_launchers: dict[int, Path] = {}
_copies: dict[tuple[int, Path], Path] = {}


def version() -> int:
    """Landlock's version in this kernel; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), 1)))


def why_not() -> str:
    """Why this kernel cannot isolate this way, or an empty string."""
    found = version()
    if found == 0:
        return "the kernel has no Landlock, or it is not switched on (boot with `lsm=landlock,…`)"
    if found < NEEDED_VERSION:
        return f"the kernel's Landlock has version {found}, and {NEEDED_VERSION} is needed (Linux 6.12)"
    if seccomp.column() is None:
        return f"no system-call filter for {os.uname().machine}"
    return ""


class Landlock:
    """One supervised process per command."""

    name = "landlock"
    private_memory = False

    def __init__(self, spec: SandboxSpec, root: Path, folder: Path, workspace: Path) -> None:
        """See `Backend`. Raises SandboxUnavailableError with the reason of `why_not`."""
        reason = why_not()
        if reason:
            raise SandboxUnavailableError(reason)
        for place in (folder, root):
            if ":" in str(place):  # it goes into PATH and LD_LIBRARY_PATH
                raise SandboxUnavailableError(f"{place} has a colon; set TMPDIR and XDG_CACHE_HOME to folders without")
        if os.geteuid() == 0:
            _let_agent_through(folder)
            root = _place_for_agent(root)
        self._folder, self._spec = folder, spec
        self._jail = root / JAIL
        self._launcher = _compiled_launcher()
        self._python = self._jail / "usr/local/bin/python3"
        self._libraries = f"{self._jail}/usr/local/lib:{self._jail}/usr/lib"
        self.scratch: Path | None = folder / "tmp"
        programs = folder / "bin"
        programs.mkdir(mode=0o755)
        _write_program(programs / "pytest", f'exec {self._jail}/usr/local/bin/python3 -m pytest "$@"')
        self._meant = {spec.workdir: str(workspace), "/tmp": str(self.scratch)}
        self._shown = {path: name for name, path in self._meant.items()} | {f"{programs}:": "", str(self._jail): ""}
        self._names = re.compile("|".join(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])" for name in self._meant).encode())
        self._config = folder / "landlock"
        self._config.write_bytes(marshal.dumps(self._contents(programs, workspace)))

    def _contents(self, programs: Path, workspace: Path) -> dict[str, object]:
        spec, scratch = self._spec, str(self.scratch)
        column = seccomp.column()
        program = seccomp.strict_program(spec.network, cgroups.holds_memory())
        assert column is not None
        assert program is not None
        calls = {"chmod": seccomp.CHMOD, "fchmodat": seccomp.FCHMODAT, "fchmodat2": seccomp.FCHMODAT2}
        calls["utimensat"] = seccomp.UTIMENSAT
        rules: list[tuple[str, int]] = [(str(self._jail), _RUN | _READ_FOLDER), (str(programs), _RUN | _READ_FOLDER)]
        rules += [(str(path), _RUN) for path in _host_copies(self._jail)]
        rules += [("/etc/ld.so.cache", _READ_FILE), ("/proc/cpuinfo", _READ_FILE), ("/proc/meminfo", _READ_FILE)]
        rules += [(f"/dev/{name}", _READ_FILE | _WRITE_FILE | _TRUNCATE) for name in DEVICES]
        rules += [(str(workspace), _CHANGE), (scratch, _CHANGE)]
        if spec.network:
            rules += [(path, _READ_FILE) for path in _NETWORK_FILES]
        return {
            "become": AGENT_UID if os.geteuid() == 0 else None,
            "limits": self._limits(),
            "file_rights": _ALL_FILE_RIGHTS,
            "network_rights": 0 if spec.network else _TCP_RIGHTS,
            "scopes": _SCOPES,
            "rules": rules,
            "filter": program,
            "calls": {name: numbers[column] for name, numbers in calls.items() if numbers[column] is not None},
            "writable": [str(workspace.resolve()), str(Path(scratch).resolve())],
            "environment": self._environment(programs, scratch),
        }

    def _environment(self, programs: Path, scratch: str) -> dict[str, str]:
        own = {
            "PATH": f"{programs}:{self._jail}/usr/local/bin:{self._jail}/usr/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "SHELL": f"{self._jail}/usr/bin/sh",
            # Before the host's libraries, of which there may be others of the same name.
            "LD_LIBRARY_PATH": self._libraries,
        }
        plain = environment(self._spec.model_copy(update={"env": {}}))
        own |= {
            name: f"{self._jail}{plain[name]}" for name in plain if name.startswith("GIT_") and plain[name][0] == "/"
        }
        return plain | own | self._spec.env

    def _limits(self) -> dict[int, int]:
        spec = self._spec
        others = _processes_of(AGENT_UID if os.geteuid() == 0 else os.geteuid())
        wanted = {
            resource.RLIMIT_CPU: spec.cpu_seconds,
            resource.RLIMIT_AS: 2 * spec.memory_bytes,
            resource.RLIMIT_FSIZE: spec.file_bytes,
            resource.RLIMIT_NOFILE: spec.open_files,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NPROC: others + spec.processes + _SPARE_PROCESSES,
            RLIMIT_NICE: 0,
            RLIMIT_RTPRIO: 0,
        }
        return {kind: at_most(kind, value) for kind, value in wanted.items()}

    def launch(self, argv: list[bytes]) -> Launch:
        """See `Backend`."""
        words = [os.fsencode(word) for word in (self._python, "-I", "-S", self._launcher, self._config)]
        status_read, status = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._make_scratch()
        except BaseException:
            os.close(status_read)
            os.close(status)
            raise
        return Launch(
            argv=[*words, b"%d" % os.getpid(), b"%d" % status, *(self._names.sub(self._mean, word) for word in argv)],
            env=HOST_ENVIRONMENT | {"LD_LIBRARY_PATH": self._libraries},
            cwd=self._folder / "workspace",
            pass_fds=(status,),
            ends_by="supervisor",
            started=lambda: self._finish(status_read),
            shown=self._shown,
        )

    def _make_scratch(self) -> None:
        """An empty folder for temporary files, limited by the kernel where that can be."""
        assert self.scratch is not None
        if self.scratch.exists():
            folders.remove_tree(self.scratch)
        self.scratch.mkdir(mode=0o700)
        if os.geteuid() == 0:
            if not layers.why_not():
                mounts.tmpfs(self.scratch, self._spec.disk_bytes, self._spec.disk_files)
            os.chown(self.scratch, AGENT_UID, AGENT_UID)

    def _mean(self, match: re.Match[bytes]) -> bytes:
        return os.fsencode(self._meant[os.fsdecode(match[0])])

    def _finish(self, status: int) -> bool:
        """Remove the temporary files; return whether the command was started."""
        assert self.scratch is not None
        try:
            folders.remove_tree(self.scratch)
            return os.read(status, 16) == b"started"
        except BlockingIOError:
            return False
        finally:
            os.close(status)

    def close(self) -> None:
        """See `Backend`."""


def _compiled_launcher() -> Path:
    """The launcher in compiled form, since it starts with every command."""
    with _lock:
        if os.getpid() not in _launchers:
            target = folders.new_folder("launcher") / "landlock_launcher.pyc"
            py_compile.compile(str(LAUNCHER), cfile=str(target), doraise=True)
            _launchers[os.getpid()] = target
        return _launchers[os.getpid()]


def _write_program(path: Path, text: str) -> None:
    path.write_bytes(os.fsencode(f"#!/bin/sh\n{text}\n"))
    path.chmod(0o755)


@lru_cache(maxsize=8)
def _host_copies(jail: Path) -> list[Path]:
    """Files of the host that are in the root as well: programs under names that scripts use, and libraries."""
    names = [path.name for path in (jail / "usr/bin").iterdir() if not path.name.startswith("python")]
    programs = [Path(folder, name) for folder in SYSTEM_PATH[:2] for name in names]
    machine = os.uname().machine
    places = [f"/lib/{machine}-linux-gnu", f"/usr/lib/{machine}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    shared = [path.name for path in (jail / "usr/lib").iterdir() if ".so" in path.name]
    libraries = [Path(folder, name) for folder in places for name in shared]
    return sorted({path.resolve() for path in (*programs, *libraries) if path.is_file()})


def _processes_of(user: int) -> int:
    """Processes and threads of a user now."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    count += len(os.listdir(entry / "task"))  # noqa: PTH208
            except OSError:
                continue
    return count


def _let_agent_through(folder: Path) -> None:
    """Let the agent's group pass the folders above a sandbox's, which are root's; it cannot list their names."""
    run = folders.run_folder()
    for place in (run.parent, run, folder):
        os.chown(place, 0, AGENT_UID)
        place.chmod(_TOP)
    for place in run.parent.resolve().parents:
        if not place.stat().st_mode & 0o001:
            raise SandboxUnavailableError(
                f"the agent, user {AGENT_UID}, cannot pass {place}; set TMPDIR to a folder below ones open to all users"
            )


def _place_for_agent(root: Path) -> Path:
    """The root in a place that the agent can reach, which root's own cache is not: mounted, hard-linked or copied."""
    with _lock:
        key = (os.getpid(), root)
        if key not in _copies:
            target = folders.new_folder("root")
            _let_agent_through(target)
            if not layers.why_not():
                (target / JAIL).mkdir()
                mounts.bind(root / JAIL, target / JAIL)
            else:
                _copy(root / JAIL, target)
            _copies[key] = target
        return _copies[key]


def _copy(source: Path, target: Path) -> None:
    for options in (["--archive", "--link"], ["--archive"]):
        words = ["cp", *options, "--", str(source), str(target)]
        done = subprocess.run(words, capture_output=True, env=HOST_ENVIRONMENT, check=False)
        if done.returncode == 0:
            return
        folders.remove_tree(target / source.name)
    raise SandboxError(f"cannot copy the sandbox's root to {target}: {done.stderr.decode(errors='replace')[:300]}")
