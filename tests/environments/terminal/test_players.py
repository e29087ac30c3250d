"""The scripted agents, played in the real environment."""

import numpy as np
import pytest

from agentgym_rtmc.environments.terminal import players
from agentgym_rtmc.environments.terminal.families import FAMILIES
from agentgym_rtmc.environments.terminal.tasks import load_jobs
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.registration import find_env, load
from agentgym_rtmc.tasks import Task

JOBS = load_jobs()


def perform(env, player, task, seed=0):
    """Total reward of a player on a task."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    acting = player(task, observation, np.random.default_rng([seed, 7]))
    action, total = next(acting), 0.0
    while True:
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward
        if terminated or truncated:
            return total
        action = acting.send(observation)


def test_both_are_registered():
    entry = find_env("Terminal-v0")
    assert load(entry.reference) is players.reference
    assert load(entry.demonstrator) is players.demonstrator


def one_of_each():
    """A task of every family at every level, and of the joined ones."""
    found = {}
    for task in JOBS:
        found.setdefault((task.public["family"], task.public["level"]), task)
    assert len(found) == 3 * len(FAMILIES) + 2
    return list(found.values())


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.full)])
def test_the_reference_solves_every_kind(env, share):
    for task in one_of_each()[::share]:
        assert perform(env, players.reference, task) == pytest.approx(1.0), task.id


def test_the_demonstrator_succeeds_sometimes_and_chance_hardly_ever(env):
    tasks = JOBS.split("train")[::95]
    demonstrated = [perform(env, players.demonstrator, task, seed) for seed, task in enumerate(tasks)]
    assert 0.3 < np.mean([total > 0.99 for total in demonstrated]) < 0.9
    assert np.mean([perform(env, players.random_player, task, seed) > 0.99 for seed, task in enumerate(tasks)]) < 0.1


def test_players_need_the_commands(make_task):
    with pytest.raises(TaskError, match="'solution'"):
        next(players.reference(Task(id="x"), "", np.random.default_rng(0)))
