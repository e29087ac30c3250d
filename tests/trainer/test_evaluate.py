"""Evaluation: pass@1 over real episodes, with what is invalid counted and left out."""

from __future__ import annotations

from functools import partial

import echo_env
import gymnasium
import pytest
from echo_env import make_task

from agentgym_rtmc.trainer.evaluate import EVALUATION_NUMBERS, EvaluationConfig, evaluate
from agentgym_rtmc.trainer.policy.base import SamplingParams
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.rollout import RolloutConfig

make_env = partial(gymnasium.make, "tests/Echo-v0", max_turns=1)
ROLLOUT = RolloutConfig(env_workers=2, retries=0, max_invalid_share=0.9)


def run(tasks, player, **settings):  # type: ignore[no-untyped-def]
    config = EvaluationConfig(**settings)
    return evaluate(make_env, ScriptedPolicy(player), tasks, config, ROLLOUT, SamplingParams())


def test_passes_are_averaged_by_task() -> None:
    tasks = echo_env.load_tasks().split("train")[:20]
    found = run(tasks, echo_env.demonstrator, samples=4)
    passes = [[e.total_reward == 1 for e in group.episodes] for group in found.groups]
    assert found.pass_at_1.mean == pytest.approx(sum(map(sum, passes)) / 80)
    assert 0.1 < found.pass_at_1.low < found.pass_at_1.mean < found.pass_at_1.high < 0.7
    assert (found.tasks, found.episodes, found.invalid, found.turns, found.parsed) == (20, 80, 0, 1.0, 1.0)
    assert found.returns > found.pass_at_1.mean  # half-right answers
    # Numbers and seeds of its own, and the same again.
    assert found.groups[0].episodes[0].id.endswith(f"/{EVALUATION_NUMBERS}")
    again = run(tasks, echo_env.demonstrator, samples=4)
    assert again.row() == found.row() and again.groups == found.groups
    assert run(tasks, echo_env.demonstrator, samples=4, seed=1).groups != found.groups


def test_a_lower_bar_passes_more() -> None:
    tasks = echo_env.load_tasks().split("heldout")
    rows = [run(tasks, echo_env.demonstrator, samples=6, success_reward=bar).row() for bar in (0.5, 1.0)]
    assert rows[0]["pass_at_1"] > rows[1]["pass_at_1"]


def test_invalid_episodes_are_counted_and_never_scored() -> None:
    tasks = [make_task("ab"), make_task("cd", trouble="machine in step")]
    found = run(tasks, echo_env.reference, samples=3)
    assert (found.pass_at_1.mean, found.tasks, found.episodes, found.invalid) == (1.0, 1, 3, 3)
