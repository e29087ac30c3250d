"""Rollouts with a real environment that misbehaves on request, and a scripted policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import echo_env
import gymnasium
import numpy as np
import pytest
from echo_env import make_task

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import AgentGymError, SamplerError, SandboxUnavailableError
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.episode_run import Clock
from agentgym_rtmc.trainer.policy.base import Completion, SampleKey, SamplingParams
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.rollout import Rollout, RolloutConfig, RolloutStats, plan_groups
from agentgym_rtmc.trainer.transcript import Conversation

TASKS = [make_task(word) for word in ("ab", "cd", "ef", "gh")]


@pytest.fixture(autouse=True)
def all_environments_are_closed() -> Iterator[None]:
    echo_env.OPEN.clear()
    echo_env.FAILURES.clear()
    yield
    assert not echo_env.OPEN


def collect(
    tasks: Sequence[Task],
    policy: Any = None,
    *,
    group_size: int = 2,
    deterministic: bool = False,
    on_episode: Callable[[Episode], None] | None = None,
    env: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[list[Episode], RolloutStats]:
    settings = RolloutConfig(**{"env_workers": 3, "max_invalid_share": 1.0, **config})
    with Rollout(
        partial(gymnasium.make, "tests/Echo-v0", **(env or {})),
        policy or ScriptedPolicy(echo_env.reference),
        settings,
        SamplingParams(),
        seed=1,
        deterministic=deterministic,
        on_episode=on_episode,
    ) as rollout:
        groups, stats = rollout.collect(plan_groups(tasks, group_size, first_number=0, seed=7, label="t"))
    return [episode for group in groups for episode in group.episodes], stats


class Saying:
    """Says what a function of (conversation, key) returns."""

    max_context = None

    def __init__(self, say: Callable[[Conversation, SampleKey], Completion]) -> None:
        self.say = say
        self.batches: list[list[SampleKey]] = []
        self.ended: list[str] = []

    def complete(
        self, conversations: Sequence[Conversation], keys: Sequence[SampleKey], params: SamplingParams
    ) -> list[Completion]:
        self.batches.append(list(keys))
        return [self.say(conversation, key) for conversation, key in zip(conversations, keys, strict=True)]

    def end_episode(self, session: str) -> None:
        self.ended.append(session)

    def close(self) -> None:
        pass


def test_groups_share_a_beginning_and_keep_the_order_of_the_plans() -> None:
    seen: list[Episode] = []
    episodes, stats = collect(TASKS, group_size=3, on_episode=seen.append, concurrency=4)
    assert [episode.id.rpartition("/")[2] for episode in episodes] == [str(n) for n in range(12)]
    assert [episode.group for episode in episodes[::3]] == ["t/0:ab", "t/1:cd", "t/2:ef", "t/3:gh"]
    assert [episode.opening.seed for episode in episodes[::3]] == [7, 8, 9, 10]
    assert all(e.opening == episodes[3 * (i // 3)].opening for i, e in enumerate(episodes))
    assert all(e.valid and e.terminated and e.total_reward == 1 and not e.opening.task.private for e in episodes)
    assert sorted(e.id for e in seen) == sorted(e.id for e in episodes)
    assert (stats.episodes, stats.turns, stats.invalid, stats.retried) == (12, 12, 0, 0)


def test_the_agents_own_budget_truncates_and_is_graded() -> None:
    policy = Saying(lambda conversation, key: Completion("a?", "stop"))
    episodes, _ = collect(TASKS[:1], policy)
    assert [(e.truncated, e.truncation, e.valid, len(e.turns), e.total_reward) for e in episodes] == [
        (True, "turns", True, 3, 0.5)
    ] * 2
    assert sorted(policy.ended) == ["0.1", "1.1"]


def test_a_full_context_ends_the_episode_and_the_grade_goes_to_the_last_turn() -> None:
    def say(conversation: Conversation, key: SampleKey) -> Completion:
        if key.turn == 1:
            return Completion("", "length", (), (), ())
        return Completion("a?", "length", (1, 2), (-1.0, -1.0), (3,))

    episodes, _ = collect(TASKS[:1], Saying(say))
    for episode in episodes:
        assert (episode.truncation, episode.total_reward, len(episode.turns)) == ("tokens", 0.5, 1)
        assert episode.turns[0].finish_reason == "length" and episode.turns[0].info["truncation"] == "tokens"
    # Before the first turn there is nothing to give the grade to, and nothing that could be trained.
    episodes, _ = collect(TASKS[:1], Saying(lambda *_: Completion("", "length", (), (), ())))
    assert [(e.truncation, e.turns, e.total_reward) for e in episodes] == [("tokens", (), 0.0)] * 2


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_machines_failures_are_retried_on_a_fresh_environment(where: str) -> None:
    task = make_task("ab", trouble=f"once in {where}")
    episodes, stats = collect([task, TASKS[1]], group_size=1)
    assert [(e.valid, e.attempts, e.total_reward) for e in episodes] == [(True, 2, 1.0), (True, 1, 1.0)]
    assert stats.retried == 1 and stats.errors == ["SandboxError: the sandbox died once"]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_machine_that_keeps_failing_makes_the_episode_invalid(where: str) -> None:
    episodes, stats = collect([make_task("ab", trouble=f"machine in {where}"), TASKS[1]], group_size=1, retries=2)
    broken, sound = episodes
    assert (broken.valid, broken.error, broken.attempts) == (False, "SandboxError: the sandbox died", 3)
    assert not broken.terminated and not broken.truncated and sound.total_reward == 1
    assert (stats.retried, stats.invalid, stats.episodes) == (2, 1, 2)


@pytest.mark.filterwarnings("ignore:.*NaN")
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("bug in reset", "ValueError: nobody"),
        ("bug in step", "ValueError: nobody"),
        ("nan", "answer is no Turn: info: Value error, nan"),
    ],
)
def test_a_bug_in_an_environment_makes_the_episode_invalid(trouble: str, message: str) -> None:
    policy = ScriptedPolicy(echo_env.demonstrator)
    episodes, stats = collect([make_task("ab", trouble=trouble), TASKS[1]], policy, group_size=1)
    assert not episodes[0].valid and message in str(episodes[0].error) and episodes[0].attempts == 1
    assert episodes[1].valid and stats.retried == 0


def test_an_environment_that_cannot_be_closed_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    episodes, _ = collect([make_task("ab", trouble="close")], group_size=1)
    assert episodes[0].total_reward == 1
    assert "AssertionError: cannot be closed" in caplog.text


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_hangs_does_not_hang_the_others(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    gate = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda seconds: gate.wait(seconds) if seconds == echo_env.HANGS else None)
    hanging = [make_task(word, trouble=f"hang in {where}") for word in ("ab", "ba", "aa")]
    # Every worker hangs, and all that stands in the queue behind them still comes to its end.
    started = time.monotonic()
    with Rollout(
        partial(gymnasium.make, "tests/Echo-v0"),
        ScriptedPolicy(echo_env.reference),
        RolloutConfig(env_workers=3, episode_seconds=0.3, max_invalid_share=1),
        SamplingParams(),
    ) as rollout:
        groups, stats = rollout.collect(plan_groups([*hanging, *TASKS], 1, first_number=0, seed=0, label="t"))
        assert time.monotonic() - started < 15
        assert [group.episodes[0].valid for group in groups] == [False] * 3 + [True] * 4
        assert "rollout.episode_seconds = 0.3" in str(groups[0].episodes[0].error)
        assert stats.invalid == 3 and stats.retried == 0
        gate.set()  # those that come back after all are closed as well


def test_too_many_invalid_episodes_end_the_run() -> None:
    tasks = [make_task(word, trouble="bug in step") for word in ("ab", "cd")]
    with pytest.raises(AgentGymError, match=r"4 of 6 episodes are invalid.*nobody thought of this"):
        collect([*tasks, TASKS[0]], max_invalid_share=0.5)
    with pytest.raises(SandboxUnavailableError, match="no namespaces"):
        collect([make_task("ab", trouble="no sandbox"), *TASKS])


def test_a_sampler_that_fails_is_retried() -> None:
    failures = iter([True, False])

    def say(conversation: Conversation, key: SampleKey) -> Completion:
        if next(failures, False):
            raise SamplerError("out of memory")
        return Completion("ab", "stop")

    episodes, stats = collect(TASKS[:1], Saying(say), group_size=1)
    assert [(e.valid, e.attempts, e.total_reward) for e in episodes] == [(True, 2, 1.0)]
    episodes, stats = collect(TASKS[:1], Saying(lambda *_: Completion("", "abort")), group_size=1, retries=1)
    assert not episodes[0].valid and "aborted" in str(episodes[0].error) and stats.retried == 1


def test_an_interruption_leaves_no_environment_open() -> None:
    def say(conversation: Conversation, key: SampleKey) -> Completion:
        if key.turn == 1:
            raise KeyboardInterrupt
        return Completion("no", "stop")

    with pytest.raises(KeyboardInterrupt):
        collect(TASKS, Saying(say), env={"seconds": 0.01})


def test_fixed_waves_hold_every_running_episode_in_order() -> None:
    def say(conversation: Conversation, key: SampleKey) -> Completion:
        rng = np.random.default_rng([key.episode, key.turn])
        word = conversation.messages[1]["content"].partition(" ")[2]
        return Completion(word if rng.random() < 0.4 else "no", "stop")

    runs = []
    for workers in (1, 4):
        policy = Saying(say)
        episodes, _ = collect(TASKS, policy, group_size=3, deterministic=True, concurrency=5, env_workers=workers)
        runs.append((episodes, policy.batches, policy.ended))
    assert runs[0] == runs[1]
    batches = runs[0][1]
    assert all(batch == sorted(batch, key=lambda key: key.episode) for batch in batches)
    assert max(len(batch) for batch in batches) == 5
    # Without fixed waves the same keys are asked for, in whatever company.
    policy = Saying(say)
    episodes, _ = collect(TASKS, policy, group_size=3, concurrency=5)
    assert episodes == runs[0][0]


def test_nothing_to_do() -> None:
    assert collect([])[0] == []


def test_the_clock_counts_only_what_is_used() -> None:
    clock = Clock()
    with clock:
        time.sleep(0.02)
        assert clock.seconds >= 0.02
    used = clock.seconds
    time.sleep(0.02)
    assert clock.seconds == used
    clock.add(1.5)
    assert clock.seconds == pytest.approx(used + 1.5)
