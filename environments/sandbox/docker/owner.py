"""Whose a container is: labels that tell, from outside and later, whether the process that made it still lives.

Invariant: a process is known by its machine's boot, its process namespace, its number and the time it started, so a
number that was given out again is nobody's. What another machine made is judged by its deadline alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PREFIX = "agentgym-rtmc"
OWNER, RUN, DEADLINE = f"{PREFIX}.owner", f"{PREFIX}.run", f"{PREFIX}.deadline"
GRACE = 300
"""Seconds past its deadline after which somebody else's container is taken to be forgotten (clocks differ)."""


def labels(ttl: float) -> dict[str, str]:
    """Labels for something this process makes now and that may live for `ttl` seconds."""
    return {OWNER: _myself(os.getpid()), RUN: run_id(), DEADLINE: str(int(time.time() + ttl))}


def run_id() -> str:
    """A name for this process's engine objects, unlike any other's."""
    return _run_id(os.getpid())


@cache
def _run_id(_pid: int) -> str:
    return uuid.uuid4().hex


def abandoned(found: Mapping[str, str]) -> bool:
    """Whether what has these labels belongs to a dead process, or is of another machine and past its deadline."""
    host, _, process = found.get(OWNER, "").partition("/")
    if host == host_id():
        pid, _, started = process.partition("/")
        return not pid.isdigit() or start_time(int(pid)) != started
    deadline = found.get(DEADLINE, "")
    return deadline.isdigit() and int(deadline) + GRACE < time.time()


@cache
def _myself(pid: int) -> str:
    return f"{host_id()}/{pid}/{start_time(pid)}"


@cache
def host_id() -> str:
    """Tells machines, their boots and their process namespaces apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a magic link, which Path resolves
    except OSError:
        place = f"{platform.node()} {uuid.getnode()}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def start_time(pid: int) -> str:
    """When a process of this machine started, in its kernel's own clock; empty when there is none such."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] == b"Z" else fields[19].decode()
    except (OSError, IndexError):
        return ""
