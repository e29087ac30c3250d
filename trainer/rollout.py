"""Rollouts: groups of episodes of a policy in an environment, many at once.

Invariants:
- The episodes of a group share the task and the environment seed, so they start from one initial state; their
  sampling noise is keyed by (seed, episode, turn) and is independent of what else runs.
- Environment steps run in worker threads, sampling in the calling thread, over all episodes that wait for an action.
- `deterministic` fixes the waves: every episode that still runs takes its turn in every batch, in order.
- What the machine does wrong (InfrastructureError, wall clock) is retried on a fresh environment, then marked
  invalid. What the agent uses up (turns, tokens) truncates, and the work is graded as it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
from pydantic import Field, JsonValue

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, EpisodeGroup, Opening, Turn, group_episodes
from agentgym_rtmc.errors import AgentGymError, InfrastructureError, ProtocolError, SamplerError
from agentgym_rtmc.settings import Settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.base import Completion, Policy, SampleKey, SamplingParams
from agentgym_rtmc.trainer.transcript import Conversation, Message
from agentgym_rtmc.trainer.workers import WorkerPool

EnvFactory = Callable[[], gymnasium.Env[str, str]]


class RolloutConfig(Settings):
    """How episodes are collected."""

    group_size: int = Field(8, ge=1, description="episodes of a task from one initial state (N)")
    concurrency: int = Field(128, ge=1, description="episodes that run at once")
    env_workers: int = Field(4, ge=1, description="threads that step environments")
    retries: int = Field(2, ge=0, description="fresh attempts after an infrastructure failure")
    episode_seconds: float = Field(600.0, gt=0, description="wall clock of one episode; past it the episode is invalid")
    max_invalid_share: float = Field(0.5, gt=0, le=1, description="more invalid episodes than this end the run")
    observation_role: Literal["user", "tool"] = Field("user", description="role of observation messages")


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to run. `number` is unique in a run and keys the sampling noise; `env_seed` is the group's."""

    number: int
    group: str
    task: Task
    env_seed: int


@dataclass
class RolloutStats:
    """Machine facts of a collection, kept out of the episodes. Times in seconds."""

    episodes: int = 0
    turns: int = 0
    retried: int = 0
    invalid: int = 0
    forks: int = 0
    sampling_seconds: float = 0.0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def turns_per_second(self) -> float:
        """Turns of all episodes by wall clock."""
        return self.turns / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, float]:
        """The figures of a metrics line."""
        return {
            "rollout_seconds": self.seconds,
            "sampling_seconds": self.sampling_seconds,
            "turns_per_second": self.turns_per_second,
            "episodes_retried": self.retried,
            "episodes_invalid": self.invalid,
            "forks": self.forks,
        }


@dataclass
class _Running:
    """An episode under way."""

    plan: EpisodePlan
    env: gymnasium.Env[str, str] | None
    deadline: float
    attempts: int = 1
    opening: Opening | None = None
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    completion: Completion | None = None
    terminated: bool = False
    truncation: str | None = None


_Answer = tuple[str, float, bool, bool, dict[str, Any]]


