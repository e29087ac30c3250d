"""Sandboxes prepared ahead: as many at once as you allow, each handed out once, none of them dead.

    with SandboxPool(SandboxSpec(image="python:3.12-slim"), limit=16, ready=4) as pool:
        with pool.lease() as sandbox:
            sandbox.exec(["pytest", "-q"])

Invariants:
- At most `limit` exist at once, prepared and lent together. Who asks for one more waits for one that is given back.
- A sandbox is lent once. Given back, it is closed; used ones never return to the shelf.
- What died on the shelf (an engine that was restarted, a container removed from outside) is thrown away and replaced.
- A machine's failure is tried again, more and more slowly, until whoever waits has waited as long as they wanted.
  What no waiting mends (an image that is not there) is raised at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from agentgym_rtmc.environments.sandbox.base import Sandbox, SandboxSpec
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.errors import InfrastructureError, SandboxError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts after failures."""


class Poolable(Protocol):
    """What a pool can hold."""

    def alive(self) -> bool:
        """Whether it can be used."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


T = TypeVar("T", bound=Poolable)


class Pool(Generic[T]):
    """A pool of whatever `make` makes. All methods may be called from any thread."""

    def __init__(self, make: Callable[[], T], *, limit: int, ready: int, makers: int = 2) -> None:
        """`ready`: how many are prepared ahead, within the `limit`; `makers`: how many are prepared at a time."""
        if limit < 1 or ready < 0 or makers < 1:
            raise ValueError(f"a pool needs limit >= 1, ready >= 0 and makers >= 1; got {limit}, {ready}, {makers}")
        self._make = make
        self._limit = limit
        self._wanted = min(ready, limit)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._shelf: deque[T] = deque()
        self._lent: list[T] = []
        self._making = 0
        self._waiting = 0
        self._failures = 0
        self._failure: Exception | None = None
        self._next_try = 0.0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._prepare, name="sandbox pool", daemon=True) for _ in range(min(makers, limit))
        ]
        for thread in self._threads:
            thread.start()

    def acquire(self, timeout: float | None = None) -> T:
        """Wait for a fresh one, at most `timeout` seconds (None: as long as it takes); `release` it in the end.

        Raises SandboxError when the time is up, with the last failure as its cause, or when the pool is closed; at
        once what is not the machine's failure, such as ImageMissingError.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._waiting += 1
            if self._failure is not None and not isinstance(self._failure, InfrastructureError):
                self._failure, self._next_try = None, 0.0  # it may have been mended since
            self._changed.notify_all()
            try:
                while True:
                    item = self._take(give_up)
                    if item is not None:
                        return item
            finally:
                self._waiting -= 1

    def _take(self, give_up: float | None) -> T | None:
        """One living item, or None after anything has changed."""
        self._check()
        if self._shelf:
            item = self._shelf.popleft()
            self._lent.append(item)  # it counts while we look at it without the lock
            self._changed.notify_all()
            self._changed.release()
            try:
                alive = item.alive()
            finally:
                self._changed.acquire()
            if alive and not self._closed:
                return item
            self._changed.release()
            try:
                self.release(item)
            finally:
                self._changed.acquire()
            return None
        if self._failure is not None and not isinstance(self._failure, InfrastructureError):
            failure, self._failure, self._next_try = self._failure, None, 0.0  # whoever asks next may have mended it
            raise failure
        left = None if give_up is None else give_up - time.monotonic()
        if left is not None and left <= 0:
            state = f"{len(self._lent)} of {self._limit} are lent"
            raise SandboxError(f"no sandbox became free in time ({state})") from self._failure
        self._changed.wait(left)
        return None

    def release(self, item: T) -> None:
        """Take one back: it is closed, and makes room for another. Errors of closing are not the caller's business:
        what could not be removed is left to `agentgym-rtmc clean`."""
        try:
            with contextlib.suppress(SandboxError):
                item.close()
        finally:
            self.forget(item)

    def forget(self, item: T) -> None:
        """One that was lent is its user's for good, who closes it."""
        with self._changed:
            self._lent.remove(item)
            self._changed.notify_all()

    @contextlib.contextmanager
    def lease(self, timeout: float | None = None) -> Iterator[T]:
        """`acquire`, and `release` in the end."""
        item = self.acquire(timeout)
        try:
            yield item
        finally:
            self.release(item)

    def want(self, ready: int) -> None:
        """Prepare at least `ready` ahead from now on, within the limit."""
        with self._changed:
            self._wanted = max(self._wanted, min(ready, self._limit))
            self._changed.notify_all()

    def ready(self) -> int:
        """How many are prepared."""
        with self._changed:
            return len(self._shelf)

    def close(self) -> None:
        """Close all that is prepared, and wait for what is being made; what is lent is its users' to give back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            shelf, self._shelf = list(self._shelf), deque()
        for item in shelf:
            with contextlib.suppress(SandboxError):
                item.close()
        if self._owner == os.getpid():
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the pool is closed; make a new one")
        if self._owner != os.getpid():
            raise SandboxError("the pool belongs to another process; make one after forking")

    def _prepare(self) -> None:
        """A thread's life: make what is missing."""
        while self._wait_for_work():
            item, failure = None, None
            try:
                item = self._make()
            except Exception as error:  # noqa: BLE001 - it is raised to whoever waits
                failure = error
            with self._changed:
                self._making -= 1
                self._note(failure)
                if item is not None and not self._closed:
                    self._shelf.append(item)
                    item = None
                self._changed.notify_all()
            if item is not None:
                with contextlib.suppress(SandboxError):
                    item.close()

    def _wait_for_work(self) -> bool:
        """Wait until something is to be made, which is then counted; False when the pool is closed."""
        with self._changed:
            while not self._closed:
                there = len(self._shelf) + self._making
                wanted = max(self._wanted, self._waiting)
                pause = self._next_try - time.monotonic()
                if there < wanted and there + len(self._lent) < self._limit and pause <= 0:
                    self._making += 1
                    return True
                self._changed.wait(pause if pause > 0 else None)
            return False

    def _note(self, failure: Exception | None) -> None:
        self._failure = failure
        if failure is None:
            self._failures, self._next_try = 0, 0.0
            return
        self._failures += 1
        permanent = not isinstance(failure, InfrastructureError)
        pause = LONGEST_PAUSE if permanent else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1))
        self._next_try = time.monotonic() + pause

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SandboxPool(Pool[Sandbox]):
    """A pool of sandboxes of one spec, or of those that a function makes (forks of a prepared one, for instance)."""

    def __init__(
        self, source: SandboxSpec | Callable[[], Sandbox], *, limit: int = 8, ready: int = 2, makers: int = 2
    ) -> None:
        """See `Pool`."""
        make = source if callable(source) else lambda: open_sandbox(source)
        super().__init__(make, limit=limit, ready=ready, makers=makers)
