"""One episode under way: its environment, what it has seen and done so far, and how it becomes an `Episode`.

Invariants: `reset` and `step` run in a worker thread, everything else in the thread that samples, never both at once.
The clock counts the seconds spent in the environment and in sampling. Waiting for a free worker does not count, so an
environment that hangs uses up nobody else's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
from pydantic import JsonValue

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import ProtocolError
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.base import Completion, Policy
from agentgym_rtmc.trainer.transcript import Conversation

EnvFactory = Callable[[], gymnasium.Env[str, str]]
Answer = tuple[str, float, bool, bool, dict[str, Any]]
"""What an environment answers to a step."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to run. `number` is unique in a run and keys the sampling noise; `env_seed` is the group's."""

    number: int
    group: str
    task: Task
    env_seed: int

    @property
    def episode_id(self) -> str:
        """The id of the episode that this becomes."""
        return f"{self.group}/{self.number}"


class Clock:
    """Seconds in use, counted while entered. One thread enters, others may read."""

    def __init__(self) -> None:
        # One tuple, so that a reader never meets half of a change.
        self._state: tuple[float, float | None] = (0.0, None)

    def __enter__(self) -> None:
        self._state = (self._state[0], time.monotonic())

    def __exit__(self, *_: object) -> None:
        self._state = (self.seconds, None)

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        used, since = self._state
        return used if since is None else used + time.monotonic() - since

    @property
    def running(self) -> bool:
        """Whether it is entered."""
        return self._state[1] is not None

    def add(self, seconds: float) -> None:
        """Count seconds that were measured elsewhere; not while entered."""
        self._state = (self._state[0] + seconds, None)


@dataclass
class EpisodeRun:
    """An episode under way; `session` names it to the policy."""

    plan: EpisodePlan
    attempts: int = 1
    env: gymnasium.Env[str, str] | None = None
    clock: Clock = field(default_factory=Clock)
    opening: Opening | None = None
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncation: str | None = None
    tokens: int = 0
    """Tokens read and written so far, as the policy counts them."""
    cost: float = 0.0
    _conversation: Conversation | None = None
    _completion: Completion | None = None

    @property
    def session(self) -> str:
        """The episode's name, a new one for every attempt."""
        return f"{self.plan.number}.{self.attempts}"

    @property
    def state(self) -> str:
        """What is going on, for people: waiting, preparing, thinking, acting, or what the environment says."""
        if not self.clock.running:
            return "waiting" if self.opening is None else "thinking"
        env = self.env  # the sampling thread may take it away
        if self.opening is None or env is None:
            return "preparing"
        return str(attribute(env, "activity", "")) or "acting"

    @property
    def conversation(self) -> Conversation:
        """The dialogue so far; there is one once the episode was reset."""
        assert self._conversation is not None
        return self._conversation

    # -- in a worker thread -------------------------------------------------------------------------------------

    def reset(self, take_env: EnvFactory, policy: Policy) -> None:
        """Start the episode in an environment."""
        with self.clock:
            self.env = take_env()
            observation, info = self.env.reset(seed=self.plan.env_seed, options={"task": self.plan.task})
            start = getattr(policy, "start_episode", None)
            if start is not None:
                start(self.session, self.plan.task, observation, self.plan.number)
            self.opening = Opening(
                task=self.plan.task.disclosed(),
                observation=observation,
                info=info,
                system_prompt=str(attribute(self.env, "system_prompt", "")),
                seed=self.plan.env_seed,
            )
            self._conversation = Conversation.opened(self.session, self.opening.system_prompt, observation)

    def step(self, completion: Completion) -> Answer:
        """Carry out what was sampled; where the context was full, end the episode instead."""
        assert self.env is not None
        self._completion = completion
        with self.clock:
            if not _out_of_tokens(completion):
                return self.env.step(completion.text)  # type: ignore[return-value] # gymnasium says SupportsFloat
            finish = attribute(self.env, "finish", None)
            answer: Answer = finish("tokens") if finish else ("", 0.0, False, True, {"truncation": "tokens"})
            return answer

    # -- in the thread that samples -----------------------------------------------------------------------------

    def spend(self, completion: Completion) -> None:
        """Count what a turn used."""
        self.tokens += completion.spent.tokens if completion.spent else len(completion.token_ids or ())
        self.cost += completion.spent.cost if completion.spent else 0.0

    def take(self, answer: Answer | None, observation_role: Literal["user", "tool"]) -> bool:
        """Record an environment's answer (None: to reset); returns whether the episode is over.

        Raises ValueError (pydantic's) for an answer that no environment may give.
        """
        completion, self._completion = self._completion, None
        if answer is None or completion is None:
            return False
        observation, given, terminated, truncated, info = answer
        reward = float(given)
        self.terminated = bool(terminated)
        if truncated and not terminated:
            self.truncation = str(info.get("truncation", "turns"))
        if _out_of_tokens(completion):
            # No action was taken: the grade belongs to the last turn that there was.
            if self.turns:
                last = self.turns[-1]
                details: dict[str, JsonValue] = {**last.info, **info}
                self.turns[-1] = last.model_copy(update={"reward": last.reward + reward, "info": details})
            return True
        self.turns.append(
            Turn(
                text=completion.text,
                calls=_parsed(self.env, completion.text),
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
        self.conversation.record(completion.text, completion.context_ids, completion.token_ids, completion.forked)
        self.conversation.observe(observation, observation_role)
        return bool(terminated or truncated)

    def episode(self) -> Episode:
        """The finished episode."""
        assert self.opening is not None
        return Episode(
            id=self.plan.episode_id,
            group=self.plan.group,
            opening=self.opening,
            turns=tuple(self.turns),
            terminated=self.terminated,
            truncated=self.truncation is not None,
            truncation=self.truncation,
            attempts=self.attempts,
        )

    def invalid(self, error: str) -> Episode:
        """The episode as far as it came, ended by the machine."""
        task = self.plan.task.disclosed()
        return Episode(
            id=self.plan.episode_id,
            group=self.plan.group,
            opening=self.opening or Opening(task=task, observation="", seed=self.plan.env_seed),
            turns=tuple(self.turns),
            valid=False,
            error=error,
            attempts=self.attempts,
        )


def attribute(env: gymnasium.Env[str, str], name: str, default: Any) -> Any:
    """An attribute of the outermost environment that has it, through any wrappers; `default` if none has."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default


def _out_of_tokens(completion: Completion) -> bool:
    """Whether the context was full before a single token of the turn could be sampled."""
    return completion.finish_reason == "length" and not completion.text and not completion.token_ids


def _parsed(env: gymnasium.Env[str, str] | None, text: str) -> tuple[Call, ...]:
    protocol = attribute(env, "protocol", None) if env is not None else None
    if protocol is None:
        return ()
    try:
        calls: tuple[Call, ...] = protocol.parse(text)
    except ProtocolError:
        return ()
    return calls
