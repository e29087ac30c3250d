"""The worker pool: results, exceptions, cancelling, and threads that hang."""

from __future__ import annotations

import threading
import time

import pytest

from agentgym_rtmc.trainer.workers import WorkerPool


def test_results_and_exceptions_arrive() -> None:
    pool = WorkerPool(2)
    futures = [pool.submit(pow, number, 2) for number in range(20)]
    broken = pool.submit(int, "x")
    assert [future.result(5) for future in futures] == [number**2 for number in range(20)]
    with pytest.raises(ValueError, match="invalid literal"):
        broken.result(5)
    assert pool.close()


def test_a_thread_that_hangs_is_replaced_and_not_waited_for() -> None:
    pool, gate = WorkerPool(1), threading.Event()
    hanging = pool.submit(gate.wait)
    while not hanging.running():
        time.sleep(0.001)
    behind = pool.submit(int, "7")
    assert not behind.done()
    pool.replace_one()
    assert behind.result(5) == 7
    assert not pool.close(patience=0.05)
    assert not hanging.done()  # it did not wait for it
    gate.set()
    assert hanging.result(5)


def test_closing_cancels_what_is_queued() -> None:
    pool, gate = WorkerPool(1), threading.Event()
    first = pool.submit(gate.wait)
    while not first.running():
        time.sleep(0.001)
    queued = [pool.submit(int, "1") for _ in range(5)]
    closer = threading.Thread(target=pool.close)
    closer.start()
    while not all(future.cancelled() for future in queued):
        time.sleep(0.001)
    gate.set()
    closer.join(5)
    assert first.result(5) and not closer.is_alive()
