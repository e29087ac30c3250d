"""The environment: what turns show, what info says, and that it is a proper Gymnasium environment."""

import json

import gymnasium
import numpy as np
import pytest

from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.code_repair.builtin import load_builtin
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv, clip, read_tests
from agentgym_rtmc.environments.code_repair.workspace import content_digest
from agentgym_rtmc.environments.sandbox import memo
from agentgym_rtmc.errors import ConfigError, GradingError, SandboxError, TaskError
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/CodeRepair-v0"
ADD = "def add(a, b):\n    return a + b\n"
FIX = "git checkout -q . && sed -zi 's| -| +|1' m.py && python t.py"


@pytest.fixture
def start(env, make_task, sh):
    """Begins a task and returns a function that runs commands."""
    env.reset(seed=0, options={"task": make_task()})
    return lambda command: env.step(sh(command))


def test_the_first_observation_is_short_and_names_task_and_files(env, make_task):
    observation, info = env.reset(seed=0, options={"task": make_task()})
    assert observation == "m.py: add two numbers\nfiles: m.py t.py"
    assert info == {"task": "task", "files": {}}
    assert len(env.system_prompt) < 250 and "5 s" in env.system_prompt and "8 turns" in env.system_prompt


def test_look_test_edit_submit(start):
    assert start("cat m.py")[0] == "def add(a, b):\n    return a - b"
    observation, *_, info = start("python t.py")
    assert observation == "1/4 FAIL add(1, 2) got -1 want 3"
    assert info["tests"] == {"passed": 1, "total": 4} and info["exit_code"] == 1 and info["files"] == {}
    observation, reward, terminated, truncated, info = start(FIX)
    assert (observation, reward, terminated, truncated) == ("4/4 PASS", 0.0, False, False)
    assert info["files"] == {"m.py": content_digest(ADD.encode())} and info["turns_left"] == 5
    observation, reward, terminated, truncated, info = start("submit")
    assert (observation, reward, terminated, truncated) == ("[submitted]", 1.0, True, False)
    assert info["reward"] == {"solved": 1.0} and list(info["files"]) == ["m.py"]


def test_out_of_turns_is_graded_as_it_stands(start):
    start(FIX)
    for _ in range(6):
        assert not start("ls")[3]
    _, reward, terminated, truncated, info = start("ls")
    assert (reward, terminated, truncated, info["truncation"]) == (1.0, False, True, "turns")


def test_edits_that_lead_nowhere_are_told(start):
    assert start("sed -i 's/nothing/x/' m.py")[0] == "[nothing changed]"
    assert start("sed -i 's/a - b/b - a/' m.py")[0] == "[ok]"
    assert start("git checkout -q . && sed -zi 's|zzz|y|1' m.py && python t.py")[0].endswith(
        "want 3\n[nothing changed]"
    )
    assert start("sed -i 's/a - b/b - a/' m.py")[0] == "[same files as after turn 2]"
    assert start("sed -i 's/b - a/b * a/' m.py; cat m.py")[0].endswith("b * a")
    assert start("ls")[0] == "m.py  t.py" or "m.py" in start("ls")[0]


def test_notes_can_be_switched_off(sandboxed, make_task, sh):
    env = CodeRepairEnv(notes=False)
    env.reset(options={"task": make_task()})
    assert env.step(sh("sed -i 's/nothing/x/' m.py"))[0] == "[ok]"


def test_edits_that_lead_nowhere_can_cost(sandboxed, make_task, sh):
    env = CodeRepairEnv(idle_cost=0.1)
    env.reset(options={"task": make_task()})
    played = [env.step(sh(c)) for c in ("ls", "sed -i 's/nothing/x/' m.py", "sed -i 's/a - b/b * a/' m.py", FIX, FIX)]
    assert [reward for _, reward, *_ in played] == [0.0, -0.1, 0.0, 0.0, -0.1]
    assert [(info.get("edit"), info.get("idle")) for *_, info in played] == [
        (None, None), (True, True), (True, None), (True, None), (True, True),
    ]  # fmt: skip
    assert played[1][4]["reward"] == {"idle": -0.1}
    assert env.step(sh("submit"))[1] == 1.0
    env.reset(options={"task": make_task()})
    env.step(sh("ls"))
    _, reward, *_, info = env.step(sh("submit"))  # giving up is no way around the cost: six turns were left
    assert reward == pytest.approx(-0.6) and info["reward"] == {"solved": 0.0, "unused": pytest.approx(-0.6)}
    with pytest.raises(ConfigError, match="idle_cost"):
        CodeRepairEnv(idle_cost=-1.0)


