"""The base of every environment here: a real `gymnasium.Env` whose actions and observations are text.

Invariants:
- Observations and `info` are functions of (task, seed, actions). Machine facts (durations, pids) stay out.
- An agent's action never raises. What cannot be read becomes an observation; what the machine does wrong raises an
  `InfrastructureError`.
- `terminated` is the task's own end; `truncated` a limit, after which the work is graded as it stands.
- A task's private part never enters an observation or `info`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from pydantic import JsonValue, ValidationError

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.errors import ConfigError, ProtocolError, TaskError, nearest
from agentgym_rtmc.tasks import Task, TaskSet

Info = dict[str, JsonValue]


class UnicodeText(Space[str]):
    """All strings of at most `max_length` characters. (Gymnasium's `Text` refuses newlines and most of Unicode.)"""

    def __init__(self, max_length: int = 1_000_000, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Return a short random text, mostly printable ASCII with some newlines and wider characters."""
        pool = [*(chr(c) for c in range(32, 127)), "\n", "\t", "é", "→", "字"]
        length = int(self.np_random.integers(1, min(40, self.max_length) + 1))
        return "".join(pool[int(i)] for i in self.np_random.integers(0, len(pool), length))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """Text is not flattened to numbers."""
        return False

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Strings are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Strings are JSON already."""
        return [str(x) for x in sample_n]

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Reply:
    """What an environment answers to one action: the observation, reward by named part, and whether the task ended."""

    observation: str
    reward: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    info: Info = field(default_factory=dict)


class AgentEnv(gymnasium.Env[str, str]):
    """A task, a text protocol and a budget of turns. Subclasses write `begin`, `act` and `grade`.

    `tasks`: the tasks `reset` draws from when no `options={"task": …}` is given, or a function that loads them the
    first time they are needed. `max_turns`: the agent's budget. `turn_cost`: taken off the reward of every turn, also
    of one that could not be read. The policy's system prompt is `system_prompt`; `protocol` reads its actions.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}  # type: ignore[misc]
    system_prompt: str
    protocol: TextProtocol

    def __init__(
        self,
        tasks: TaskSet | Sequence[Task] | Callable[[], Sequence[Task]],
        max_turns: int,
        turn_cost: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, not {max_turns}")
        if not 0 <= turn_cost < math.inf:
            raise ConfigError(f"turn_cost must be a number from 0 on, not {turn_cost}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            known = nearest(render_mode, self.metadata["render_modes"])
            raise ConfigError(f"render_mode {render_mode!r} is unknown{known}")
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.max_turns = max_turns
        self.turn_cost = turn_cost
        self.render_mode = render_mode
        self._load_tasks = tasks if callable(tasks) else lambda: tuple(tasks)
        self._tasks: tuple[Task, ...] | None = None
        self._task: Task | None = None
        self._turns = 0
        self._over = True
        self._last_observation = ""
        self.activity = ""
        """What takes long just now, in a word for people who watch ("grading"); "" where there is nothing to say."""

    @property
    def task(self) -> Task | None:
        """The task of the present episode, its private part included: for graders and checks, never for agents."""
        return self._task

    # -- what a subclass writes ---------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, task: Task) -> tuple[str, Info]:
        """Prepare the task (randomness only from `self.np_random`); return the first observation and info."""

    @abstractmethod
    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Carry out the parsed calls of one turn. Only InfrastructureError may escape."""

    @abstractmethod
    def grade(self) -> Mapping[str, float]:
        """Reward parts for the work as it stands; called once, when the agent ends or runs out of budget."""

    # -- Gymnasium's interface ----------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode of `options["task"]` (a Task or its JSON), else of a task drawn by the seed."""
        super().reset(seed=seed)
        self._over = True  # until the new episode has begun
        task = self._choose_task((options or {}).get("task"))
        self._task = task
        self._turns = 0
        observation, info = self.begin(task)
        self._over = False
        self._last_observation = observation
        return observation, {"task": task.id, **info}

    def _choose_task(self, given: Any) -> Task:
        if isinstance(given, Task):
            return given
        if given is not None:
            try:
                return Task.model_validate(given)
            except ValidationError as error:
                raise TaskError(f"options['task'] is not a task: {error.errors()[0]['msg']}") from error
        if self._tasks is None:
            self._tasks = tuple(self._load_tasks())
        if not self._tasks:
            raise TaskError(f"{type(self).__name__} has no tasks; pass options={{'task': ...}} or tasks=...")
        # A stream of its own: whether the task was drawn or given, `begin` meets the same random numbers.
        draw = self.np_random.spawn(1)[0]
        return self._tasks[int(draw.integers(len(self._tasks)))]

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out one action. `info["reward"]` has the reward by part, `info["parse_error"]` what was unreadable."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over (or was never started): call reset()")
        self._turns += 1
        reply = self._reply(action)
        truncated = not reply.terminated and self._turns >= self.max_turns
        parts = dict(reply.reward)
        if self.turn_cost:
            parts["turns"] = -self.turn_cost
        if reply.terminated or truncated:
            self._over = True  # even if grading fails
            parts |= self._graded()
        return self._answer(reply.observation, parts, reply.terminated, truncated, reply.info, "turns")

    def _reply(self, action: object) -> Reply:
        try:
            if not isinstance(action, str):
                raise ProtocolError(f"an action is a text, not a {type(action).__name__}")
            return self.act(self.protocol.parse(action))
        except ProtocolError as error:
            return Reply(self.describe_parse_error(str(error)), info={"parse_error": str(error)})

    def finish(self, reason: str) -> tuple[str, float, bool, bool, Info]:
        """End the episode from outside because a limit of the agent's was reached; graded as it stands."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over (or was never started): call reset()")
        self._over = True
        return self._answer(f"[the episode ended: {reason}]", dict(self._graded()), False, True, {}, reason)

    def _graded(self) -> Mapping[str, float]:
        self.activity = "grading"
        try:
            return self.grade()
        finally:
            self.activity = ""

    def _answer(
        self, observation: str, parts: dict[str, float], terminated: bool, truncated: bool, info: Info, reason: str
    ) -> tuple[str, float, bool, bool, Info]:
        self._over = terminated or truncated
        self._last_observation = observation
        info = {**info, "turns_left": max(0, self.max_turns - self._turns)}
        if parts:
            info["reward"] = {name: float(value) for name, value in parts.items()}
        if truncated:
            info["truncation"] = reason
        return observation, float(sum(parts.values())), terminated, truncated, info

    def describe_parse_error(self, complaint: str) -> str:
        """Return the observation for an action that could not be read."""
        return f"[not understood: {complaint}]"

    def render(self) -> str | None:
        """Return the last observation in `ansi` mode."""
        return self._last_observation if self.render_mode == "ansi" else None
