"""Evaluation: pass@1 of a policy on a fixed list of tasks, with an interval clustered by task.

Invariants: pass@1 is the mean over k samples a task at a stated temperature, then over tasks; an episode passes when
its total reward reaches `success_reward`. Invalid episodes are counted and left out, never scored. The noise of an
evaluation depends on the seed alone, so before and after are paired by task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from agentgym_rtmc.episodes import Episode, EpisodeGroup, group_episodes
from agentgym_rtmc.settings import Settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.edits import edit_figures
from agentgym_rtmc.trainer.evaluation_board import EvaluationBoard, Running
from agentgym_rtmc.trainer.policy.base import Policy, SamplingParams
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.rollout import EnvFactory, EpisodePlan, Rollout, RolloutConfig, RolloutStats, plan_groups
from agentgym_rtmc.trainer.statistics import Interval, clustered_interval

if TYPE_CHECKING:
    from agentgym_rtmc.trainer.config import TrainConfig

EVALUATION_NUMBERS = 1 << 40
"""Episode numbers of evaluations start here, so that their noise is never a training episode's."""


class EvaluationConfig(Settings):
    """What is evaluated, and how often."""

    tasks: int = Field(200, ge=1, description="held-out tasks (the first ones of the shuffled split)")
    samples: int = Field(2, ge=1, description="episodes a task (k)")
    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0 is greedy")
    every: int = Field(0, ge=0, description="evaluate every so many updates; 0: before and after only")
    success_reward: float = Field(1.0, description="an episode with at least this total reward has passed")
    seed: int = Field(20_000, description="fixes the choice of tasks and the noise")
    allow_trained: bool = Field(False, description="evaluate also on tasks that the policy was trained on")


@dataclass(frozen=True)
class Evaluation:
    """A result. `pass_at_1.low/high` is the 95 % interval; `returns` the mean total reward."""

    pass_at_1: Interval
    returns: float
    tasks: int
    episodes: int
    invalid: int
    turns: float
    parsed: float
    stats: RolloutStats
    groups: tuple[EpisodeGroup, ...]
    edits: Mapping[str, float] = field(default_factory=dict)
    """What the episodes tell of edits, see `edit_figures`; empty where there are none."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """What a policy that counts its use (`figures()`) had used by the end: requests, tokens, cost."""

    def row(self) -> dict[str, float | int | None]:
        """The figures of a table row or a metrics line."""
        return {
            "pass_at_1": self.pass_at_1.mean,
            "low": self.pass_at_1.low,
            "high": self.pass_at_1.high,
            "return": self.returns,
            "tasks": self.tasks,
            "episodes": self.episodes,
            "invalid": self.invalid,
            "turns_per_episode": self.turns,
            "parsed_share": self.parsed,
            **self.edits,
            **self.usage,
        }


def evaluate(
    make_env: EnvFactory,
    policy: Policy,
    tasks: Sequence[Task],
    config: EvaluationConfig,
    rollout: RolloutConfig,
    params: SamplingParams,
    *,
    on_episode: Callable[[Episode], None] | None = None,
    deterministic: bool = False,
    kept: Sequence[Episode] = (),
    watch: Callable[[Running], None] | None = None,
) -> Evaluation:
    """Sample `config.samples` episodes of every task and summarise them.

    The seed is part of the groups' names: collections with different seeds may share a file. `kept`: episodes of an
    earlier call with the same arguments; those of them that are valid are not run again. `watch` is given a function
    that tells what is running.
    """
    plans = _planned(tasks, config)
    with Rollout(
        make_env, policy, rollout, params, seed=config.seed, deterministic=deterministic, on_episode=on_episode
    ) as running:
        if watch is not None:
            watch(running.running)
        done = _usable(kept, plans)
        collected, stats = running.collect([plan for plan in plans if plan.episode_id not in done])
        done |= {episode.id: episode for group in collected for episode in group.episodes}
        groups = group_episodes([done[plan.episode_id] for plan in plans])
    figures = getattr(policy, "figures", None)
    return replace(summarise(groups, stats, config.success_reward), usage=figures() if figures is not None else {})


def _planned(tasks: Sequence[Task], config: EvaluationConfig) -> list[EpisodePlan]:
    label = f"seed{config.seed}"
    return plan_groups(tasks, config.samples, first_number=EVALUATION_NUMBERS, seed=config.seed, label=label)


def _usable(kept: Sequence[Episode], plans: Sequence[EpisodePlan]) -> dict[str, Episode]:
    """The valid ones of these episodes that are planned, by id."""
    names = {plan.episode_id for plan in plans}
    return {episode.id: episode for episode in kept if episode.valid and episode.id in names}


def evaluate_with_progress(
    config: TrainConfig,
    make_env: EnvFactory,
    policy: Policy,
    tasks: Sequence[Task],
    progress: Progress,
    name: str,
    on_episode: Callable[[Episode], None] | None = None,
    kept: Sequence[Episode] = (),
    table: bool = False,
) -> Evaluation:
    """Evaluate as configured, with a bar that shows the pass rate so far and, with `table`, all that runs below it."""
    plans = _planned(tasks, config.evaluation)
    usable = _usable(kept, plans)
    board = EvaluationBoard(len(plans), partial(passed, success_reward=config.evaluation.success_reward))
    progress.phase(name, len(plans), done=len(usable))

    def count(episode: Episode) -> None:
        board.count(episode)
        progress.update(board.done, passed=f"{board.pass_rate:.0%}")
        if on_episode is not None:
            on_episode(episode)

    for episode in usable.values():
        board.count(episode)
    with progress.with_below(board) if table else nullcontext():
        return evaluate(
            make_env,
            policy,
            tasks,
            config.evaluation,
            config.rollout,
            config.policy.sampling(temperature=config.evaluation.temperature),
            on_episode=count,
            deterministic=config.run.deterministic,
            kept=kept,
            watch=board.watch,
        )


def passed(episode: Episode, success_reward: float) -> bool:
    """Whether a valid episode's total reward reaches `success_reward` (up to rounding)."""
    return episode.valid and episode.total_reward >= success_reward - 1e-9


def summarise(groups: Sequence[EpisodeGroup], stats: RolloutStats, success_reward: float) -> Evaluation:
    """Compute pass@1 and its companions from collected groups."""
    valid = [[episode for episode in group.episodes if episode.valid] for group in groups]
    passes = [[float(passed(episode, success_reward)) for episode in members] for members in valid]
    episodes = [episode for members in valid for episode in members]
    turns = [turn for episode in episodes for turn in episode.turns]
    return Evaluation(
        pass_at_1=clustered_interval([cluster for cluster in passes if cluster]),
        returns=sum(episode.total_reward for episode in episodes) / max(1, len(episodes)),
        tasks=sum(bool(members) for members in valid),
        episodes=len(episodes),
        invalid=sum(len(group.episodes) for group in groups) - len(episodes),
        turns=len(turns) / max(1, len(episodes)),
        parsed=sum(bool(turn.calls) for turn in turns) / max(1, len(turns)),
        stats=stats,
        groups=tuple(groups),
        edits=edit_figures(episodes),
    )
