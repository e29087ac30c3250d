"""The scripted agents, played in the real environment."""

import numpy as np
import pytest

from agentgym_rtmc.environments.data_questions import players
from agentgym_rtmc.environments.data_questions.env import DataQuestionsEnv
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.registration import find_env, load
from agentgym_rtmc.tasks import Task

COMPACT = {"style": "compact", "max_turns": 5}


def perform(env, player, task, seed=0):
    """Total reward of a player on a task, and all it was shown."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    acting = player(task, observation, np.random.default_rng([seed, 7]))
    action, total, seen = next(acting), 0.0, [observation]
    while True:
        observation, reward, terminated, truncated, info = env.step(action)
        assert "parse_error" not in info, action
        total += reward
        seen.append(observation)
        if terminated or truncated:
            return total, seen
        action = acting.send(observation)


def test_both_are_registered():
    entry = find_env("DataQuestions-v0")
    assert load(entry.reference) is players.reference
    assert load(entry.demonstrator) is players.demonstrator


@pytest.mark.parametrize("share", [9, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("options", [{}, COMPACT], ids=["full", "compact"])
def test_the_reference_solves_every_task(questions, options, share):
    env = DataQuestionsEnv(**options)
    for task in list(questions)[::share]:
        assert perform(env, players.reference, task)[0] == pytest.approx(1.0), task.id
    env.close()


def scores(env, player, tasks):
    return np.array([perform(env, player, task, seed)[0] for seed, task in enumerate(tasks)])


@pytest.mark.parametrize("options", [{}, COMPACT], ids=["full", "compact"])
def test_the_demonstrator_succeeds_sometimes_and_chance_hardly_ever(questions, options):
    env, tasks = DataQuestionsEnv(**options), questions.split("train")[::8]
    assert 0.45 < np.mean(scores(env, players.demonstrator, tasks) > 0.99) < 0.8
    assert np.mean(scores(env, players.random_player, tasks) > 0.99) < 0.05
    env.close()


def test_reading_answers_off_results():
    assert players.read_answer("a | b\n1.5 | x\n(1 row)", False) == 1.5
    assert players.read_answer("Ada|3\nBo|4", True) == ["Ada", "Bo"]
    assert players.read_answer("(no rows)", True) == [] and players.read_answer("(no rows)", False) == 0


def test_players_need_the_query(make_task):
    task = Task(id="x", public=make_task().public)
    for player in (players.reference, players.demonstrator):
        with pytest.raises(TaskError, match="'sql'"):
            next(player(task, "", np.random.default_rng(0)))
