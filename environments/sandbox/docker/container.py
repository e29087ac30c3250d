"""A running container: made with all limits in force, ending with whoever holds it.

Its first process waits for the end of its input, which is a connection that this process holds: when this process
ends, in whichever way, the kernel closes the connection, the first process ends, and the engine removes the container.
Should that fail (a process forked from this one holds the connection too), the container ends by its time to live, and
the next run or `agentgym-rtmc clean` removes it.

Invariant: a container that could not be started whole is removed before the error is raised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym_rtmc.environments.sandbox.docker import scripts
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError, Engine
from agentgym_rtmc.environments.sandbox.docker.stream import STDOUT, Stream
from agentgym_rtmc.errors import SandboxError, SandboxUnavailableError

_START_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class _Said:
    """What the first process said."""

    out: bytearray
    err: bytearray

    def feed(self, kind: int, data: bytes) -> None:
        """See `stream.Feed`."""
        room = self.out if kind == STDOUT else self.err
        room += data[: 2000 - len(room)]


class Container:
    """A started container."""

    def __init__(
        self, engine: Engine, arguments: dict[str, Any], prepare: Callable[[str], None] = lambda container_id: None
    ) -> None:
        """`arguments` as of `options.create_arguments`; `prepare` is called with the id before anything runs in it.

        Raises SandboxUnavailableError for an image without a shell and its few programs, SandboxError when the engine
        fails.
        """
        self.engine = engine
        self._lifeline: Stream | None = None
        with engine.failures("make a container"):
            self.id = str(engine.steady.create_container(**arguments)["Id"])
        try:
            prepare(self.id)
            self._start()
        except BaseException:
            with contextlib.suppress(SandboxError):
                self.remove()
            raise

    def _start(self) -> None:
        said = _Said(bytearray(), bytearray())
        with self.engine.failures("start a container"):
            connection = self.engine.open()
            path = f"/containers/{self.id}/attach?stream=1&stdin=1&stdout=1&stderr=1"
            early = self.engine.take_over(connection, path)
            self._lifeline = Stream(connection, early, said.feed, None)
            self.engine.steady.start(self.id)
            give_up = time.monotonic() + _START_PATIENCE
            while scripts.READY not in said.out:
                self._lifeline.move(time.monotonic() + 1)
                if self._lifeline.ended:
                    told = said.err.decode(errors="replace").strip() or "it says nothing"
                    raise SandboxUnavailableError(
                        f"a container of this image ended at once: {told}; an image for sandboxes needs /bin/sh and "
                        f"{', '.join(scripts.NEEDED[1:])} (busybox or GNU)"
                    )
                if time.monotonic() > give_up:
                    raise SandboxError(f"a container was not ready after {_START_PATIENCE:g} s; the engine is at fault")

    def alive(self) -> bool:
        """Whether its first process still runs, as far as its end would have reached us."""
        return not self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, so long at most, and return whether it came."""
        if self._lifeline is None or self._lifeline.ended:
            return True
        try:
            self._lifeline.move(time.monotonic() + seconds)
        except OSError:
            return True
        return self._lifeline.ended

    def check(self) -> None:
        """Raise ContainerGoneError unless it is alive."""
        if not self.alive():
            raise ContainerGoneError(
                f"the container {self.id[:12]} has ended: removed, past its time, or with its engine"
            )

    def remove(self) -> None:
        """Kill and remove it, and wait until it is gone. Raises SandboxError when the engine does not do it."""
        try:
            self.engine.remove_container(self.id)
        finally:
            if self._lifeline is not None:
                self._lifeline.close()
                self._lifeline = None