def test_a_first_look_is_no_turn_and_leaves_no_trace(sandboxed, make_task, sh):
    env = CodeRepairEnv(look="cat m.py; python t.py; echo x > left")
    observation, info = env.reset(options={"task": make_task()})
    assert observation.endswith("def add(a, b):\n    return a - b\n1/4 FAIL add(1, 2) got -1 want 3")
    assert info == {"task": "task", "files": {}}
    observation, *_, info = env.step(sh("ls"))
    assert "left" not in observation and (info["files"], info["turns_left"]) == ({}, 7)


def test_tests_can_tell_the_score_alone(start):
    observation, *_, info = start("python t.py -q")
    assert observation == "1/4 FAIL" and info["tests"] == {"passed": 1, "total": 4}


def test_info_files_follow_the_files_not_their_layout(start):
    assert start("sed -i 's/$/   /' m.py")[4]["files"] == {}
    assert start("sed -i 's/$/\\r/' m.py; echo >> m.py")[4]["files"] == {}
    assert start("rm t.py; mkdir d; echo hi > d/new")[4]["files"] == {"d/new": content_digest(b"hi"), "t.py": None}
    assert set(start("ln -s m.py link; chmod 600 m.py")[4]["files"]) == {"d/new", "link", "t.py"}
    assert start("git checkout -q . && rm -r d link")[4]["files"] == {}


def test_git_works_and_equal_commands_give_equal_commits(start):
    assert start("git status --short; git log --format='%an %ad %s' --date=short")[0] == "Ada Example 2020-01-01 Start"
    first = start("sed -i 's/-/+/' m.py; git commit -qam fix && git rev-parse HEAD; git diff HEAD~ --stat | tail -1")[0]
    assert "1 file changed" in first
    again = start("git reset -q --hard HEAD~ && sed -i 's/-/+/' m.py && git commit -qam fix && git rev-parse HEAD")[0]
    assert again.split()[0] == first.split()[0] and len(first.split()[0]) == 40


def test_pytest_runs_the_visible_tests(start):
    observation, *_, info = start("pytest -q t.py 2>&1 | tail -3")
    if "not found" in observation or "No module" in observation:
        pytest.skip("pytest is not in the sandbox's root: it is not installed beside this project")
    assert info["tests"] == {"passed": 1, "total": 4}
    assert start(f"{FIX} && pytest -q t.py")[4]["tests"]["passed"] == 4


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("def add(a, b):\n    while True:\n        a += 1\n", "0/4 FAIL add(1, 2) TimeoutError: endless loop want 3"),
        ("def add(a, b) return", "0/4 FAIL add(1, 2) SyntaxError"),
        ("def add(a, b):\n    return 1 // 0\n", "0/4 FAIL add(1, 2) ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "0/4 FAIL add(1, 2) SystemExit"),
        ("def add(a, b):\n    return 'x' * 9999\n", "0/4 FAIL add(1, 2) got 'xxxx"),
        ("def add(a, b):\n    return float(a + b)\n", "0/4 FAIL add(1, 2) got 3.0 want 3"),
    ],
)
def test_visible_tests_say_in_one_line_what_failed(start, program, shown):
    observation = start(f"cat > m.py <<'END'\n{program}\nEND\npython t.py")[0]
    assert observation.startswith(shown) and len(observation) < 250


def test_visible_tests_of_a_class(env, sh):
    task = next(task for task in load_builtin().split("train") if task.public["family"] == "Stack")
    env.reset(options={"task": task})
    observation = env.step(sh("python t.py"))[0]
    assert "FAIL Stack()." in observation


def test_output_is_cut_with_a_note(start):
    observation = start("seq 1 10000")[0]
    assert "characters left out" in observation and len(observation) < 650
    assert observation.startswith("1\n2\n") and observation.endswith("10000")


def test_slow_commands_are_killed_and_the_agent_is_told(sandboxed, make_task, sh):
    env = CodeRepairEnv(command_seconds=0.5)
    env.reset(options={"task": make_task()})
    observation, *_, info = env.step(sh("echo before; sleep 60"))
    assert observation.startswith("before\n[killed: it ran longer than 0.5 s") and info["exit_code"] == 137
    assert "killed" in info


def test_turn_cost_shapes_the_return(sandboxed, make_task, sh):
    env = CodeRepairEnv(turn_cost=0.05)
    env.reset(options={"task": make_task()})
    assert env.step(sh("ls"))[1] == pytest.approx(-0.05)
    env.step(sh(FIX))
    assert env.step(sh("submit"))[1] == pytest.approx(0.95)


