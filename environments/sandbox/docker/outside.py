"""Killing from outside: where the engine runs on this machine, a container's processes are this machine's, too.

Quicker than sending a command in, and sure: it needs no room in the container, neither in memory nor among processes.

Invariant: only what is in the container's control group is ever signalled, and nothing of the user of its first
process, which is the container's root and never the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PATIENCE = 2.0
"""Seconds that killed processes may take to be gone."""


class Processes:
    """The processes of one container, as this machine sees them."""

    def __init__(self, pid: int) -> None:
        """`pid`: the container's first process. Raises OSError where they cannot be seen."""
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        groups = {controllers: path[1:] for _, controllers, path in (line.split(":", 2) for line in lines)}
        top = Path("/sys/fs/cgroup")
        group = top / "pids" / groups["pids"] if "pids" in groups else top / groups[""]
        self._list = group / "cgroup.procs"
        self._root = _user(pid)
        if pid not in self._members():
            raise OSError(f"process {pid} is not in {group}")

    def _members(self) -> list[int]:
        return [int(line) for line in self._list.read_text().split()]

    def kill(self) -> None:
        """Kill all that the agent's user runs, and wait until it is gone."""
        give_up = time.monotonic() + PATIENCE
        with contextlib.suppress(FileNotFoundError):  # the container has ended
            # What was born meanwhile is found the next time; what is killed bears nothing any more.
            while agents := [pid for pid in self._members() if _user(pid) not in (self._root, None)]:
                for pid in agents:
                    self._kill(pid)
                if time.monotonic() > give_up:
                    return  # what is sent in next will tell
                time.sleep(0.001)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # Still the same one, now that its number cannot be given to another?
                if pid in self._members() and _user(pid) not in (self._root, None):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def _user(pid: int) -> int | None:
    """Real user of a process; None when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()  # its name may be no text
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)
