"""A sandbox on this machine without a container engine: bubblewrap, else util-linux namespaces, else Landlock.

Isolation is set up anew for each command, so nothing but files in the workspace passes from one command to the next:
background processes, /tmp and /dev/shm end with the command. The workspace is a folder of the run.

Invariants:
- The back end that is used has been tried on this machine in this process.
- Nothing runs without isolation unless somebody asked for it in so many words, and then a warning is printed.

Not promised: protection from bugs in the kernel. Where the process may neither mount nor make control groups, a
watchdog measures memory and disk every few hundredths of a second, so a command may be past the limits for that long;
memory that the kernel holds for sockets or, under `unshare`, for System V IPC is not limited then, and CPU only by each
process's own limit and the deadline. `landlock` hides less than the others; see there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agentgym_rtmc.environments.sandbox import bubblewrap, folders, landlock, leftovers, process, tree, unshare, watch
from agentgym_rtmc.environments.sandbox.backend import HOST_ENVIRONMENT, Backend
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, ExecResult, SandboxSpec, relative_parts
from agentgym_rtmc.environments.sandbox.cgroups import Cgroup
from agentgym_rtmc.environments.sandbox.conclusion import as_argv, as_seconds
from agentgym_rtmc.environments.sandbox.folders import machine_failures
from agentgym_rtmc.environments.sandbox.output import KeptOutputs
from agentgym_rtmc.environments.sandbox.plain import Plain
from agentgym_rtmc.environments.sandbox.root import WORKDIRS, ensure_root
from agentgym_rtmc.environments.sandbox.workspace import Workspace, new_workspace
from agentgym_rtmc.errors import ConfigError, SandboxError, SandboxUnavailableError

UNSAFE_SWITCH = "AGENTGYM_RTMC_UNSAFE_NO_SANDBOX"
_WARNING = """\
********************************************************************************
* WARNING: agent commands run WITHOUT ISOLATION on this machine, because you   *
* asked for it (isolation = "none" or AGENTGYM_RTMC_UNSAFE_NO_SANDBOX=1).       *
* They can read, change and delete everything your user can.                   *
********************************************************************************"""
HELP = """\
What to do, one of these:
- install bubblewrap: `apt install bubblewrap`, `dnf install bubblewrap` or `pacman -S bubblewrap`;
- where namespaces are forbidden to ordinary users: `sysctl kernel.unprivileged_userns_clone=1` (Debian 10),
  `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or an AppArmor profile for bwrap (Ubuntu 24.04),
  `sysctl user.max_user_namespaces=10000` (RHEL 7); inside a container start it with `--privileged` or as a VM;
- on a machine that holds nothing of value only: set AGENTGYM_RTMC_UNSAFE_NO_SANDBOX=1 to run without isolation."""

BACKENDS: dict[str, type[Backend]] = {
    "bubblewrap": bubblewrap.Bubblewrap,
    "unshare": unshare.Unshare,
    "landlock": landlock.Landlock,
    "none": Plain,
}
"""Every way of running a command."""
ISOLATING = ("bubblewrap", "unshare", "landlock")
"""What `auto` tries, in this order."""

_lock = threading.Lock()
_tried: dict[tuple[str, Path], str] = {}
_warned = False


def why_not(name: str, root: Path) -> str:
    """Try a back end for real; return why it does not work here, or an empty string, which is remembered."""
    with _lock:
        reason = _tried[name, root] if (name, root) in _tried else _try(name, root)
        if not reason:
            _tried[name, root] = ""
        return reason


def _try(name: str, root: Path) -> str:
    if name == "landlock":
        return landlock.why_not() or _trial(name, root)
    module = {"bubblewrap": bubblewrap, "unshare": unshare}[name]
    missing = [program for program in module.PROGRAMS if not shutil.which(program, path=HOST_ENVIRONMENT["PATH"])]
    if missing:
        return f"{', '.join(missing)} not installed ({module.PACKAGE})"
    return _trial(name, root)


def _trial(name: str, root: Path) -> str:
    """Run a harmless command; return what went wrong."""
    user = os.geteuid() if name == "landlock" and os.geteuid() != 0 else AGENT_UID
    try:
        with LocalSandbox(SandboxSpec(root=root), backend=BACKENDS[name]) as sandbox:
            result = sandbox.exec(["sh", "-c", "echo works > probe && cat probe && id -u"])
    except (SandboxError, SandboxUnavailableError) as error:
        return str(error)
    return "" if result.stdout == f"works\n{user}\n" else f"a trial command said: {result.stdout}{result.stderr}"


def choose(spec: SandboxSpec) -> tuple[type[Backend], Path]:
    """The back end for `spec` and the root to use. Raises SandboxUnavailableError, saying why and what to do."""
    if spec.isolation == "none" or (spec.isolation == "auto" and os.environ.get(UNSAFE_SWITCH) == "1"):
        _warn_once()
        return Plain, spec.root or Path("/")
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"local sandboxes need Linux and this is {sys.platform}; use WSL2, a Linux virtual machine or a container"
        )
    root = spec.root or ensure_root()
    names = ISOLATING if spec.isolation == "auto" else (spec.isolation,)
    reasons = []
    for name in names:
        reason = why_not(name, root)
        if not reason:
            return BACKENDS[name], root
        reasons.append(f"- {name}: {reason}")
    raise SandboxUnavailableError("this machine cannot isolate commands:\n" + "\n".join(reasons) + f"\n{HELP}")


def _warn_once() -> None:
    global _warned
    with _lock:
        if not _warned:
            print(_WARNING, file=sys.stderr, flush=True)
        _warned = True


class LocalSandbox:
    """A `Sandbox` whose workspace is a real folder on this machine."""

    def __init__(
        self,
        spec: SandboxSpec | None = None,
        *,
        backend: type[Backend] | None = None,
        make_workspace: Callable[[SandboxSpec, Path], Workspace] = new_workspace,
        brief: bool = False,
    ) -> None:
        """Make a workspace. `backend` overrides the choice that `spec.isolation` makes.

        `make_workspace` makes it at an empty folder. `brief`: most commands take a few milliseconds only, so they get
        into a control group only when they have run for `watch.LATE`; until then the watchdog's limits hold alone.

        Raises SandboxUnavailableError where this machine cannot isolate, ConfigError for an impossible spec.
        """
        self._spec = spec or SandboxSpec()
        if self._spec.workdir not in WORKDIRS:
            raise ConfigError(f"workdir {self._spec.workdir!r} is not in the local root; use one of {WORKDIRS}")
        if backend is None:
            backend, root = choose(self._spec)
        else:
            root = self._spec.root or ensure_root()
        self._lock = threading.Lock()
        leftovers.remove_once()
        with ExitStack() as undo:
            with machine_failures("make a workspace"):
                self._folder = folders.new_folder("sandbox")
                undo.callback(folders.remove_tree, self._folder)
                place = self._folder / "workspace"
                place.mkdir(mode=0o755)
                self._workspace = make_workspace(self._spec, place)
                undo.callback(self._workspace.close)
            self._cgroup = Cgroup(self._spec, self._spec.disk_bytes if self._workspace.limited else 0)
            undo.callback(self._cgroup.close)
            with machine_failures("prepare isolation"):
                self._backend = backend(self._spec, root, self._folder, place)
            undo.pop_all()
        self._late = brief
        self._outputs = KeptOutputs(self._spec.kept_output_bytes)
        self._closed = False

    @property
    def spec(self) -> SandboxSpec:
        """See `Sandbox`."""
        return self._spec

    @property
    def workspace(self) -> Path:
        """The workspace's folder on the host. Its contents are an agent's: never follow a link in it."""
        return self._workspace.path

    @property
    def forks_by(self) -> str:
        """How `fork` works here: `overlay`, in constant time, or `copy`."""
        return self._workspace.how

    @property
    def backend(self) -> str:
        """Name of the back end in use."""
        return self._backend.name

    def exec(
        self,
        argv: Sequence[str],
        timeout: float | None = None,
        stdin: bytes | None = None,
        merge: bool = False,
    ) -> ExecResult:
        """See `Sandbox`."""
        return self.exec_keeping(self._outputs, argv, timeout, stdin, merge)

    def exec_keeping(
        self,
        outputs: KeptOutputs,
        argv: Sequence[str],
        timeout: float | None,
        stdin: bytes | None,
        merge: bool,
    ) -> ExecResult:
        """`exec` for somebody who uses this sandbox for a while and keeps its outputs for longer."""
        words, seconds = as_argv(argv), as_seconds(timeout, self._spec)
        if any(b"\0" in word for word in words):
            return ExecResult(stdout="", stderr="a command cannot contain a NUL byte\n", code=126)
        spec = self._spec
        with self._lock, machine_failures("run a command"):
            self._check_open()
            try:
                meter = self._workspace.meter()
            except tree.TreeRefusedError as error:
                return ExecResult(stdout="", stderr="", code=137, out_of_disk=True, note=f"refused: {error}")
            kept = outputs.begin()
            self._cgroup.renew()
            launch = self._backend.launch(words)
            if self._backend.scratch is not None:
                meter = watch.Meters(meter, watch.FolderMeter(self._backend.scratch, spec.disk_bytes, spec.disk_files))
            watchdog = watch.Watchdog(spec, meter, self._backend.private_memory, self._cgroup, self._late)
            enter = [] if self._late else [word.encode() for word in self._cgroup.enter]
            launch = replace(launch, argv=[*enter, *launch.argv])
            try:
                return process.run(launch, watchdog, seconds, spec.output_bytes, stdin, merge, kept)
            finally:
                if launch.ends_by == "group":
                    self._cgroup.kill()  # what has left its group of processes has not left this one
                self.workspace.chmod(0o755)  # the agent owns it and may have closed it

    def read(self, path: str) -> bytes:
        """See `Sandbox`. Files larger than `spec.file_bytes` are refused with WorkspacePathError."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock:
            self._check_open()
            return folders.read_file(self.workspace, parts, self._spec.file_bytes)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox`."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock:
            self._check_open()
            folders.write_file(self.workspace, parts, data, mode, self._workspace.limited)

    def fork(self) -> LocalSandbox:
        """See `Sandbox`. Costs milliseconds where `forks_by` is `overlay`, else time and disk for every file.

        All episodes of a group can start from forks of one prepared sandbox. Raises WorkspacePathError when the files
        are such that they cannot be copied.
        """
        with self._lock, machine_failures("fork a workspace"):
            self._check_open()
            mine = self._workspace
            return LocalSandbox(
                self._spec,
                backend=type(self._backend),
                make_workspace=lambda spec, place: mine.fork(place),
                brief=self._late,
            )

    def alive(self) -> bool:
        """See `Sandbox`."""
        return not self._closed

    def close(self) -> None:
        """See `Sandbox`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()
                self._workspace.close()
                self._cgroup.close()
                self._outputs.close()
                folders.remove_tree(self._folder)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
