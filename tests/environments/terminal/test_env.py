"""The environment: rewards, what info says, and that it is a proper Gymnasium environment."""

import json
import os
import subprocess
import sys

import gymnasium
import pytest

from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.terminal.env import TerminalEnv, clip
from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.signatures import make_signature
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/Terminal-v0"


@pytest.fixture
def start(env, make_task, sh):
    """Begins a task and returns a function that runs commands."""
    env.reset(seed=0, options={"task": make_task()})
    return lambda command: env.step(sh(command))


def test_the_first_observation_is_the_job(env, make_task):
    observation, info = env.reset(seed=0, options={"task": make_task()})
    assert observation == "count the .md files, then rename a.md to a.txt"
    assert info == {"task": "job", "files": {}}
    assert "5 s" in env.system_prompt and "12 turns" in env.system_prompt
    assert len(TerminalEnv(style="compact").system_prompt) < 80


def test_progress_is_paid_as_it_comes_and_taken_back(start):
    _, reward, *_, info = start("find . -name '*.md' | wc -l > answer.txt")
    assert reward == pytest.approx(0.2 / 3) and info["reward"] == {"progress": pytest.approx(0.2 / 3)}
    assert start("ls")[1] == 0
    assert start("echo 4 > answer.txt")[1] == pytest.approx(-0.2 / 3)
    assert start("echo 3 > answer.txt; mv a.md a.txt")[1] == pytest.approx(0.2)
    assert start("touch extra")[1] == pytest.approx(-0.2 / 3)
    assert start("rm extra")[1] == pytest.approx(0.2 / 3)
    observation, reward, terminated, truncated, info = start("submit")
    assert (observation, reward, terminated, truncated) == ("[submitted]", pytest.approx(0.8), True, False)
    assert info["reward"] == {"solved": pytest.approx(0.8)} and set(info["files"]) == {"a.md", "a.txt", "answer.txt"}


def test_damage_is_not_solved_whatever_else_is_right(start):
    start("echo 3 > answer.txt; mv a.md a.txt; chmod 600 keep.txt")
    assert start("submit")[1] == 0


def test_out_of_turns_is_graded_as_it_stands(sandboxed, make_task, sh):
    env = TerminalEnv(max_turns=2, progress=0)
    env.reset(seed=0, options={"task": make_task()})
    assert env.step(sh("echo 3 > answer.txt; mv a.md a.txt"))[1] == 0
    _, reward, terminated, truncated, info = env.step(sh("ls"))
    assert (reward, terminated, truncated, info["truncation"]) == (1.0, False, True, "turns")
    env.close()


def test_info_files_follow_the_files(start):
    assert start("ls")[4]["files"] == {}
    first = start("echo x >> keep.txt; mkdir d")[4]["files"]
    assert set(first) == {"keep.txt", "d"}
    assert start("chmod 700 run.sh; rm a.md")[4]["files"].keys() == {"keep.txt", "d", "run.sh", "a.md"}
    assert start("true")[4]["files"]["a.md"] is None
    assert start("echo stay > keep.txt; rmdir d; chmod 755 run.sh; echo one > a.md")[4]["files"] == {}


def test_what_commands_print_is_shown_within_limits(start):
    assert start("cat a.md; echo oops >&2; exit 3")[0] == "one\noops"
    assert start("exit 3")[0] == "[exit code 3]" and start("true")[0] == "[ok]"
    observation = start("seq 1 10000")[0]
    assert "characters left out" in observation and len(observation) < 2100
    assert clip("abc", 40) == "abc"


def test_slow_commands_are_killed_and_the_agent_is_told(sandboxed, make_task, sh):
    env = TerminalEnv(command_seconds=0.5, turn_cost=0.01)
    env.reset(options={"task": make_task()})
    observation, reward, *_, info = env.step(sh("echo before; sleep 60"))
    assert observation.startswith("before\n[killed: it ran longer than 0.5 s") and info["exit_code"] == 137
    assert reward == pytest.approx(-0.01)
    env.close()


def test_scratch_is_for_one_command(start):
    assert start("echo x > /tmp/t; cat /tmp/t")[0] == "x"
    assert start("cat /tmp/t")[4]["exit_code"] == 1


