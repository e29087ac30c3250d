"""Which process something belongs to, in a name short enough for an environment variable or a folder.

A process number alone does not tell: numbers are used again, and count anew in each process namespace. So a name holds
user, namespace, number and the time the process started.

Invariant: `is_dead` says yes only where that is certain, so nothing of a living process is ever taken for a leftover.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

MARK = "AGENTGYM_RTMC_RUN"
"""Environment variable of the programs that set a sandbox up, holding `me()`. The agent's commands do not see it."""
_FORM = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)")


def me() -> str:
    """The name of this process: `user-namespace-number-start`."""
    return _name(os.getpid(), os.geteuid())


@cache
def _name(pid: int, user: int) -> str:
    return f"{user}-{_namespace()}-{pid}-{_start(pid)}"


def is_dead(name: str) -> bool:
    """Whether `name` is that of a process of this user and namespace that lives no more."""
    match = _FORM.fullmatch(name)
    if match is None:
        return False
    user, namespace, pid, start = map(int, match.groups())
    if (user, namespace) != (os.geteuid(), _namespace()):
        return False
    try:
        return _start(pid) != start
    except FileNotFoundError:
        return True


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start(pid: int) -> int:
    """Start of a process in clock ticks since the machine's. A process that waits to be reaped has none."""
    # The name before it, in brackets, may hold spaces and brackets itself.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise FileNotFoundError(f"process {pid} is dead")
    return int(fields[19])
