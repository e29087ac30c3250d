"""The pool: prepares ahead, bounds, lends once, throws away the dead, waits instead of failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from agentgym_rtmc.environments.sandbox.base import Sandbox, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.pool import Pool, SandboxPool
from agentgym_rtmc.errors import ConfigError, ImageMissingError, SandboxError


class Thing:
    """Something to pool that costs nothing and keeps account of itself."""

    made: list[Thing] = []  # noqa: RUF012 - set anew by each test
    most_alive = 0
    lock = threading.Lock()

    def __init__(self) -> None:
        self.living, self.closed, self.users = True, False, 0
        with Thing.lock:
            Thing.made.append(self)
            Thing.most_alive = max(Thing.most_alive, sum(not thing.closed for thing in Thing.made))

    def alive(self) -> bool:
        return self.living and not self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def account() -> None:
    Thing.made, Thing.most_alive = [], 0


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.005)
    return condition()


def test_some_are_prepared_ahead_and_replaced() -> None:
    with Pool(Thing, limit=5, ready=2) as pool:
        assert wait_until(lambda: pool.ready() == 2)
        first = pool.acquire()
        assert wait_until(lambda: pool.ready() == 2)
        assert len(Thing.made) == 3
        pool.release(first)
        assert first.closed
    assert all(thing.closed for thing in Thing.made)


def test_the_bound_holds_and_nobody_gets_what_was_used() -> None:
    with Pool(Thing, limit=3, ready=2) as pool:

        def use() -> None:
            for _ in range(40):
                with pool.lease(30) as thing:
                    thing.users += 1
                    assert not thing.closed
                    time.sleep(0.0005)

        threads = [threading.Thread(target=use) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Thing.most_alive <= 3
    assert sum(thing.users for thing in Thing.made) == 12 * 40
    assert {thing.users for thing in Thing.made} <= {0, 1}
    assert all(thing.closed for thing in Thing.made)


def test_the_dead_are_thrown_away() -> None:
    with Pool(Thing, limit=4, ready=3) as pool:
        assert wait_until(lambda: pool.ready() == 3)
        for thing in Thing.made:
            thing.living = False
        with pool.lease(10) as thing:
            assert thing.living
        assert all(thing.closed for thing in Thing.made[:3])


def test_waiting_ends_when_the_time_is_up_or_one_comes_back() -> None:
    with Pool(Thing, limit=1, ready=1) as pool:
        held = pool.acquire(10)
        with pytest.raises(SandboxError, match="1 of 1 are lent"):
            pool.acquire(0.05)
        threading.Timer(0.1, pool.release, (held,)).start()
        with pool.lease(10) as another:
            assert another is not held


def test_a_failing_machine_is_tried_again_and_a_hopeless_case_is_not() -> None:
    failures = [SandboxError("busy"), SandboxError("busy"), ImageMissingError("fetch it"), ConfigError("no")]

    def make() -> Thing:
        if failures:
            raise failures.pop(0)
        return Thing()

    with Pool(make, limit=2, ready=0, makers=1) as pool:
        with pytest.raises(ImageMissingError, match="fetch it"):
            pool.acquire(10)
        with pytest.raises(ConfigError):
            pool.acquire(10)
        with pool.lease(10) as thing:
            assert thing.alive()


def test_the_last_failure_is_told_when_the_time_is_up() -> None:
    def make() -> Thing:
        raise SandboxError("the engine is away")

    with Pool(make, limit=2, ready=1) as pool:
        with pytest.raises(SandboxError, match="in time") as caught:
            pool.acquire(0.4)
        assert "the engine is away" in str(caught.value.__cause__)


def test_closing_wakes_those_who_wait() -> None:
    pool = Pool(Thing, limit=1, ready=1)
    held = pool.acquire(10)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            pool.acquire()
        except SandboxError as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    pool.close()
    thread.join(10)
    assert "closed" in str(told[0])
    pool.release(held)
    assert all(thing.closed for thing in Thing.made)


def test_unusable_bounds_are_refused() -> None:
    for limit, ready, makers in ((0, 0, 1), (1, -1, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="a pool needs"):
            Pool(Thing, limit=limit, ready=ready, makers=makers)


def test_local_sandboxes_and_forks_of_a_prepared_one() -> None:
    with SandboxPool(SandboxSpec(), limit=2, ready=1) as pool, pool.lease(30) as sandbox:
        assert sandbox.exec(["echo", "x"]).stdout == "x\n"
    with LocalSandbox() as prepared:
        prepared.write("f", b"prepared")
        with SandboxPool(prepared.fork, limit=3, ready=2) as forks:
            used: list[Sandbox] = [forks.acquire(30) for _ in range(3)]
            assert [sandbox.exec(["sh", "-c", "cat f; echo mine > f"]).stdout for sandbox in used] == ["prepared"] * 3
            for sandbox in used:
                forks.release(sandbox)
        assert prepared.read("f") == b"prepared"


def test_sandboxes_in_containers(image: str) -> None:
    with SandboxPool(SandboxSpec(image=image), limit=4, ready=2) as pool:
        outputs: list[str] = []

        def use(number: int) -> None:
            for _ in range(2):
                with pool.lease(120) as sandbox:
                    outputs.append(sandbox.exec(["sh", "-c", f"ls; echo {number} > f; cat f"]).stdout)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outputs) == sorted(f"{number}\n" for number in range(6) for _ in range(2))


def test_an_image_that_is_missing_is_told(image: str) -> None:
    spec = SandboxSpec(image="no-such/image:1")
    with SandboxPool(spec, limit=2, ready=1) as pool, pytest.raises(ImageMissingError, match="prefetch"):
        pool.acquire(60)
