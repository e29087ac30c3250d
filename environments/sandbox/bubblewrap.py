"""Isolation by bubblewrap (`bwrap`): namespaces, a read-only root, no capabilities, a system-call filter.

The first process in the namespaces is a shell of ours, not bubblewrap's own: with that, `bwrap` returns as soon as the
agent's command ends, while what the command left in the background may still be dying and writing. For an ordinary
user that shell is a process of the agent's own user, so it is one that cannot be traced (`root_sources.FIRST_SHELL`):
it carries the parent-death signal, which the agent must not be able to take off it.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentgym_rtmc.environments.sandbox import cgroups, seccomp, userns
from agentgym_rtmc.environments.sandbox.backend import FIRST_PROCESS, HOST_ENVIRONMENT, environment, limits
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, SandboxSpec
from agentgym_rtmc.environments.sandbox.conclusion import as_argv
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root import JAIL
from agentgym_rtmc.environments.sandbox.root_sources import LAUNCHER_FOLDER

PROGRAMS = ("bwrap", "nsenter")
PACKAGE = "package bubblewrap; nsenter comes with util-linux"


class Bubblewrap:
    """One fresh `bwrap` per command; everything in it dies with it."""

    name = "bubblewrap"
    private_memory = True
    scratch: Path | None = None

    def __init__(self, spec: SandboxSpec, root: Path, folder: Path, workspace: Path) -> None:
        """See `Backend`. Raises SandboxUnavailableError where user namespaces are refused to root."""
        self._userns = userns.UserNamespace() if userns.needed() else None
        self._filter = _file(folder / "seccomp.bpf", seccomp.filter_program(cgroups.holds_memory()))
        launchers = f"/{LAUNCHER_FOLDER}"
        options = [
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
            *("--ro-bind", str(root / JAIL), "/"),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--size", str(spec.disk_bytes), "--tmpfs", "/tmp"),
            *("--perms", "1777", "--size", str(spec.disk_bytes), "--tmpfs", "/dev/shm"),
            *("--bind", str(workspace), spec.workdir, "--chdir", spec.workdir),
            "--clearenv",
        ]
        for name, value in environment(spec).items():
            options += ["--setenv", name, value]
        if spec.network:
            options += [word for path in ("/etc/resolv.conf", "/etc/hosts") for word in ("--ro-bind-try", path, path)]
        else:
            options.append("--unshare-net")
        enter: list[str] = []
        become: list[str] = []
        if self._userns is None:
            options += ["--unshare-user", "--uid", str(AGENT_UID), "--gid", str(AGENT_UID)]
        else:
            options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            enter = ["nsenter", f"--user={self._userns.path}", "--"]
            ids = [f"--reuid={AGENT_UID}", f"--regid={AGENT_UID}", "--clear-groups", "--inh-caps=-all"]
            become = [f"{launchers}/setpriv", *ids, "--"]
        # Handed over in a file, so that the agent's `ps` does not show the host's paths.
        self._options = _file(folder / "options", b"".join(word + b"\0" for word in as_argv(options)))
        self._before = as_argv([*enter, PROGRAMS[0]])
        self._after = as_argv(["--", *FIRST_PROCESS, *become, *limits(spec, launchers)])

    def launch(self, argv: list[bytes]) -> Launch:
        """See `Backend`. `bwrap` reports an exit code on its status pipe only if the command was really started."""
        status_read, status = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        words = [*self._before, b"--json-status-fd", b"%d" % status]
        passed = [status]
        for option, path in ((b"--args", self._options), (b"--seccomp", self._filter)):
            if path is not None:
                passed.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                words += [option, b"%d" % passed[-1]]
        return Launch(
            argv=[*words, *self._after, *argv],
            env=HOST_ENVIRONMENT,
            pass_fds=tuple(passed),
            started=lambda: b'"exit-code"' in _read_and_close(status_read),
        )

    def close(self) -> None:
        """See `Backend`."""
        if self._userns is not None:
            self._userns.close()


def _file(path: Path, contents: bytes | None) -> Path | None:
    if contents is None:
        return None
    path.write_bytes(contents)
    return path


def _read_and_close(descriptor: int) -> bytes:
    """What is in a pipe that nobody writes to any more, or that is still empty."""
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.close(descriptor)
