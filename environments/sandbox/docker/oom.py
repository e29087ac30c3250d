"""Learning that the kernel killed something for want of memory: the state of a container does not say so of commands.

Where the engine runs on this machine, from the kernel's own count; elsewhere from the engine's events, to which one
thread per engine listens. Invariant: what happens after a counter was made is counted; while the engine is away
nothing is, but then its containers are gone, too.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Protocol

from agentgym_rtmc.environments.sandbox.docker import owner
from agentgym_rtmc.environments.sandbox.docker.engine import Engine
from agentgym_rtmc.errors import SandboxError

_PAUSE = 0.5
"""Seconds between attempts to reach an engine that went away."""


class OutOfMemory(Protocol):
    """Counts the kernel's kills in one container."""

    def count(self) -> int:
        """How many there have been."""
        ...

    def close(self) -> None:
        """The container is gone."""
        ...


class KernelCounter:
    """Reads the count of the container's control group on this machine."""

    def __init__(self, pid: int) -> None:
        """`pid`: the container's first process as this machine numbers it. Raises OSError where there is no count."""
        groups = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        if "memory" in groups:
            self._file = Path("/sys/fs/cgroup/memory", groups["memory"][1:], "memory.oom_control")
        else:
            self._file = Path("/sys/fs/cgroup", groups[""][1:], "memory.events")
        self.count()

    def count(self) -> int:
        """See `OutOfMemory`."""
        found = re.search(rb"^oom_kill (\d+)", self._file.read_bytes(), re.MULTILINE)
        if found is None:
            raise OSError(f"{self._file} does not count")
        return int(found[1])

    def close(self) -> None:
        """See `OutOfMemory`."""


class EventCounter:
    """Counts by the engine's events."""

    def __init__(self, engine: Engine, container_id: str) -> None:
        """Raises SandboxError when the engine does not tell events."""
        self._events, self._id = _events(engine), container_id
        self._events.watch(container_id)

    def count(self) -> int:
        """See `OutOfMemory`."""
        return self._events.count(self._id)

    def close(self) -> None:
        """See `OutOfMemory`."""
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
        filters = {"event": ["oom"], "label": [f"{owner.RUN}={owner.run_id()}"]}
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
