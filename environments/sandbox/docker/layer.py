"""How much a container with a writable root has written: what the engine says, asked as seldom as its answer costs.

Nothing but this limits what is written there, so a command may be past the limit until it is asked again.
"""

from __future__ import annotations

import contextlib
import threading
import time

from agentgym_rtmc.environments.sandbox import tree
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError, Engine
from agentgym_rtmc.environments.sandbox.watch import Limit
from agentgym_rtmc.errors import ImageMissingError, SandboxError

_LEAST_PAUSE = 0.25
_TOO_FAR = 4

_lock = threading.Lock()
_discarded: list[tuple[Engine, str]] = []


class LayerMeter:
    """Measures a container's own layer for all its commands."""

    def __init__(self, engine: Engine, container_id: str, limit: int, before: int) -> None:
        """`limit` in bytes; `before`: bytes that count already, because layers below were written by the agent.

        What the container holds now was put there by us and does not count.
        """
        self._engine = engine
        self._id = container_id
        self._limit = limit
        self._ours = 0
        self._ours = self._measure() - before
        self._next = 0.0
        self.used = before
        """Bytes written when it was last measured."""

    def begin(self) -> LayerMeter:
        """For a command that is about to start. Raises TreeRefusedError far past the limit, as each command that is
        killed for it may add to that."""
        if self.used > _TOO_FAR * self._limit:
            raise tree.TreeRefusedError(f"the container holds more than {_TOO_FAR} times its disk limit")
        self._next = time.monotonic() + _LEAST_PAUSE
        # One that is past its limit already must still be usable, to delete files in it.
        self._allowed = max(self._limit, self.used)
        return self

    def look(self) -> Limit | None:
        """See `watch.DiskMeter`."""
        if time.monotonic() < self._next:
            return None
        return self.end()

    def end(self) -> Limit | None:
        """See `watch.DiskMeter`."""
        started = time.monotonic()
        self.used = self._measure() - self._ours
        now = time.monotonic()
        self._next = now + max(_LEAST_PAUSE, 4 * (now - started))
        return "disk" if self.used > self._allowed else None

    def _measure(self) -> int:
        with self._engine.failures("measure a container"):
            found = self._engine.steady.containers(all=True, filters={"id": self._id}, size=True)
        if not found:
            raise ContainerGoneError(f"the container {self._id[:12]} is gone")
        return int(found[0].get("SizeRw") or 0)


def discard(engine: Engine, image_id: str) -> None:
    """Remove an image that a fork was made from; one that others still build on goes together with them."""
    with _lock:
        _discarded.append((engine, image_id))
        for entry in reversed(_discarded.copy()):
            with contextlib.suppress(SandboxError):
                with contextlib.suppress(ImageMissingError), entry[0].failures("remove an image"):
                    entry[0].slow.remove_image(entry[1], force=True)
                _discarded.remove(entry)
