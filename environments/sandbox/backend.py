"""What a way of isolating commands has to offer, and what all ways share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root import ENVIRONMENT
from agentgym_rtmc.environments.sandbox.root_sources import FIRST_SHELL

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
    address space is often reserved and never touched.
    """
    return [
        f"{launcher_folder}/prlimit",
        f"--cpu={spec.cpu_seconds}:{spec.cpu_seconds + 1}",
        f"--as={2 * spec.memory_bytes}",
        f"--fsize={spec.file_bytes}",
        f"--nproc={spec.processes}",
        f"--nofile={spec.open_files}",
        "--core=0",
        "--",
    ]
