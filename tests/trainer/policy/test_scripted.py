"""Scripted players as policies, in the real rollout."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest

from agentgym_rtmc.errors import RegistrationError
from agentgym_rtmc.registration import load_task_set, register_env
from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.rollout import Rollout, RolloutConfig, plan_groups
from agentgym_rtmc.trainer.transcript import Conversation


def test_the_reference_solves_every_task(shouting: str) -> None:
    tasks = load_task_set(shouting).split("train")
    policy = ScriptedPolicy.of(shouting)
    config = RolloutConfig(group_size=2, env_workers=2)
    with Rollout(partial(gymnasium.make, shouting), policy, config, SamplingParams()) as rollout:
        groups, _ = rollout.collect(plan_groups(tasks, 2, first_number=0, seed=0, label="t"))
    episodes = [episode for group in groups for episode in group.episodes]
    assert len(episodes) == 128 and all(episode.total_reward == 1 and episode.terminated for episode in episodes)
    assert all(turn.token_ids is None for episode in episodes for turn in episode.turns)
    assert policy._games == {}  # every player was told that its episode is over


def test_players_differ_by_episode_and_repeat_by_seed(shouting: str) -> None:
    task = load_task_set(shouting).split("train")[0]

    def actions(seed: int) -> list[list[str]]:
        policy = ScriptedPolicy.of(shouting, "demonstrator", seed)
        played = []
        for number in range(12):
            session = str(number)
            policy.start_episode(session, task, "now: a a", number)
            conversation = Conversation.opened(session, "", "now: a a")
            said = []
            for turn in range(4):
                (completion,) = policy.complete([conversation], [SampleKey(0, number, turn)], SamplingParams())
                said.append(completion.text)
                conversation.record(completion.text, None, None, False)
                conversation.observe("not a a")
            policy.end_episode(session)
            played.append(said)
        return played

    first = actions(0)
    assert first == actions(0) and first != actions(1)
    assert len({tuple(said) for said in first}) > 1
    # A player that has ended says nothing more.
    assert ["A A", "", "", ""] in first


def test_what_is_missing_is_named(shouting: str) -> None:
    register_env("tests/Mute-v0", "shouting:Shouting")
    with pytest.raises(RegistrationError, match="no 'reference' player"):
        ScriptedPolicy.of("tests/Mute-v0")
    with pytest.raises(KeyError, match="start_episode"):
        ScriptedPolicy.of(shouting).complete(
            [Conversation.opened("new", "", "x")], [SampleKey(0, 0, 0)], SamplingParams()
        )
