"""Labels that tell, from outside and later, whose a container is and whether the process that made it still lives.

Invariant: a process is known by its machine's boot and by `owner`'s name for it. What another machine, user or process
namespace made is judged by its deadline alone.
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

from agentgym_rtmc.environments.sandbox import owner

_PREFIX = "agentgym-rtmc"
HOST, OWNER, RUN, DEADLINE = (f"{_PREFIX}.{name}" for name in ("host", "owner", "run", "deadline"))
OWNED = f"{_PREFIX}.owned"
"""On an image: the folder in it that is the agent's already."""
GRACE = 300
"""Seconds past its deadline after which something is taken to be forgotten (clocks differ)."""


def labels(ttl: float) -> dict[str, str]:
    """Labels for something this process makes now and that may live for `ttl` seconds."""
    return {HOST: _host(), OWNER: _myself(), RUN: run_id(), DEADLINE: str(int(time.time() + ttl))}


def kept() -> dict[str, str]:
    """Labels for an image that outlives the container it is made of: they take that one's labels back."""
    return dict.fromkeys((HOST, OWNER, RUN, DEADLINE), "")


def run_id() -> str:
    """A name for this process's engine objects, unlike any other's."""
    return _run_id(os.getpid())


def abandoned(found: Mapping[str, str]) -> bool:
    """Whether what has these labels belongs to a process that is certainly dead, or is past its deadline."""
    if found.get(HOST) == _host() and owner.is_dead(found.get(OWNER, "")):
        return True
    deadline = found.get(DEADLINE, "")
    return deadline.isdigit() and int(deadline) + GRACE < time.time()


@cache
def _run_id(_pid: int) -> str:
    return uuid.uuid4().hex


def _myself() -> str:
    try:
        return owner.me()
    except OSError:  # not Linux
        return f"process {os.getpid()}"


@cache
def _host() -> str:
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = f"{platform.node()} {uuid.getnode()}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]
