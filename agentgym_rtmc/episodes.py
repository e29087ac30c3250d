"""What happened: turns, episodes and groups, as plain values that can be saved and read back.

Invariants:
- An `Episode` is complete without its environment: opening, turns, rewards, flags. No private task data in it.
- Token ids are the exact ids the model saw and produced. The transcript of an episode is the concatenation over its
  turns of `context_ids` (template and observation tokens before the turn) and `token_ids` (what was sampled);
  where `forked` is true, `context_ids` is a whole prompt and a new segment begins.
- `terminated` (the task's own end) and `truncated` (turn, token or time limit) exclude each other; an episode with
  `valid=False` died of infrastructure, takes part in no statistic, and has neither flag set.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.json_values import JsonObject, Text
from agentgym_rtmc.tasks import Task

FinishReason = Literal["stop", "length", "abort"]
"""Why sampling ended: the model's own end, the token limit, or the sampler gave up."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Opening(_Value):
    """What was known before the first turn. `task` carries only its public part."""

    task: Task
    observation: Text
    info: JsonObject = Field(default_factory=dict)
    system_prompt: Text = ""
    seed: int = 0

    @model_validator(mode="after")
    def _nothing_private(self) -> Opening:
        if self.task.private:
            raise ValueError("an opening holds private task data; pass task.disclosed()")
        return self


class Turn(_Value):
    """One action and what came of it.

    `text` is the model's raw text, `calls` what was parsed from it (empty if nothing could be), `observation`,
    `reward` and `info` what the environment answered. Token fields are None for text-only policies.
    Shapes: `token_ids` and `logprobs` have the same length (sampled tokens of the turn).
    """

    text: Text
    calls: tuple[Call, ...] = ()
    observation: Text
    reward: float
    finish_reason: FinishReason = "stop"
    info: JsonObject = Field(default_factory=dict)
    context_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    forked: bool = False
    weights_version: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Turn:
        if not math.isfinite(self.reward):
            raise ValueError(f"reward {self.reward} is not finite")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids or ()):
            raise ValueError("logprobs and token_ids differ in length")
        return self


class Episode(_Value):
    """One run of a policy on a task. `truncation` names the limit that ended it, `error` the machine's failure."""

    id: Text
    group: Text
    opening: Opening
    turns: tuple[Turn, ...] = ()
    terminated: bool = False
    truncated: bool = False
    truncation: Text | None = None
    valid: bool = True
    error: Text | None = None
    attempts: int = 1

    @model_validator(mode="after")
    def _flags(self) -> Episode:
        if self.terminated and self.truncated:
            raise ValueError("an episode is terminated or truncated, not both")
        if not self.valid and (self.terminated or self.truncated):
            raise ValueError("an invalid episode is neither terminated nor truncated: the machine ended it")
        if self.truncation is not None and not self.truncated:
            raise ValueError(f"truncation={self.truncation!r} without truncated=True")
        return self

    @property
    def total_reward(self) -> float:
        """R, the undiscounted sum of the turns' rewards."""
        return math.fsum(turn.reward for turn in self.turns)


class EpisodeGroup(_Value):
    """Episodes of one task from one initial state, the unit of group-relative credit."""

    id: Text
    episodes: tuple[Episode, ...]

    @property
    def task_id(self) -> str:
        """The id of the task all episodes share."""
        return self.episodes[0].opening.task.id

    @model_validator(mode="after")
    def _one_task(self) -> EpisodeGroup:
        if not self.episodes:
            raise ValueError("a group has at least one episode")
        if len({episode.opening.task.id for episode in self.episodes}) > 1:
            raise ValueError(f"group {self.id!r} mixes tasks")
        return self


def group_episodes(episodes: list[Episode]) -> list[EpisodeGroup]:
    """Collect episodes into groups by `Episode.group`, in order of first appearance."""
    by_group: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_group.setdefault(episode.group, []).append(episode)
    return [EpisodeGroup(id=name, episodes=tuple(members)) for name, members in by_group.items()]