def test_a_look_at_the_start_changes_nothing(sandboxed, make_task):
    env = TerminalEnv(look="ls; touch extra")
    observation, info = env.reset(options={"task": make_task()})
    assert observation.endswith("\na.md\nb.md\nkeep.txt\nrun.sh\nsub") and info["files"] == {}
    env.close()


@pytest.mark.parametrize(
    "options",
    [{"output_limit": 3}, {"command_seconds": 0}, {"progress": 1.0}, {"max_turns": 0}, {"style": "short"}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        TerminalEnv(**options)


def test_unusable_tasks_are_refused(sandboxed, make_task, sh):
    env = TerminalEnv()
    for public in ({}, {"statement": "x"}, {"statement": "x", "files": {"../x": "y"}}):
        with pytest.raises(TaskError):
            env.reset(options={"task": Task(id="bad", public=public)})
    env.reset(options={"task": Task(id="ungraded", public=make_task().public)})
    with pytest.raises(TaskError, match="'changes'"):
        env.step(sh("submit"))
    env.close()


def test_the_environment_keeps_its_contract(sandboxed, sh):
    actions = [sh(c) for c in ("ls -a", "cat *", "env; id; pwd", "echo hello > answer.txt; ls ..", "submit")]
    check_agent_env(ENV_ID, actions=actions, task_options={"limit": 40})


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_at_once(sandboxed, sh, mode):
    extra = {} if mode == "sync" else {"vector_kwargs": {"shared_memory": False}}
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, task_options={"limit": 20}, **extra)
    try:
        observations, _ = envs.reset(seed=[3, 4])
        assert len(observations) == 2 and all(observations)
        observations, rewards, terminated, truncated, _ = envs.step([sh("pwd"), "nonsense"])
        assert observations[0] == "/workspace" and "not understood" in observations[1]
        assert list(rewards) == [0, 0] and not any(terminated) and not any(truncated)
        assert list(envs.step([sh("submit")] * 2)[2]) == [True, True]
    finally:
        envs.close()


SCRIPT = """
import hashlib, json
import numpy as np
from agentgym_rtmc.environments.terminal.env import TerminalEnv
from agentgym_rtmc.environments.terminal.players import demonstrator
from agentgym_rtmc.environments.terminal.tasks import load_jobs
env, total = TerminalEnv(), hashlib.sha256()
for task in load_jobs(limit=3):
    observation, info = env.reset(seed=1, options={"task": task})
    acting = demonstrator(task, observation, np.random.default_rng(1), look=0.0)
    seen = (observation, info)
    action, over = next(acting), False
    while not over:
        seen = env.step(action)
        total.update(json.dumps([action, *seen], sort_keys=True).encode())
        over = seen[2] or seen[3]
        action = "" if over else acting.send(seen[0])
print(total.hexdigest())
"""


def test_equal_actions_give_equal_bytes_in_every_process(sandboxed):
    seen = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(seen[0]) == 65 and seen[0] == seen[1]


def test_info_is_json_whatever_the_files_are_called(start):
    info = start("touch \"$(printf 'a\\377b')\" 'c\nd' é")[4]
    assert json.loads(json.dumps(info).encode()) == info
    assert set(info["files"]) == {"a\\xffb", "c\nd", "é"}


def test_equal_files_are_one_state_of_the_signature(env, make_task, sh):
    """The same changes in either order, by other commands, meet in the signature that the environment names."""
    signature = make_signature("workspace")
    keys = []
    for commands in (
        ("chmod 600 keep.txt", "mv a.md a.txt"),
        ("mv a.md a.txt", "chmod u=rw,go= keep.txt"),
        ("ls", "mv a.md a.txt"),
    ):
        observation, info = env.reset(seed=0, options={"task": make_task()})
        state = signature.start(Opening(task=make_task().disclosed(), observation=observation, info=info))
        for command in commands:
            action = sh(command)
            observation, reward, _, _, info = env.step(action)
            turn = Turn(
                text=action, calls=env.protocol.parse(action), observation=observation, reward=reward, info=info
            )
            state = signature.advance(state, turn)
        keys.append(signature.state_key(state))
    assert keys[0] == keys[1] != keys[2]
