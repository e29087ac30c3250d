"""Learning that a command has used more memory than it may: a container's state does not say so of commands.

The kernel's limit on a container is that on its processes and its files together. Where the engine runs on this machine
the two are told apart here, by the kernel's own counts. Elsewhere only the engine's events are to be had, which tell
that the kernel killed something; one thread per engine listens to them.

Invariant: what happens after a command has begun is counted; while the engine is away nothing is, but then its
containers are gone, too.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Protocol

from agentgym_rtmc.environments.sandbox.docker import labels
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError, Engine
from agentgym_rtmc.errors import SandboxError

_PAUSE = 0.5
"""Seconds between attempts to reach an engine that went away."""


class Memory(Protocol):
    """The memory of one container."""

    def begin(self) -> None:
        """A command is about to start."""
        ...

    def passed(self) -> bool:
        """Whether the command has passed the limit, or the kernel killed something of it."""
        ...

    def close(self) -> None:
        """The container is gone."""
        ...


class KernelMemory:
    """Reads the counts of the container's control group on this machine.

    What a command uses is what has come on top since it began, without what has come into the workspace.
    """

    def __init__(self, pid: int, workdir: str, limit: int) -> None:
        """`pid`: the container's first process as this machine numbers it; `workdir`: its workspace, a memory file
        system; `limit` in bytes. Raises OSError where the kernel does not count."""
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        groups = {controllers: path[1:] for _, controllers, path in (line.split(":", 2) for line in lines)}
        if "memory" in groups:  # version 1
            self._group = Path("/sys/fs/cgroup/memory", groups["memory"])
            self._kills_file, self._names = "memory.oom_control", (b"total_rss", b"total_shmem")
        else:
            self._group = Path("/sys/fs/cgroup", groups[""])
            self._kills_file, self._names = "memory.events", (b"anon", b"shmem")
        self._workdir = Path(f"/proc/{pid}/root{workdir}")
        self._limit = limit
        self.begin()

    def begin(self) -> None:
        """See `Memory`."""
        try:
            self._kills_before = self._kills()
            self._use_before = self._use()
        except FileNotFoundError as error:
            raise ContainerGoneError("the container ended before a command was run in it") from error

    def passed(self) -> bool:
        """See `Memory`."""
        try:
            return self._kills() > self._kills_before or self._use() - self._use_before > self._limit
        except FileNotFoundError:  # the container is gone, which is told elsewhere
            return False

    def _kills(self) -> int:
        found = re.search(rb"^oom_kill (\d+)", (self._group / self._kills_file).read_bytes(), re.MULTILINE)
        if found is None:
            raise OSError(f"{self._group} does not count what was killed")
        return int(found[1])

    def _use(self) -> int:
        counts = dict(line.split() for line in (self._group / "memory.stat").read_bytes().splitlines())
        status = os.statvfs(self._workdir)
        return sum(int(counts[name]) for name in self._names) - (status.f_blocks - status.f_bfree) * status.f_frsize

    def close(self) -> None:
        """See `Memory`."""


class EventMemory:
    """Goes by the engine's events."""

    def __init__(self, engine: Engine, container_id: str) -> None:
        """Raises SandboxError when the engine does not tell events."""
        self._events, self._id = _events(engine), container_id
        self._events.watch(container_id)
        self.begin()

    def begin(self) -> None:
        """See `Memory`."""
        self._before = self._events.count(self._id)

    def passed(self) -> bool:
        """See `Memory`."""
        return self._events.count(self._id) > self._before

    def close(self) -> None:
        """See `Memory`."""
        self._events.forget(self._id)


class _Events:
    """Counts the kernel's kills by container."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._watched: set[str] = set()
        self._listening = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, container_id: str) -> None:
        """Count this container's from now on. Raises SandboxError when the engine does not tell events."""
        with self._lock:
            self._watched.add(container_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="engine events", daemon=True)
                self._thread.start()
        if not self._listening.wait(30):
            raise SandboxError(f"the engine at {self._engine.address} does not tell its events")

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        with self._lock:
            self._watched.discard(container_id)
            self._counts.pop(container_id, None)

    def count(self, container_id: str) -> int:
        """How often something in the container was killed."""
        return self._counts[container_id]

    def _listen(self) -> None:
        filters = {"event": ["oom"], "label": [f"{labels.RUN}={labels.run_id()}"]}
        while True:
            try:
                with self._engine.failures("tell its events"):
                    events = self._engine.endless.events(decode=True, filters=filters)
                    self._listening.set()
                    for event in events:
                        with self._lock:
                            name = event.get("Actor", {}).get("ID", "")
                            if name in self._watched:
                                self._counts[name] += 1
            except SandboxError:
                pass
            self._listening.clear()
            time.sleep(_PAUSE)


@cache
def _events(engine: Engine) -> _Events:
    return _Events(engine)
