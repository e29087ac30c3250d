"""The scripted agents, played in the real environment."""

import numpy as np
import pytest

from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.code_repair import players
from agentgym_rtmc.environments.code_repair.builtin import load_builtin
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.code_repair.repairs import difference, escape_pattern, escape_replacement
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.registration import find_env, load
from agentgym_rtmc.tasks import Task

FEW = load_builtin(limit=24)


def perform(env, player, task, seed=0):
    """Total reward and number of turns of a player on a task."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    acting = player(task, observation, np.random.default_rng(seed))
    action, total = next(acting), 0.0
    for turn in range(1, 100):
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward
        if terminated or truncated:
            return total, turn
        action = acting.send(observation)
    raise AssertionError("the episode did not end")


def test_both_are_registered():
    entry = find_env("CodeRepair-v0")
    assert load(entry.reference) is players.reference
    assert load(entry.demonstrator) is players.demonstrator


@pytest.mark.parametrize("split", ["train", "instances", "heldout", "families", "handwritten"])
def test_the_reference_solves_tasks_of_every_split(sandboxed, split):
    env = CodeRepairEnv()
    for task in FEW.split(split)[::4]:
        assert perform(env, players.reference, task) == (1.0, 2), task.id


@pytest.mark.parametrize("share", [40, pytest.param(None, marks=pytest.mark.full)])
def test_the_references_command_restores_the_original(sandboxed, share):
    """Many tasks in one sandbox: sed itself against the original."""
    tasks = list(load_builtin(limit=share))
    with LocalSandbox() as sandbox:
        for start in range(0, len(tasks), 400):
            batch = tasks[start : start + 400]
            for number, task in enumerate(batch):
                sandbox.write(f"{number}.py", task.public["source"].encode())
                sandbox.write(f"{number}.sed", players.true_repair(task).encode())
            command = f"for i in $(seq 0 {len(batch) - 1}); do sed -zi -f $i.sed $i.py || exit 1; done"
            assert sandbox.exec(["sh", "-c", command], timeout=120.0).code == 0
            for number, task in enumerate(batch):
                assert sandbox.read(f"{number}.py").decode() == task.private["original"], task.id


def test_the_demonstrator_sometimes_succeeds(sandboxed):
    env = CodeRepairEnv()
    tasks = load_builtin(limit=24).split("train")
    played = [perform(env, players.demonstrator, task, seed) for seed, task in enumerate(tasks)]
    solved = np.mean([reward for reward, _ in played])
    assert 0.05 < solved < 0.75
    assert len({turns for _, turns in played}) >= 4


def test_the_demonstrator_is_a_function_of_its_generator():
    task = FEW.split("train")[3]

    def actions(seed):
        acting = players.demonstrator(task, "", np.random.default_rng(seed))
        out = [next(acting)]
        while players.SUBMIT not in out[-1].split("\n"):
            out.append(acting.send("1/6 FAIL f() got 1 want 2"))
        return out

    assert actions(5) == actions(5)
    assert len({tuple(actions(seed)) for seed in range(12)}) > 8


def test_the_demonstrator_submits_when_the_tests_pass():
    acting = players.demonstrator(FEW.split("train")[0], "", np.random.default_rng(1), give_up=0.0)
    action = next(acting)
    for _ in range(20):
        action = acting.send("3/6 FAIL f() got 1 want 2")
        assert "sed" in action or "t.py" in action
    assert acting.send("6/6 PASS") == players.write_action("submit")


def test_the_demonstrator_does_not_look_at_what_it_was_shown():
    acting = players.demonstrator(
        FEW.split("train")[0], "def f():\n3/6 FAIL f()", np.random.default_rng(1), give_up=0.0
    )
    assert "sed" in next(acting)


def test_the_demonstrator_repeats_guesses_only_where_it_means_to():
    for seed in range(8):
        acting = players.demonstrator(
            FEW.split("train")[0], "1/6 FAIL", np.random.default_rng(seed), hint=0.0, repeat=0.0, give_up=0.0
        )
        actions = [next(acting), *(acting.send("1/6 FAIL") for _ in range(7))]
        assert len(set(actions)) == len(actions)


def test_the_demonstrator_can_search_in_order():
    """From whatever it guesses first, one round through the same circle of edits, place after place."""

    def circle(seed):
        acting = players.demonstrator(
            FEW.split("train")[0], "1/6 FAIL", np.random.default_rng(seed), hint=0, repeat=0, give_up=0, sweep=1
        )
        actions = [next(acting)]
        while len(set(actions)) == len(actions):
            actions.append(acting.send("1/6 FAIL"))
        return actions[:-2]  # when nothing new is left it falls back on the answer, which it had tried before

    rounds = [circle(seed) for seed in range(6)]
    assert len({actions[0] for actions in rounds}) > 1 and len(rounds[0]) > 8
    for actions in rounds:
        start = rounds[0].index(actions[0])
        assert actions == rounds[0][start:] + rounds[0][:start]


def test_hint_and_habits_can_be_tuned():
    task = FEW.split("train")[1]
    acting = players.demonstrator(task, "", np.random.default_rng(1), hint=1.0, repeat=0.0, give_up=0.0)
    seen = [next(acting), *(acting.send("FAIL") for _ in range(6))]
    assert sum(players.true_repair(task) in action for action in seen) >= 5


def test_actions_are_what_the_protocol_writes():
    [call] = ShellProtocol().parse(players.write_action("ls"))
    assert call.arguments == {"command": "ls"}


def test_players_need_the_private_part():
    with pytest.raises(TaskError, match="private"):
        players.true_repair(FEW.split("train")[0].disclosed())
    with pytest.raises(TaskError, match="public"):
        players.true_repair(Task(id="x"))


def test_escaping_is_for_basic_regular_expressions():
    assert escape_pattern("a[0] * b.c|d") == "a\\[0] \\* b\\.c\\|d"
    assert escape_replacement("a & b | c\\d\n") == "a \\& b \\| c\\\\d\\n"
    assert difference("x = a[0]", "x = a[1]").new == "1"
