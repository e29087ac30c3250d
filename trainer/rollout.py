"""Rollouts: groups of episodes of a policy in an environment, many at once.

Invariants:
- The episodes of a group share the task and the environment seed, so they start from one initial state; their
  sampling noise is keyed by (seed, episode, turn) and is independent of what else runs.
- Environment steps run in worker threads, sampling in the calling thread, over all episodes that wait for an action.
- `deterministic` fixes the waves: every episode that still runs takes its turn in every batch, in order.
- What the machine does wrong (InfrastructureError) is retried on a fresh environment, then the episode is invalid; so
  is one past its wall clock, or one whose environment has a bug. What the agent uses up (turns, tokens) truncates, and
  the work is graded as it stands.
- After `close` no environment is open, save those that hang for good.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import gymnasium
from pydantic import Field, ValidationError

from agentgym_rtmc.episodes import Episode, EpisodeGroup, group_episodes
from agentgym_rtmc.errors import (
    AgentGymError,
    ConfigError,
    DependencyError,
    InfrastructureError,
    RegistrationError,
    SamplerError,
    SandboxUnavailableError,
)
from agentgym_rtmc.settings import Settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.episode_run import Answer, EnvFactory, EpisodePlan, EpisodeRun
from agentgym_rtmc.trainer.policy.base import Policy, SampleKey, SamplingParams
from agentgym_rtmc.trainer.workers import WorkerPool

__all__ = ["EnvFactory", "EpisodePlan", "Rollout", "RolloutConfig", "RolloutStats", "plan_groups"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 0.5  # seconds between looks at the clocks
_CLOSING = 10.0  # seconds that environments get to close
_HOPELESS = (ConfigError, DependencyError, RegistrationError, SandboxUnavailableError)
"""What is wrong with the set-up and not with one episode: every other one would fail alike."""


class RolloutConfig(Settings):
    """How episodes are collected."""

    group_size: int = Field(8, ge=1, description="episodes of a task from one initial state (N)")
    concurrency: int = Field(128, ge=1, description="episodes that run at once")
    env_workers: int = Field(4, ge=1, description="threads that step environments")
    retries: int = Field(2, ge=0, description="fresh attempts after an infrastructure failure")
    episode_seconds: float = Field(600.0, gt=0, description="wall clock of one episode; past it the episode is invalid")
    max_invalid_share: float = Field(0.5, gt=0, le=1, description="more invalid episodes than this end the run")
    observation_role: Literal["user", "tool"] = Field("user", description="role of observation messages")


@dataclass
class RolloutStats:
    """What a collection met beside its episodes. Times in seconds."""

    episodes: int = 0
    turns: int = 0
    retried: int = 0
    invalid: int = 0
    sampling_seconds: float = 0.0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def turns_per_second(self) -> float:
        """Turns of all episodes by wall clock."""
        return self.turns / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, float]:
        """The facts of the machine that go into a metrics line."""
        return {
            "rollout_seconds": self.seconds,
            "sampling_seconds": self.sampling_seconds,
            "turns_per_second": self.turns_per_second,
            "episodes_retried": self.retried,
        }


class Rollout:
    """Collects episodes of one policy in one environment. Use as a context manager, or call `close`.

    One collection at a time; `on_episode` is called with each episode as it ends, in the calling thread.
    """

    def __init__(
        self,
        make_env: EnvFactory,
        policy: Policy,
        config: RolloutConfig,
        params: SamplingParams,
        *,
        seed: int = 0,
        deterministic: bool = False,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        self._make_env = make_env
        self._policy = policy
        self._config = config
        self._params = params
        self._seed = seed
        self._deterministic = deterministic
        self._on_episode = on_episode
        self._pool = WorkerPool(config.env_workers, "env")
        self._open: dict[int, gymnasium.Env[str, str]] = {}
        self._idle: list[gymnasium.Env[str, str]] = []
        self._patience = 1.0
        self._begin()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker threads and close all environments, also those of episodes that were interrupted."""
        self._pool.close()
        closers = WorkerPool(self._config.env_workers, "close")
        closing = [closers.submit(self._close_env, env) for env in list(self._open.values())]
        _, hanging = wait_for(closing, timeout=_CLOSING)
        if hanging:
            _log.warning("%d environment(s) hang and could not be closed", len(hanging))
        closers.close(0 if hanging else _CLOSING)

    def running(self) -> list[EpisodeRun]:
        """The episodes that have begun and not ended, for whoever watches; may be called from any thread."""
        return list(self._runs.values())

    def collect(self, plans: Sequence[EpisodePlan]) -> tuple[list[EpisodeGroup], RolloutStats]:
        """Run the planned episodes; returns them by group, in the order of the plans.

        Raises AgentGymError when more than `max_invalid_share` of them are invalid, and at once where every episode
        would fail alike (no sandbox on this machine, a missing package).
        """
        self._begin()
        stats, waiting = self._stats, deque(plans)
        started = time.monotonic()
        while waiting or self._stepping or self._ready:
            while waiting and len(self._stepping) + len(self._ready) < self._config.concurrency:
                self._start(EpisodeRun(waiting.popleft()))
            self._await_steps()
            if self._ready:
                self._sample()
        stats.seconds = time.monotonic() - started
        if stats.invalid > self._config.max_invalid_share * len(plans):
            raise AgentGymError(
                f"{stats.invalid} of {len(plans)} episodes are invalid, more than rollout.max_invalid_share = "
                f"{self._config.max_invalid_share:g}; the last error was: {stats.errors[-1]}. "
                "`agentgym-rtmc doctor` checks this machine"
            )
        return group_episodes([self._finished[plan.number] for plan in plans]), stats

    # -- one wave -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._stats = RolloutStats()
        self._finished: dict[int, Episode] = {}
        self._runs: dict[int, EpisodeRun] = {}
        self._ready: list[EpisodeRun] = []  # wait for an action
        self._stepping: dict[Future[Answer | None], EpisodeRun] = {}  # wait for their environment
        self._landed: queue.SimpleQueue[Future[Answer | None]] = queue.SimpleQueue()

    def _start(self, run: EpisodeRun) -> None:
        self._runs[run.plan.number] = run
        self._await(self._pool.submit(run.reset, self._take_env, self._policy), run)

    def _await(self, future: Future[Answer | None], run: EpisodeRun) -> None:
        self._stepping[future] = run
        future.add_done_callback(self._landed.put)

    def _await_steps(self) -> None:
        """Wait for the environments, then take their answers in, in the order of the plans.

        Full batches are worth waiting for, but not longer than the policy's last turn took: from then on it goes on
        with whoever is ready. Fixed waves wait for all.
        """
        landed: list[Future[Answer | None]] = []
        next_look = time.monotonic() + _LOOK_EVERY
        patient_until = math.inf if self._deterministic else time.monotonic() + self._patience
        while len(landed) < len(self._stepping):
            wake = min(next_look, patient_until) if landed or self._ready else next_look
            try:
                future = self._landed.get(timeout=max(0.0, wake - time.monotonic()))
            except queue.Empty:
                if wake == patient_until:
                    break
                self._look_at_clocks()
                next_look = time.monotonic() + _LOOK_EVERY
            else:
                if future in self._stepping:
                    landed.append(future)
        for future in sorted(landed, key=lambda one: self._stepping[one].plan.number):
            run = self._stepping.pop(future)
            try:
                over = run.take(future.result(), self._config.observation_role)
                episode = run.episode() if over else None
            except Exception as error:  # noqa: BLE001 - an environment's fault must not end the others' episodes
                self._fail(run, error)
            else:
                if episode is None:
                    self._ready.append(run)
                else:
                    self._idle.extend([run.env] if run.env is not None else [])
                    self._settle(run, episode)

    def _look_at_clocks(self) -> None:
        """Give up the episodes past their wall clock whose environment does not answer."""
        for future, run in list(self._stepping.items()):
            if future.done() or run.clock.seconds <= self._config.episode_seconds:
                continue
            # The thread cannot be stopped; should it ever come back, the environment is closed then.
            del self._stepping[future]
            if not future.cancel():
                self._pool.replace_one()
            future.add_done_callback(partial(self._close_late, run))
            self._settle(run, self._overtime(run))

    def _sample(self) -> None:
        """Let the policy take a turn in every conversation that waits, and hand the actions to the environments."""
        batch = sorted(self._ready, key=lambda run: run.plan.number)
        self._ready.clear()
        for run in [run for run in batch if run.clock.seconds > self._config.episode_seconds]:
            batch.remove(run)
            self._discard(run)
            self._settle(run, self._overtime(run))
        if not batch:
            return
        keys = [SampleKey(self._seed, run.plan.number, len(run.turns)) for run in batch]
        before = time.monotonic()
        try:
            completions = self._policy.complete([run.conversation for run in batch], keys, self._params)
        except SamplerError as error:
            for run in batch:
                self._fail(run, error)
            return
        seconds = time.monotonic() - before
        self._patience = seconds
        self._stats.sampling_seconds += seconds
        self._stats.turns += len(batch)
        for run, completion in zip(batch, completions, strict=True):
            run.clock.add(seconds)
            run.spend(completion)
            if completion.finish_reason == "abort":
                self._fail(run, SamplerError("the sampler aborted this turn"))
            else:
                self._await(self._pool.submit(run.step, completion), run)

    # -- how an episode ends ------------------------------------------------------------------------------------

    def _settle(self, run: EpisodeRun, episode: Episode) -> None:
        self._finished[run.plan.number] = episode
        self._stats.episodes += 1
        self._stats.invalid += not episode.valid
        if episode.error:
            self._stats.errors.append(episode.error)
        self._forget(run)
        if self._on_episode is not None:
            self._on_episode(episode)
        del self._runs[run.plan.number]

    def _fail(self, run: EpisodeRun, error: Exception) -> None:
        """Try again on a fresh environment, or mark the episode invalid."""
        if isinstance(error, _HOPELESS):
            raise error
        self._discard(run)
        message = _message(error)
        if isinstance(error, InfrastructureError) and run.attempts <= self._config.retries:
            self._stats.retried += 1
            self._stats.errors.append(message)
            self._forget(run)
            self._start(EpisodeRun(run.plan, run.attempts + 1))
        else:
            self._settle(run, run.invalid(message))

    def _overtime(self, run: EpisodeRun) -> Episode:
        return run.invalid(f"past the wall clock of rollout.episode_seconds = {self._config.episode_seconds:g}")

    def _forget(self, run: EpisodeRun) -> None:
        end = getattr(self._policy, "end_episode", None)
        if end is not None:
            end(run.session)

    # -- environments -------------------------------------------------------------------------------------------

    def _take_env(self) -> gymnasium.Env[str, str]:
        try:
            return self._idle.pop()
        except IndexError:
            env = self._make_env()
            self._open[id(env)] = env
            return env

    def _discard(self, run: EpisodeRun) -> None:
        """Close an environment that is not to be used again, without waiting for it."""
        if run.env is not None:
            self._pool.submit(self._close_env, run.env)
            run.env = None

    def _close_late(self, run: EpisodeRun, _: object) -> None:
        if run.env is not None:
            self._close_env(run.env)

    def _close_env(self, env: gymnasium.Env[str, str]) -> None:
        """Close an environment; one that cannot even do that costs a warning, not the run."""
        try:
            env.close()
        except Exception as error:  # noqa: BLE001 - as said
            _log.warning("an environment could not be closed: %s: %s", type(error).__name__, error)
        self._open.pop(id(env), None)


def _message(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"the environment's answer is no {error.title}: {place}{': ' if place else ''}{first['msg']}"
    return f"{type(error).__name__}: {error}"


def plan_groups(
    tasks: Iterable[Task], group_size: int, *, first_number: int, seed: int, label: str
) -> list[EpisodePlan]:
    """Plan `group_size` episodes of each task; episode numbers count up from `first_number`."""
    return [
        EpisodePlan(first_number + index * group_size + member, f"{label}/{index}:{task.id}", task, seed + index)
        for index, task in enumerate(tasks)
        for member in range(group_size)
    ]
