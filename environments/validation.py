"""Does every task of a set do what it says? The reference must be paid 1, and doing nothing 0.

Invariants: each task is played in the real environment, by worker processes that each have an environment of their own.
Nothing is trusted to be fine that was not played. What went wrong is played once more, as a busy machine may be at
fault, and is then on the list of what is broken, with the reason. An interruption ends the workers and all they began.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import gymnasium
import numpy as np

from agentgym_rtmc.errors import (
    AgentGymError,
    ImageMissingError,
    InfrastructureError,
    RegistrationError,
    SandboxUnavailableError,
    TaskError,
)
from agentgym_rtmc.registration import EnvRegistration, Player, load, make_env
from agentgym_rtmc.tasks import Task

_MOST_TURNS = 200


@dataclass(frozen=True)
class Outcome:
    """What became of one task: `problems` are empty where all is well."""

    task: str
    reference: float | None
    """What the reference was paid in all; None where it could not be played, or was not to be."""
    nothing: float | None
    """What doing nothing was paid."""
    problems: tuple[str, ...] = ()

    @property
    def known_bad(self) -> str:
        """Why the reference is not paid, "" where it is. Where it could not be played, nothing is known of it."""
        if self.reference is None or _right(self.reference, 1.0):
            return ""
        return self.problems[0]


class Validator:
    """One environment and its reference player. `gold` and `noop`: whether the reference, and doing nothing, play."""

    def __init__(
        self, entry: EnvRegistration, options: Mapping[str, Any], *, gold: bool = True, noop: bool = True
    ) -> None:
        self._gold, self._noop = gold, noop
        if entry.reference is None:
            raise RegistrationError(f"{entry.id} has no reference player; register one with reference='module:name'")
        self._player: Player = load(entry.reference)
        self._env: gymnasium.Env[str, str] = make_env(entry, options)

    def check(self, task: Task) -> Outcome:
        """Play a task with the reference and with doing nothing."""
        problems: list[str] = []
        paid: list[float | None] = []
        for name, play, wanted, asked in (
            ("the reference", self._refer, 1.0, self._gold),
            ("doing nothing", self._idle, 0.0, self._noop),
        ):
            if not asked:
                paid.append(None)
                continue
            got, problem = _played(name, play, wanted, task)
            if problem:
                got, problem = _played(name, play, wanted, task)
            paid.append(got)
            problems += [problem] if problem else []
        return Outcome(task.id, paid[0], paid[1], tuple(problems))

    def close(self) -> None:
        """Free the environment."""
        self._env.close()

    def _refer(self, task: Task) -> float:
        observation, _ = self._env.reset(seed=0, options={"task": task})
        acting = self._player(task, observation, np.random.default_rng(0))
        total, action = 0.0, next(acting, None)
        if action is None:
            raise TaskError("it never acts")
        for _ in range(_MOST_TURNS):
            observation, reward, terminated, truncated, _ = self._env.step(action)
            total += float(reward)
            if terminated or truncated:
                return total
            try:
                action = acting.send(observation)
            except StopIteration:
                return total + self._finish()
        return total + self._finish()

    def _idle(self, task: Task) -> float:
        """Say nothing once, then stop."""
        self._env.reset(seed=0, options={"task": task})
        _, reward, terminated, truncated, _ = self._env.step("")
        return float(reward) + (0.0 if terminated or truncated else self._finish())

    def _finish(self) -> float:
        env: Any = self._env.unwrapped
        return float(env.finish("validation")[1])


def _played(name: str, play: Callable[[Task], float], wanted: float, task: Task) -> tuple[float | None, str]:
    """Return what a player was paid (None: it could not play), and what is wrong with that, if anything.

    Raises SandboxUnavailableError where no task could be played on this machine.
    """
    try:
        got = play(task)
    except SandboxUnavailableError as error:
        if not isinstance(error, ImageMissingError):
            raise
        return None, f"{name}: {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (whatever a task breaks belongs on the list)
        return None, f"{name}: {type(error).__name__}: {error}"
    return got, "" if _right(got, wanted) else f"{name} is paid {got:g}, not {wanted:g}"


def _right(paid: float, wanted: float) -> bool:
    return abs(paid - wanted) < 1e-9


def validate_tasks(
    entry: EnvRegistration,
    tasks: Sequence[Task],
    *,
    workers: int,
    options: Mapping[str, Any] | None = None,
    modules: Sequence[str] = (),
    gold: bool = True,
    noop: bool = True,
) -> Generator[Outcome, None, None]:
    """Check tasks in so many processes; yields outcomes as they come.

    `options` go to `gymnasium.make`, `modules` are imported first (they register the environment), `gold` and `noop`
    say whether the reference, and doing nothing, are played. Close the iterator to stop early. Raises what making the
    environment raises, SandboxUnavailableError where this machine can play none, InfrastructureError when a worker
    dies.
    """
    context = multiprocessing.get_context("spawn")
    rows = iter(tasks)
    crew: dict[Any, Any] = {}  # the parent's end of a pipe -> the process at the other
    try:
        for _ in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, list(sys.path), list(modules), entry, dict(options or {}), gold, noop),
            )
            process.start()
            theirs.close()
            crew[ours] = process
            ours.send(next(rows))
        busy: set[Any] = set(crew)
        while busy:
            ready: list[Any] = wait(busy)
            for pipe in ready:
                outcome = _receive(pipe)
                busy.discard(pipe)
                if (task := next(rows, None)) is not None:
                    pipe.send(task)
                    busy.add(pipe)
                yield outcome
    finally:
        for pipe, process in crew.items():
            pipe.close()
            process.terminate()
        for process in crew.values():
            process.join()


def _receive(pipe: Any) -> Outcome:
    try:
        got = pipe.recv()
    except (EOFError, OSError) as error:
        raise InfrastructureError(
            "a worker process died; is there enough memory? Fewer --workers need less of it"
        ) from error
    if isinstance(got, AgentGymError):
        raise got
    assert isinstance(got, Outcome)
    return got


def _work(
    pipe: Any,
    path: list[str],
    modules: list[str],
    entry: EnvRegistration,
    options: dict[str, Any],
    gold: bool,
    noop: bool,
) -> None:
    """A worker: tasks in, outcomes out, until the pipe is closed or the process is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends us
    signal.signal(signal.SIGTERM, _leave)
    sys.path[:] = path
    try:
        for module in modules:
            load(f"{module}:__name__")
        validator = Validator(entry, options, gold=gold, noop=noop)
    except AgentGymError as error:
        pipe.send(error)
        return
    try:
        while True:
            task = pipe.recv()
            try:
                pipe.send(validator.check(task))
            except SandboxUnavailableError as error:
                pipe.send(error)
    except EOFError:
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        validator.close()


def _leave(*unused: object) -> None:
    """End as any program does, undisturbed: what was started is ended with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
