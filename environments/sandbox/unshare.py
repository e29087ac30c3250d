"""Isolation by util-linux alone (`unshare`, `mount`, `pivot_root`, `setpriv`), where bubblewrap is not installed.

A set-up shell becomes the first process of fresh namespaces, mounts the root, turns the host's root away and starts
the agent's command below a `chroot` and a system-call filter. The shell stays as the first process: the kernel's
parent-death signal is lost where a process changes its user, so the process that carries it must not be the agent's.

The `chroot` is there because the kernel lets no process inside one make user namespaces, in which it would have
capabilities again. It is no escape hatch: leaving one takes a capability, and around it is only an empty shell.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentgym_rtmc.environments.sandbox import cgroups, seccomp, userns
from agentgym_rtmc.environments.sandbox.backend import HOST_ENVIRONMENT, RUN_AND_EXIT, environment, limits
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, SandboxSpec
from agentgym_rtmc.environments.sandbox.conclusion import as_argv
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root import DEVICES, JAIL
from agentgym_rtmc.environments.sandbox.root_sources import LAUNCHER_FOLDER

PROGRAMS = ("unshare", "setpriv", "mount", "pivot_root", "nsenter")
PACKAGE = "package util-linux, 2.36 or newer"

# Host paths come as variables, so that the agent's `ps` does not show them. The bytes of System V objects belong to no
# process, so there are none, where the kernel lets a namespace's root say so (Linux 6.1).
_SET_UP = f"""
set -e
exec 8>"$MARK"
for limit in shmmni msgmni sem; do echo 0 0 0 0 >/proc/sys/kernel/$limit || :; done 2>/dev/null
mount --all --fstab "$MOUNTS"
cd "$ROOT"
pivot_root . {JAIL}/mnt
cd /
/{JAIL}/{LAUNCHER_FOLDER}/umount -l /{JAIL}/mnt
echo started >&8
exec 8>&-
exec 9>&2 2>&-
{RUN_AND_EXIT}
"""

# Util-linux installs system-call filters since 2.40 only, so the root's own Python does.
_FILTER = """
import ctypes, os, sys
program = bytes.fromhex(sys.argv[1])
code = ctypes.create_string_buffer(program, len(program))
header = (ctypes.c_uint64 * 2)(len(program) // 8, ctypes.addressof(code))
if ctypes.CDLL(None).prctl(22, 2, header, 0, 0):
    os._exit(125)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Puts the filter `$1` (hexadecimal) on the command that follows."""

_FIXED = ("sys", "sysrq-trigger", "irq", "bus")
"""Entries of /proc that concern more than processes."""


class Unshare:
    """One fresh set of namespaces per command; everything in it dies with its first process."""

    name = "unshare"
    private_memory = True
    scratch: Path | None = None

    def __init__(self, spec: SandboxSpec, root: Path, folder: Path, workspace: Path) -> None:
        """See `Backend`. Raises SandboxUnavailableError where user namespaces are refused to root."""
        self._userns = userns.UserNamespace() if userns.needed() else None
        self._mark = folder / "started"
        table = folder / "mounts"
        table.write_bytes(os.fsencode(_mounts(spec, root, workspace)))
        if self._userns is None:
            enter, own, become = [], ["--map-root-user"], [f"--map-user={AGENT_UID}", f"--map-group={AGENT_UID}"]
        else:
            enter, own = ["nsenter", f"--user={self._userns.path}"], []
            become = [f"--setgid={AGENT_UID}", f"--setuid={AGENT_UID}"]
        if not spec.network:
            own.append("--net")
        launchers = f"/{LAUNCHER_FOLDER}"
        program = seccomp.filter_program(cgroups.holds_memory())
        self._variables = HOST_ENVIRONMENT | {"MOUNTS": str(table), "ROOT": str(root), "MARK": str(self._mark)}
        self._before = [
            *("setpriv", "--pdeathsig", "KILL", *enter, "unshare", *own),
            *("--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"),
            *("sh", "-c", _SET_UP, "sh"),
        ]
        self._after = [
            *(f"/{JAIL}{launchers}/unshare", *become, f"--root=/{JAIL}", f"--wd={spec.workdir}"),
            *(f"{launchers}/setpriv", "--no-new-privs", "--inh-caps=-all", "--"),
            *(("/usr/local/bin/python3", "-I", "-S", "-c", _FILTER, program.hex()) if program is not None else ()),
            *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment(spec).items())),
            *limits(spec, launchers),
        ]

    def launch(self, argv: list[bytes]) -> Launch:
        """See `Backend`."""
        return Launch(
            argv=[*as_argv([*self._before, *self._after]), *argv],
            env=self._variables,
            started=self._take_mark,
        )

    def _take_mark(self) -> bool:
        """Whether the set-up came to its end; the mark it left is taken away."""
        try:
            return self._mark.read_text() == "started\n"
        except FileNotFoundError:
            return False
        finally:
            self._mark.unlink(missing_ok=True)

    def close(self) -> None:
        """See `Backend`."""
        if self._userns is not None:
            self._userns.close()


def _mounts(spec: SandboxSpec, root: Path, workspace: Path) -> str:
    """The table of mounts in the format of fstab(5)."""
    jail = root / JAIL
    safe = "nosuid,nodev"
    size = f"size={spec.disk_bytes},nr_inodes={spec.disk_files + 1}"  # one is the folder itself
    rows = [
        (root, root, "none", f"bind,ro,{safe}"),
        (Path("proc"), jail / "proc", "proc", f"noexec,{safe}"),
        # The rest stays writable: the kernel takes a new namespace's user table through it.
        *(
            (jail / "proc" / name, jail / "proc" / name, "none", "bind,ro")
            for name in _FIXED
            if Path("/proc", name).exists()
        ),
        *((Path("/dev", name), jail / "dev" / name, "none", "bind") for name in DEVICES),
        (Path("tmpfs"), jail / "dev/shm", "tmpfs", f"mode=1777,{size},{safe}"),
        (Path("tmpfs"), jail / "tmp", "tmpfs", f"mode=1777,{size},{safe}"),
        (workspace, jail / spec.workdir[1:], "none", f"bind,{safe}"),
    ]
    if spec.network:
        rows += [
            (Path(path), jail / path[1:], "none", f"bind,ro,{safe}")
            for path in ("/etc/resolv.conf", "/etc/hosts")
            if Path(path).exists()
        ]
    return "".join(
        f"{_escape(source)} {_escape(target)} {kind} {options} 0 0\n" for source, target, kind, options in rows
    )


def _escape(path: Path) -> str:
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\#" else char for char in str(path))