@pytest.mark.parametrize(
    "options",
    [{"output_limit": 3}, {"command_seconds": 0}, {"max_turns": 0}, {"turn_cost": -1}, {"prompt": "v0"}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        CodeRepairEnv(**options)


def test_unusable_tasks_are_refused(sandboxed, make_task, sh):
    env = CodeRepairEnv()
    with pytest.raises(TaskError, match="'source'"):
        env.reset(options={"task": Task(id="empty")})
    env.reset(options={"task": Task(id="ungraded", public=make_task().public)})
    with pytest.raises(TaskError, match="'calls'"):
        env.step(sh("submit"))


def test_a_broken_machine_is_not_the_agents_failure(env, make_task, sh, monkeypatch):
    from agentgym_rtmc.environments.code_repair import answering

    class Broken(answering.LocalSandbox):
        def exec(self, *arguments, **options):
            raise SandboxError("no more processes")

    monkeypatch.setattr(answering, "LocalSandbox", Broken)
    env.reset(options={"task": make_task(name="never judged before", buggy="def add(a, b):\n    return b - a\n")})
    with pytest.raises(GradingError, match="doctor"):
        env.step(sh("submit"))


def test_reverting_first_meets_results_that_are_known(sandboxed, make_task, sh):
    """The same try from another state costs nothing, and answers what really running it answers."""
    edits = [
        "git checkout -q . && sed -zi 's|a - b|b - a|1' m.py",
        "git checkout -q . && echo '# x' >> t.py; python t.py",
    ]
    for first in (
        "sed -i 's/-/*/' m.py",
        "rm t.py",
        "echo x > other",
        "git commit -q --allow-empty -m x",
        "rm m.py; mkdir m.py",
    ):
        seen = []
        for known in (True, False):
            env = CodeRepairEnv(memo=known)
            env.reset(options={"task": make_task()})
            if known:
                for edit in edits:
                    env.step(sh(edit))
                env.reset(options={"task": make_task()})
            seen.append([env.step(sh(command)) for command in (first, *edits)])
        assert seen[0] == seen[1], first
    before = memo.SHARED.misses
    env = CodeRepairEnv()
    env.reset(options={"task": make_task()})
    for edit in edits * 2:
        env.step(sh(edit))
    assert memo.SHARED.misses == before


def test_the_environment_keeps_its_contract(sandboxed, sh, recwarn):
    actions = [
        sh(c) for c in ("cat m.py t.py", "python t.py", "git log -p --all; git status", "env; ls -la /tmp ..", "submit")
    ]
    check_agent_env(ENV_ID, actions=actions, task_options={"limit": 40})
    ours = [str(w.message) for w in recwarn if "agentgym" in str(w.filename)]
    assert not ours


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_at_once(sandboxed, sh, mode):
    extra = {} if mode == "sync" else {"vector_kwargs": {"shared_memory": False}}
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, task_options={"limit": 20}, **extra)
    try:
        observations, _ = envs.reset(seed=[3, 4])
        assert len(observations) == 2 and all(text.startswith("m.py: ") for text in observations)
        observations, rewards, terminated, truncated, _ = envs.step([sh("ls"), "nonsense"])
        assert "m.py" in observations[0] and "not understood" in observations[1]
        assert list(rewards) == [0, 0] and not any(terminated) and not any(truncated)
        assert list(envs.step([sh("submit")] * 2)[2]) == [True, True]
    finally:
        envs.close()


def test_info_is_json_whatever_the_files_are_called(start):
    info = start("touch \"$(printf 'a\\377b')\" 'c\nd' é; mkdir -p x/y; touch x/y/z")[4]
    assert json.loads(json.dumps(info).encode()) == info
    assert set(info["files"]) == {"a\\xffb", "c\nd", "é", "x/y/z"}


def test_clip_keeps_head_and_tail():
    assert clip("short", 40) == "short"
    cut = clip("a" * 100 + "b" * 100, 40)
    assert cut == "a" * 20 + "\n[... 160 characters left out ...]\n" + "b" * 20


@pytest.mark.parametrize(
    ("command", "output", "found"),
    [
        ("python t.py", "6/6 PASS", {"passed": 6, "total": 6}),
        ("python t.py; python t.py", "1/6 FAIL f()\n2/6 FAIL f()", {"passed": 2, "total": 6}),
        ("cat t.py", "import sys", None),
        ("echo 6/6 PASS", "6/6 PASS", None),
        ("pytest t.py", "=== 2 failed, 4 passed in 0.1s ===", {"passed": 4, "total": 6}),
        ("pytest t.py", "1 error in 0.1s", {"passed": 0, "total": 1}),
        ("python -m pytest", "no tests ran", None),
        ("python t.py", "9" * 5000 + "/6 PASS", None),
        ("pytest", "9" * 5000 + " passed", None),
    ],
)
def test_outcomes_of_visible_tests_are_read(command, output, found):
    assert read_tests(command, output) == found


def test_tasks_are_drawn_from_the_split(sandboxed):
    env = CodeRepairEnv(split="handwritten", task_options={"limit": 20})
    drawn = {env.reset(seed=seed)[1]["task"] for seed in range(30)}
    assert len(drawn) > 10 and all(name.startswith("handwritten/") for name in drawn)
    assert env.reset(seed=np.int64(3).item())[1] == env.reset(seed=3)[1]
