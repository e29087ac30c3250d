"""Warm workspaces: folders with a back end ready, kept between commands because making them costs milliseconds.

Invariants: a workspace is used by one command at a time; what is on its disk is known exactly, and if a command or a
failure leaves that in doubt, the workspace is thrown away; a forked process starts without its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym_rtmc.environments.sandbox import tree
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox

if TYPE_CHECKING:
    from agentgym_rtmc.environments.sandbox.snapshot import Snapshot

MAX_IDLE = 16
"""Workspaces kept although nobody uses them."""


class Bench:
    """One warm workspace and what lies in it."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.sandbox = LocalSandbox(spec, brief=True)
        self.holds: Snapshot | None = None
        """What is on disk; None while that is not certain, or for a new and empty workspace."""

    def become(self, snapshot: Snapshot) -> None:
        """Write `snapshot` to disk, as far as it is not there. Until `now` is called the contents are in doubt."""
        current = self.holds.entries if self.holds is not None else {}
        self.holds = None
        tree.write(self.sandbox.workspace, current, snapshot.entries)

    def now(self, snapshot: Snapshot) -> None:
        """State that exactly `snapshot` is on disk."""
        self.holds = snapshot

    def spoil(self) -> None:
        """State that nobody knows what is on disk."""
        self.holds = None


class Workshop:
    """A bounded pool of benches; as many as there are callers can be in use at once."""

    def __init__(self, max_idle: int = MAX_IDLE) -> None:
        self._max_idle = max_idle
        self._idle: list[Bench] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    @contextlib.contextmanager
    def lease(self, spec: SandboxSpec, wanted: Snapshot) -> Iterator[Bench]:
        """Lend a bench, if possible one that already holds `wanted`. Raises what making a `LocalSandbox` raises."""
        bench = self._take(spec, wanted) or Bench(spec)
        try:
            yield bench
        except BaseException:
            bench.spoil()
            raise
        finally:
            self._put(bench)

    def _take(self, spec: SandboxSpec, wanted: Snapshot) -> Bench | None:
        with self._lock:
            if self._owner != os.getpid():
                self._idle, self._owner = [], os.getpid()
            fitting = [bench for bench in self._idle if bench.spec.digest == spec.digest]
            if not fitting:
                return None
            best = next((bench for bench in reversed(fitting) if bench.holds is wanted), None)
            best = best or next((bench for bench in reversed(fitting) if bench.holds == wanted), fitting[-1])
            self._idle.remove(best)
            return best

    def _put(self, bench: Bench) -> None:
        surplus = [] if bench.holds is not None else [bench]
        with self._lock:
            if bench.holds is not None:
                self._idle.append(bench)
                while len(self._idle) > self._max_idle:
                    surplus.append(self._idle.pop(0))
        for useless in surplus:
            useless.sandbox.close()

    def close(self) -> None:
        """Remove all idle workspaces."""
        with self._lock:
            benches, self._idle = self._idle, []
        for bench in benches:
            bench.sandbox.close()


_SHARED = Workshop()


def shared() -> Workshop:
    """The process's own workshop; its folders are removed when the process ends."""
    return _SHARED