class Rollout:
    """Collects episodes of one policy in one environment. Use as a context manager, or call `close`."""

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
        self._idle: list[gymnasium.Env[str, str]] = []
        self._pool = WorkerPool(config.env_workers, "env")

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments and the worker threads."""
        self._pool.close()
        for env in self._idle:
            env.close()
        self._idle.clear()

    def collect(self, plans: Sequence[EpisodePlan]) -> tuple[list[EpisodeGroup], RolloutStats]:
        """Run the planned episodes; returns them by group, in the order of the plans.

        Raises AgentGymError when more than `max_invalid_share` of them died of infrastructure.
        """
        stats = RolloutStats()
        started = time.monotonic()
        finished: dict[int, Episode] = {}
        waiting = list(plans)[::-1]
        stepping: dict[Future[_Answer], _Running] = {}
        ready: list[_Running] = []

        def admit() -> None:
            while waiting and len(stepping) + len(ready) < self._config.concurrency:
                plan = waiting.pop()
                run = _Running(plan, None, time.monotonic() + self._config.episode_seconds)
                stepping[self._pool.submit(self._reset, run)] = run

        def settle(run: _Running, episode: Episode) -> None:
            finished[run.plan.number] = episode
            stats.episodes += 1
            stats.invalid += not episode.valid
            stats.forks += sum(turn.forked for turn in episode.turns[1:])
            self._release(run)
            if self._on_episode is not None:
                self._on_episode(episode)

        def fail(run: _Running, error: Exception) -> None:
            """Try again on a fresh environment, or mark the episode invalid."""
            message = f"{type(error).__name__}: {error}"
            stats.errors.append(message)
            self._discard(run)
            if isinstance(error, InfrastructureError) and run.attempts <= self._config.retries:
                stats.retried += 1
                again = _Running(run.plan, None, time.monotonic() + self._config.episode_seconds, run.attempts + 1)
                stepping[self._pool.submit(self._reset, again)] = again
            else:
                settle(run, self._invalid(run, message))

        admit()
        while stepping or ready:
            self._await_steps(stepping, ready, fail, settle)
            if ready and (self._deterministic is False or not stepping):
                batch = sorted(ready, key=lambda run: run.plan.number)
                ready.clear()
                before = time.monotonic()
                self._sample(batch, stepping, fail, settle)
                stats.sampling_seconds += time.monotonic() - before
                stats.turns += len(batch)
            admit()
        stats.seconds = time.monotonic() - started
        if stats.invalid > self._config.max_invalid_share * max(1, len(plans)):
            raise AgentGymError(
                f"{stats.invalid} of {len(plans)} episodes died of infrastructure; the last error was: "
                f"{stats.errors[-1]}. `agentgym-rtmc doctor` checks this machine."
            )
        return group_episodes([finished[plan.number] for plan in plans]), stats

    # -- one wave -----------------------------------------------------------------------------------------------

    def _await_steps(
        self,
        stepping: dict[Future[_Answer], _Running],
        ready: list[_Running],
        fail: Callable[[_Running, Exception], None],
        settle: Callable[[_Running, Episode], None],
    ) -> None:
        """Move what finished stepping to `ready` (or to the finished). In waves: wait for all of them."""
        while stepping:
            now = time.monotonic()
            nearest = min(run.deadline for run in stepping.values())
            done, _ = wait(stepping, timeout=max(0.0, nearest - now), return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: stepping[f].plan.number):
                run = stepping.pop(future)
                try:
                    answer = future.result()
                except Exception as error:  # noqa: BLE001 - an environment's fault must not end the others' episodes
                    fail(run, error)
                    continue
                if self._take(run, answer):
                    settle(run, self._episode(run))
                else:
                    ready.append(run)
            for future, run in [(f, r) for f, r in stepping.items() if r.deadline <= time.monotonic()]:
                # The thread cannot be stopped; its environment is given up with it.
                del stepping[future]
                if not future.cancel():
                    self._pool.replace_one()
                run.env = None
                settle(run, self._invalid(run, self._overtime()))
            enough = len(ready) >= max(1, (len(ready) + len(stepping)) // 2)
            if not self._deterministic and enough:
                return

    def _sample(
        self,
        batch: list[_Running],
        stepping: dict[Future[_Answer], _Running],
        fail: Callable[[_Running, Exception], None],
        settle: Callable[[_Running, Episode], None],
    ) -> None:
        """Let the policy take a turn in every conversation of the batch and hand the actions to the environments."""
        for run in [run for run in batch if run.deadline <= time.monotonic()]:
            batch.remove(run)
            settle(run, self._invalid(run, self._overtime()))
        keys = [SampleKey(self._seed, run.plan.number, len(run.turns)) for run in batch]
        conversations = [_conversation(run) for run in batch]
        try:
            completions = self._policy.complete(conversations, keys, self._params)
        except SamplerError as error:
            for run in batch:
                fail(run, error)
            return
        for run, completion in zip(batch, completions, strict=True):
            run.completion = completion
            if completion.finish_reason == "abort":
                fail(run, SamplerError("the sampler aborted this turn"))
                continue
            stepping[self._pool.submit(self._step, run, completion)] = run

    # -- in worker threads --------------------------------------------------------------------------------------

    def _reset(self, run: _Running) -> _Answer:
        run.env = self._take_env()
        observation, info = run.env.reset(seed=run.plan.env_seed, options={"task": run.plan.task})
        start = getattr(self._policy, "start_episode", None)
        session = f"{run.plan.number}.{run.attempts}"
        if start is not None:
            start(session, run.plan.task, observation, run.plan.number)
        prompt = str(_attribute(run.env, "system_prompt", ""))
        run.opening = Opening(
            task=run.plan.task.disclosed(),
            observation=observation,
            info=info,
            system_prompt=prompt,
            seed=run.plan.env_seed,
        )
        messages: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
        run.conversation = Conversation(session, [*messages, {"role": "user", "content": observation}])
        return observation, 0.0, False, False, {}

    def _step(self, run: _Running, completion: Completion) -> _Answer:
        assert run.env is not None
        if _out_of_tokens(completion):
            finish = _attribute(run.env, "finish", None)
            if finish is not None:
                answer: _Answer = finish("tokens")
                return answer
            return "", 0.0, False, True, {"truncation": "tokens"}
        observation, reward, terminated, truncated, info = run.env.step(completion.text)
        return observation, float(reward), terminated, truncated, info

    def _take_env(self) -> gymnasium.Env[str, str]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_env()

    # -- taking in what came back -------------------------------------------------------------------------------

    def _take(self, run: _Running, answer: _Answer) -> bool:
        """Record an environment's answer; returns whether the episode is over."""
        completion, run.completion = run.completion, None
        if completion is None:  # the answer to reset
            return False
        observation, reward, terminated, truncated, info = answer
        run.terminated = terminated
        if truncated:
            run.truncation = str(info.get("truncation", "turns"))
        if _out_of_tokens(completion):
            # No action was taken: the grade belongs to the last turn that there was.
            if run.turns:
                last = run.turns[-1]
                details: dict[str, JsonValue] = {**last.info, **info}
                run.turns[-1] = last.model_copy(update={"reward": last.reward + reward, "info": details})
            return True
        run.turns.append(
            Turn(
                text=completion.text,
                calls=_parsed(run.env, completion.text),
                observation=observation,
                reward=reward,
                finish_reason=completion.finish_reason,
                info=info,
                context_ids=completion.context_ids,
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                forked=completion.forked,
                weights_version=completion.weights_version,
            )
        )
        conversation = _conversation(run)
        conversation.record(completion.text, completion.context_ids, completion.token_ids, completion.forked)
        conversation.messages.append({"role": self._config.observation_role, "content": observation})
        return terminated or truncated

    def _episode(self, run: _Running) -> Episode:
        assert run.opening is not None
        return Episode(
            id=f"{run.plan.group}/{run.plan.number}",
            group=run.plan.group,
            opening=run.opening,
            turns=tuple(run.turns),
            terminated=run.terminated,
            truncated=run.truncation is not None,
            truncation=run.truncation,
            attempts=run.attempts,
        )

    def _overtime(self) -> str:
        return f"wall clock: {self._config.episode_seconds:g} s are over"

    def _invalid(self, run: _Running, error: str) -> Episode:
        opening = run.opening or Opening(task=run.plan.task.disclosed(), observation="", seed=run.plan.env_seed)
        return Episode(
            id=f"{run.plan.group}/{run.plan.number}",
            group=run.plan.group,
            opening=opening,
            turns=tuple(run.turns),
            valid=False,
            error=error,
            attempts=run.attempts,
        )

    def _release(self, run: _Running) -> None:
        if run.env is not None:
            self._idle.append(run.env)
            run.env = None
        self._forget(run)

    def _discard(self, run: _Running) -> None:
        if run.env is not None:
            run.env.close()
            run.env = None
        self._forget(run)

    def _forget(self, run: _Running) -> None:
        end = getattr(self._policy, "end_episode", None)
        if end is not None and run.conversation is not None:
            end(run.conversation.session)


def plan_groups(
    tasks: Sequence[Task], group_size: int, *, first_number: int, seed: int, label: str
) -> list[EpisodePlan]:
    """Plan `group_size` episodes of each task; episode numbers count up from `first_number`."""
    return [
        EpisodePlan(first_number + index * group_size + member, f"{label}/{index}:{task.id}", task, seed + index)
        for index, task in enumerate(tasks)
        for member in range(group_size)
    ]


def _conversation(run: _Running) -> Conversation:
    assert run.conversation is not None
    return run.conversation


def _out_of_tokens(completion: Completion) -> bool:
    """Whether the context was full before a single token of the turn could be sampled."""
    return completion.finish_reason == "length" and not completion.text and not completion.token_ids


def _parsed(env: gymnasium.Env[str, str] | None, text: str) -> tuple[Call, ...]:
    protocol = _attribute(env, "protocol", None) if env is not None else None
    if protocol is None:
        return ()
    try:
        calls: tuple[Call, ...] = protocol.parse(text)
    except ProtocolError:
        return ()
    return calls


def _attribute(env: gymnasium.Env[str, str], name: str, default: Any) -> Any:
    """An attribute of the innermost environment that has it, through any wrappers; `default` if none has."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
