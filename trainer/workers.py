"""A small pool of daemon threads for environment steps.

Why not `ThreadPoolExecutor`: its threads are joined at interpreter exit, so one environment that hangs for good would
hang the whole run. Here a hung thread is given up with `replace_one` and never waited for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerPool:
    """`workers` daemon threads that run submitted functions in order of submission."""

    def __init__(self, workers: int, name: str = "worker") -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        for _ in range(workers):
            self.replace_one()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Queue a call; its result or exception arrives in the future."""
        future: Future[T] = Future()
        self._jobs.put((future, function, arguments))
        return future

    def replace_one(self) -> None:
        """Start one more thread (in place of one that hangs)."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, patience: float = 5.0) -> bool:
        """Cancel what is queued and let the threads end; returns whether all did within `patience` seconds."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the future
                future.set_exception(error)
