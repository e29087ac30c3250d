"""Containers started ahead for forks, which would otherwise cost as much as starting one.

Invariant: a shelf belongs to the open sandboxes of one spec; when the last of them closes, its containers are removed.
Nothing is started before the first fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.docker.container import Container
from agentgym_rtmc.environments.sandbox.pool import Pool

AHEAD = 2
"""Containers kept ready once a sandbox has been forked, unless more are asked for."""
_MOST = 1024

_lock = threading.Lock()
_shelves: dict[object, Shelf] = {}


class Room:
    """A started container without a workspace, and the folder where one can be mounted."""

    def __init__(self, container: Container, slot: Path | None) -> None:
        """`slot` is None where the workspace is the container's own."""
        self.container = container
        self.slot = slot

    def alive(self) -> bool:
        """Whether it can be used."""
        return self.container.alive()

    def close(self) -> None:
        """Remove the container and the folder."""
        try:
            self.container.remove()
        finally:
            if self.slot is not None:
                folders.remove_tree(self.slot)


class Shelf:
    """Rooms for the forks of one kind of sandbox."""

    def __init__(self, key: object, make: Callable[[], Room]) -> None:
        self._key = key
        self._make = make
        self._users = 0
        self._pool: Pool[Room] | None = None

    @classmethod
    def join(cls, key: object, make: Callable[[], Room]) -> Shelf:
        """The shelf of all who give an equal `key`; every `join` asks for a `leave`."""
        with _lock:
            shelf = _shelves.setdefault(key, cls(key, make))
            shelf._users += 1
            return shelf

    def leave(self) -> None:
        """One user fewer."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            _shelves.pop(self._key, None)
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def prepare(self, count: int) -> None:
        """Keep at least `count` ready from now on."""
        with _lock:
            if self._pool is None:
                self._pool = Pool(self._make, limit=_MOST, ready=0)
        self._pool.want(count)

    def take(self, timeout: float) -> Room:
        """A room of the caller's own. Raises what making one raises, and SandboxError after `timeout` seconds."""
        self.prepare(AHEAD)
        assert self._pool is not None
        room = self._pool.acquire(timeout)
        self._pool.forget(room)
        return room
