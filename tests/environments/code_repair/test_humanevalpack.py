"""The task set `humanevalpack`: rows of our own in its format, and the public 164 where they are to be had."""

# ruff: noqa: E501  (rows as they come)
import json
import os
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest

from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.code_repair import players
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.code_repair.grading import judge
from agentgym_rtmc.environments.code_repair.humanevalpack import load_humanevalpack, visible_tests
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.registration import load_task_set

ENV_ID = "agentgym_rtmc/CodeRepair-v0"
ROWS = [
    {
        "task_id": "Python/0",
        "prompt": 'def largest(xs):\n    """Return the largest number of a list.\n    >>> largest([1, 3])\n    3\n    """\n',
        "canonical_solution": "    best = xs[0]\n    for x in xs:\n        if x > best:\n            best = x\n    return best\n",
        "buggy_solution": "    best = xs[0]\n    for x in xs:\n        if x < best:\n            best = x\n    return best\n",
        "test": "def check(candidate):\n    assert candidate([4, 9, 2]) == 9\n    assert candidate([-5]) == -5\n\ncheck(largest)",
        "example_test": "def check(largest):\n    assert largest([1, 3]) == 3\n    assert largest([3, 1]) == 3\ncheck(largest)\n",
        "docstring": "Return the largest number of a list.\n>>> largest([1, 3])\n3",
        "entry_point": "largest",
        "bug_type": "operator misuse",
        "declaration": "not used",
    },
    {
        "task_id": "Python/1",
        "prompt": 'def lock(t, n):\n    return t[n:] + t[:n]\n\n\ndef unlock(t, n):\n    """Undo lock."""\n',
        "canonical_solution": "    return lock(t, len(t) - n)\n",
        "buggy_solution": "    return lock(t, n)\n",
        "test": "def check(unlock):\n    import random\n    for _ in range(20):\n        n = random.randint(0, 5)\n"
        "        assert unlock(lock('abcdefgh', n), n) == 'abcdefgh'\n\ncheck(unlock)",
        "entry_point": "unlock",
    },
    {
        "task_id": "Python/2",
        "prompt": 'import math\n\n\ndef distance(a, b):\n    """Distance of two points."""\n',
        "canonical_solution": "    x = a[0] - b[0]\n    y = a[1] - b[1]\n    total = x * x + y * y\n    return math.sqrt(total)\n",
        "buggy_solution": "    x = a[0] - b[1]\n    y = a[1] - b[0]\n    total = x * x + y * y\n    return math.sqrt(total)\n",
        "test": "def check(distance):\n    assert abs(distance((0, 3), (4, 0)) - 5.0) < 1e-6\n    assert distance((1, 2), (1, 2)) == 0\n\ncheck(distance)",
        "example_test": "    def check(d):\n    broken",
        "docstring": "Distance of two points " * 20,
        "entry_point": "distance",
    },
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    """A file of our rows, with a blank line."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS[:2])) + "\n\n" + json.dumps(ROWS[2]) + "\n")
    return path


def test_rows_become_tasks(file):
    tasks = load_humanevalpack(path=file)
    assert tasks.name == "humanevalpack" and tasks.splits == {"test": 3}
    assert [task.id for task in tasks] == [f"humanevalpack/Python/{n}" for n in range(3)]
    assert [task.model_dump() for task in load_humanevalpack(path=file)] == [task.model_dump() for task in tasks]
    first, second, third = tasks
    assert first.public["statement"] == "largest: Return the largest number of a list."
    assert first.public["source"].endswith("x < best:\n            best = x\n    return best\n")
    assert first.public["tests"].count("def test_") == 2 and first.public["bug"] == "operator misuse"
    assert second.public["tests"] == third.public["tests"] == ""
    assert len(third.public["statement"]) < 230 and third.public["statement"].endswith("...")
    for task in tasks:
        shown = json.dumps(task.public)
        assert "check(" not in shown and json.dumps(task.private["original"])[1:-1] not in shown


def test_the_registered_loader_takes_options(file):
    assert len(load_task_set(ENV_ID, "humanevalpack", path=str(file))) == 3
    with pytest.raises(TaskError, match=r"nowhere\.jsonl cannot be read"):
        load_humanevalpack(path=file.with_name("nowhere.jsonl"))
    file.write_text("\n")
    with pytest.raises(TaskError, match="holds no task"):
        load_humanevalpack(path=file)


BAD = [
    ("{", "row 2: Invalid JSON"),
    ("[]", "row 2: Input should be an object"),
    (json.dumps({**ROWS[1], "entry_point": None}), "row 2, field 'entry_point'"),
    (json.dumps({**ROWS[1], "entry_point": "a b"}), "row 2, field 'entry_point'"),
    (
        json.dumps({key: value for key, value in ROWS[1].items() if key != "test"}),
        "row 2, field 'test': Field required",
    ),
    (json.dumps({**ROWS[1], "test": "def check(:"}), "row 2, field 'test': not Python"),
    (json.dumps({**ROWS[1], "canonical_solution": "  return"}), "row 2, field 'canonical_solution': not Python"),
    (json.dumps({**ROWS[1], "entry_point": "other"}), "row 2: task 'humanevalpack/Python/1': entry"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD)
def test_bad_rows_are_located_and_the_rest_loads_where_asked(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(ROWS[0]), line, json.dumps(ROWS[2])]))
    with pytest.raises(TaskError, match=f"rows.jsonl, {complaint}"):
        load_humanevalpack(path=path)
    with pytest.warns(UserWarning, match=f"left out: rows.jsonl, {complaint}"):
        tasks = load_humanevalpack(path=path, skip_bad=True)
    assert [task.id for task in tasks] == ["humanevalpack/Python/0", "humanevalpack/Python/2"]


def test_an_id_that_comes_twice_is_told(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(ROWS[0])] * 2))
    with pytest.raises(TaskError, match="'humanevalpack/Python/0' occurs twice"):
        load_humanevalpack(path=path)


def test_from_the_hubs_cache_and_without_it(tmp_path):
    """The hub's own library reads a cache of its own layout, without network; with nothing there, the user is told."""
    snapshot = tmp_path / "hub" / "datasets--bigcode--humanevalpack"
    folder = snapshot / "snapshots" / ("a" * 40) / "data" / "python" / "data"
    folder.mkdir(parents=True)
    (folder / "humanevalpack.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (snapshot / "refs").mkdir()
    (snapshot / "refs" / "main").write_text("a" * 40)
    script = (
        "from agentgym_rtmc.environments.code_repair.humanevalpack import load_humanevalpack as load\n"
        "print(load().splits)\nfor options in ({'hub': 'no/where'}, {'hub': 'a b'}):\n"
        "    try:\n        load(**options)\n    except Exception as error:\n        print(type(error).__name__, error)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    first, second, third = done.stdout.splitlines()
    assert first == "{'test': 1}"
    assert second.startswith("TaskError ") and "path=FILE.jsonl" in second
    assert third.startswith("ConfigError hub = 'a b'")


def test_examples_are_read():
    assert visible_tests("", "f") == visible_tests("x = 1", "f") == visible_tests("def check(:", "f") == ""
    text = visible_tests("def check(candidate):\n    import math\n    assert candidate(1) == 2\ncheck(f)", "f")
    assert text == "def test_1():\n    assert f(1) == 2"


def test_reference_and_nothing(sandboxed, file):
    env = CodeRepairEnv(task_set="humanevalpack", split="test", task_options={"path": str(file)})
    for task in load_humanevalpack(path=file):
        observation, _ = env.reset(seed=0, options={"task": task})
        total = 0.0
        for action in players.reference(task, observation, np.random.default_rng(0)):
            observation, reward, *_, info = env.step(action)
            total += reward
        assert total == 1.0 and list(info["files"]) == ["m.py"]
        env.reset(seed=0, options={"task": task})
        assert env.step("```sh\nsubmit\n```")[1] == 0.0
    env.close()


def test_the_reference_rewrites_what_an_edit_would_be_long_for(file):
    first, _, third = load_humanevalpack(path=file)
    assert "sed -zi" in players.repair_command(first)
    longer = third.model_copy(update={"public": {**third.public, "source": "def distance(a, b):\n    pass\n"}})
    command = players.repair_command(longer)
    assert command.startswith("cat > m.py <<'END'\nimport math\n") and command.endswith("\nEND\npython t.py")


def test_the_demonstrator_plays(sandboxed, file):
    task = next(iter(load_humanevalpack(path=file)))
    env = CodeRepairEnv()
    rewards = []
    for seed in range(6):
        observation, _ = env.reset(seed=seed, options={"task": task})
        acting = players.demonstrator(task, observation, np.random.default_rng(seed), hint=0.5)
        action, over = next(acting), False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            if not over:
                action = acting.send(observation)
        rewards.append(reward)
    assert 0 < sum(rewards) < 6
    env.close()


def test_the_environment_keeps_its_contract(sandboxed, sh, file):
    actions = [sh(c) for c in ("cat m.py t.py", "python t.py", "git log -p --all; git status", "submit")]
    options = {"task_set": "humanevalpack", "split": "test", "task_options": {"path": str(file)}}
    check_agent_env(ENV_ID, actions=actions, **options)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_at_once(sandboxed, sh, file, mode):
    extra = {} if mode == "sync" else {"vector_kwargs": {"shared_memory": False}}
    options = {"task_set": "humanevalpack", "split": "test", "task_options": {"path": str(file)}}
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, **options, **extra)
    try:
        observations, _ = envs.reset(seed=[3, 4])
        assert all("files: harness.py m.py t.py" in text for text in observations)
        assert list(envs.step([sh("submit")] * 2)[2]) == [True, True]
    finally:
        envs.close()


def test_neither_the_original_nor_the_tests_are_to_be_found(play, file):
    """In the agent's sandbox: its whole file system, git's history and everything that can be imported."""
    task = next(iter(load_humanevalpack(path=file)))
    found = "cat > /tmp/want <<'END'\nif x > best:\ncandidate([4, 9, 2])\nEND\n"
    found += "grep -rFl -f /tmp/want / --exclude-dir=proc --exclude-dir=sys --exclude=want 2>/dev/null; echo searched"
    _, seen = play(found, "git log --all --oneline; python -c 'import agentgym_rtmc' 2>&1 | tail -1", task=task)
    assert seen[0] == "searched\n[nothing changed]"
    assert seen[1] == "0000000 Start"[:0] + seen[1][:7] + " Start\nModuleNotFoundError: No module named 'agentgym_rtmc'"


# -- the public rows ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public(shared_data):
    """The 164 public rows."""
    path = shared_data / "tasks" / "humanevalpack_python.jsonl"
    if not path.is_file():
        pytest.skip("no humanevalpack_python.jsonl among the shared data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_humanevalpack(path=path)


def test_all_public_rows_load(public):
    assert public.splits == {"test": 164}
    assert sum(bool(task.public["tests"]) for task in public) == 157  # seven rows bring no examples that can be read
    for task in public:
        assert json.dumps(task.private["original"])[1:-1] not in json.dumps(task.public)


# Loops, chance, helper functions, tolerances, self-comparison, recursion, `is`, an endless loop as the bug.
KINDS_OF_TESTS = (0, 2, 4, 32, 33, 38, 44, 50, 53, 72, 129, 151)


@pytest.mark.parametrize("number", KINDS_OF_TESTS)
def test_public_rows_of_every_kind_are_judged(sandboxed, public, number):
    task = public.task(f"humanevalpack/Python/{number}")
    assert judge(task, str(task.private["original"]).encode()).solved
    assert not judge(task, str(task.public["source"]).encode()).solved


@pytest.mark.full
def test_all_public_rows_are_judged(sandboxed, public):
    for task in public:
        assert judge(task, str(task.private["original"]).encode()).solved, task.id
        assert not judge(task, str(task.public["source"]).encode()).solved, task.id


@pytest.mark.full
def test_public_examples_pass_with_the_original(sandboxed, public, sh):
    """`t.py` really run, with original and buggy program: the one passes all, and most bugs are seen."""
    env = CodeRepairEnv(max_turns=3)
    seen = 0
    for task in public:
        if task.public["tests"]:
            env.reset(options={"task": task})
            before = env.step(sh("python t.py"))[4].get("tests")  # None: it was killed
            _, *_, after = env.step(sh(f"cat > m.py <<'END'\n{task.private['original']}\nEND\npython t.py"))
            assert after["tests"]["passed"] == after["tests"]["total"], task.id
            seen += before is None or before["passed"] < before["total"]
    assert seen > 120
    env.close()
