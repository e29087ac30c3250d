"""A user namespace for a trainer that runs as root, so that the agent is an ordinary user on the host too.

An ordinary user's sandbox gets its namespace from the back end itself: the agent inside is that user outside, and has
no rights the user lacks. Root must not be mapped that way. Instead a namespace is prepared in which two ids exist: 0,
which sets the sandbox up, can pass the folders of root but has no capability on the host, and `AGENT_UID`, which runs
the agent's commands. The kernel counts processes per user and namespace, so each sandbox gets its own.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agentgym_rtmc.environments.sandbox.backend import HOST_ENVIRONMENT
from agentgym_rtmc.environments.sandbox.base import AGENT_UID
from agentgym_rtmc.errors import SandboxUnavailableError


def needed() -> bool:
    """Whether this process is root, with other users to become (which root in a rootless container has not)."""
    return os.geteuid() == 0 and _maps(Path("/proc/self/uid_map"), AGENT_UID)


def _maps(table: Path, number: int) -> bool:
    rows = [[int(word) for word in line.split()] for line in table.read_text().splitlines()]
    return any(first <= number < first + count for first, _, count in rows)


class UserNamespace:
    """Holds a prepared user namespace open until `close`."""

    def __init__(self) -> None:
        """Raises SandboxUnavailableError when the kernel or a container forbids user namespaces to root."""
        try:
            helper = subprocess.Popen(
                ["unshare", "--user", "sh", "-c", "echo ready; read -r line"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=HOST_ENVIRONMENT,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailableError(f"cannot run unshare: {error}; install the package util-linux") from error
        with helper:
            assert helper.stdin and helper.stdout and helper.stderr
            if helper.stdout.readline() != b"ready\n":
                raise SandboxUnavailableError(
                    f"the kernel refuses user namespaces: {helper.stderr.read().decode(errors='replace').strip()}"
                )
            try:
                for table in ("uid_map", "gid_map"):
                    Path(f"/proc/{helper.pid}/{table}").write_text(f"0 0 1\n{AGENT_UID} {AGENT_UID} 1\n")
                self.descriptor = os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise SandboxUnavailableError(f"cannot prepare a user namespace: {error}") from error
            finally:
                helper.stdin.close()  # ends the helper; the descriptor keeps the namespace

    @property
    def path(self) -> str:
        """Where another process of the host finds the namespace."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        """Let go of the namespace."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
