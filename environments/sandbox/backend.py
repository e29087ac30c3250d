"""What a way of isolating commands has to offer, and what all ways share."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Protocol

from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root import ENVIRONMENT
from agentgym_rtmc.environments.sandbox.root_sources import FIRST_SHELL

RLIMIT_NICE, RLIMIT_RTPRIO = 13, 14
"""Linux's own, which `resource` does not name."""
HOST_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""Environment of the programs that set a sandbox up; nothing else of the host's is handed to them."""

RUN_AND_EXIT = '(exec "$@") 2>&9 9>&-; exit $?'
"""Last words of a shell that is the first process of a namespace: run the command, and die with all the rest.

Its own descriptor 2 must be closed and 9 be the command's: shells like to remark on how a command died.
"""
FIRST_PROCESS = (f"/{FIRST_SHELL}", "-c", f"exec 9>&2 2>&-; {RUN_AND_EXIT}", "sh")


class Backend(Protocol):
    """Turns an agent's command into a command line for the host. One instance serves one sandbox."""

    name: str
    private_memory: bool
    """Whether commands have a /tmp and a /dev/shm of their own in memory."""
    scratch: Path | None
    """Else a folder of the host for temporary files, which is there while a command runs."""

    def __init__(self, spec: SandboxSpec, root: Path, folder: Path, workspace: Path) -> None:
        """`root` as of `root.ensure_root`; `folder` is the sandbox's own on the host, `workspace` lies in it."""
        ...

    def launch(self, argv: list[bytes]) -> Launch:
        """The command line that runs `argv`; to be run once."""
        ...

    def close(self) -> None:
        """Free what the instance holds."""
        ...


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Environment of the agent's commands: the root's own, overridden by the spec's."""
    return ENVIRONMENT | spec.env


def limits(spec: SandboxSpec, launcher_folder: str) -> list[str]:
    """`prlimit` command line with the limits the kernel keeps per process; the command follows.

    Address space is limited to twice the memory, as a backstop: the watchdog adds up what is really used, while
    address space is often reserved and never touched. A trainer that may claim processors for itself does not pass
    that on. Where its own limits are lower than the spec's, they stay: only a privileged process may raise them.
    """
    wanted = {
        "cpu": (resource.RLIMIT_CPU, spec.cpu_seconds, spec.cpu_seconds + 1),
        "as": (resource.RLIMIT_AS, 2 * spec.memory_bytes, 2 * spec.memory_bytes),
        "fsize": (resource.RLIMIT_FSIZE, spec.file_bytes, spec.file_bytes),
        "nproc": (resource.RLIMIT_NPROC, spec.processes, spec.processes),
        "nofile": (resource.RLIMIT_NOFILE, spec.open_files, spec.open_files),
        "core": (resource.RLIMIT_CORE, 0, 0),
        "nice": (RLIMIT_NICE, 0, 0),
        "rtprio": (RLIMIT_RTPRIO, 0, 0),
    }
    words = [f"--{name}={at_most(kind, soft)}:{at_most(kind, hard)}" for name, (kind, soft, hard) in wanted.items()]
    return [f"{launcher_folder}/prlimit", *words, "--"]


def at_most(kind: int, value: int) -> int:
    """A resource limit as low as this process's own, which what it starts cannot pass."""
    own = resource.getrlimit(kind)[1]
    return value if own == resource.RLIM_INFINITY else min(value, own)
