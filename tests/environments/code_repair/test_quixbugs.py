"""The task set `quixbugs`: a small folder of our own programs in that repository's layout."""

import json

import gymnasium
import numpy as np
import pytest

from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.code_repair import players
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.code_repair.grading import judge
from agentgym_rtmc.environments.code_repair.quixbugs import load_quixbugs
from agentgym_rtmc.environments.code_repair.verdicts import Verdict
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.registration import load_task_set

ENV_ID = "agentgym_rtmc/CodeRepair-v0"
NODE = """
class Node:
    def __init__(self, value=None, successor=None, successors=[]):
        self.value = value
        self.successor = successor
        self.successors = successors
"""
EVENS = '''
def evens(xs):
    for x in xs:
        if x % 2 == 0:
            yield x


"""
Even Numbers
evens

Input:
    xs: numbers
"""
'''
PAIRS = "def pairs(n):\n    return [(k, k + 1) for k in range(n)]\n"
HALF = "def half(x, close):\n    return x / 2\n"
LAST = "def last(node):\n    while node.successor:\n        node = node.successor\n    return node\n"
REACH = """
def reach(node, goal):
    seen = set()

    def search(node):
        if node in seen:
            return False
        seen.add(node)
        return node is goal or any(search(other) for other in node.successors)

    return search(node)
"""


def uses(name):
    """The head of a test file, as that repository writes it."""
    return f"""import pytest
from node import Node

if pytest.use_correct:
    from correct_python_programs.{name} import {name}
else:
    from python_programs.{name} import {name}

"""


FILES = {
    "README.md": "not a program",
    "python_programs/__init__.py": "",
    "python_programs/node.py": NODE,
    "python_programs/evens.py": EVENS.replace("== 0", "== 1"),
    "correct_python_programs/evens.py": EVENS,
    "json_testcases/evens.json": "[[[1, 2, 4]], [2, 4]]\n[[[]], []]\n[[[7, 6]], [6]]\n\n[[[8]], [8]]\n",
    "python_programs/pairs.py": PAIRS.replace("k + 1", "k + 2"),
    "correct_python_programs/pairs.py": PAIRS,
    "json_testcases/pairs.json": "[2, [[0, 1], [1, 2]]]\n[1, [[0, 1]]]\n",
    "python_programs/half.py": HALF.replace("/ 2", "/ 3"),
    "correct_python_programs/half.py": HALF,
    "json_testcases/half.json": "[[5, 0.1], 2.55]\n[[Infinity, 0.1], Infinity]\n[[0.2, 0.01], 0.1]\n",
    "python_testcases/test_half.py": """import pytest
from load_testdata import load_json_testcases

if pytest.use_correct:
    from correct_python_programs.half import half
else:
    from python_programs.half import half

testdata = load_json_testcases(half.__name__)


@pytest.mark.parametrize("input_data,expected", testdata)
def test_half(input_data, expected):
    if expected == 0.1 and not pytest.run_slow:
        pytest.skip("takes long")
    assert half(*input_data) == pytest.approx(expected, abs=input_data[-1])
""",
    "python_programs/last.py": LAST.replace("node.successor:", "node.successor.successor:"),
    "correct_python_programs/last.py": LAST,
    "python_testcases/test_last.py": uses("last")
    + """
def test1():
    \"\"\"A chain of three\"\"\"
    end = Node(3)
    result = last(Node(1, Node(2, end)))
    assert result == end
    assert result.value == 3


def test2():
    only = Node(1)
    assert last(only) is only


def test3():
    assert last(Node(1, Node(5))).value == 5
""",
    "python_programs/reach.py": REACH.replace("if node in seen", "if node not in seen"),
    "correct_python_programs/reach.py": REACH,
    "python_testcases/test_reach.py": uses("reach")
    + """
goal = Node("goal")
ring = Node("ring")
ring.successors = [ring, Node("x", None, [goal])]


def test1():
    assert reach(ring, goal)


def test2():
    assert not reach(goal, ring)
    assert reach(goal, goal)
""",
}


@pytest.fixture
def clone(tmp_path):
    """The folder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_programs_become_tasks(clone):
    tasks = load_quixbugs(path=clone)
    assert tasks.name == "quixbugs" and tasks.splits == {"test": 5}
    names = ["evens", "half", "last", "pairs", "reach"]
    assert [task.id for task in tasks] == [f"quixbugs/{name}" for name in names]
    assert [task.model_dump() for task in load_quixbugs(path=str(clone))] == [task.model_dump() for task in tasks]
    evens, half, last, _, reach = tasks
    assert evens.public["statement"] == "evens: Even Numbers" and last.public["statement"] == "last"
    assert "files" not in evens.public and list(reach.public["files"]) == ["node.py"]
    # Every other case or test is visible.
    assert evens.public["tests"].count("def test_") == 2 and "plain(evens([7, 6])) == [6]" in evens.public["tests"]
    assert "def test1" in last.public["tests"] and "def test2" not in last.public["tests"]
    assert "python_programs" not in last.public["tests"] and "from node import Node" in last.public["tests"]
    assert "[[5, 0.1], 2.55]" in half.public["tests"] and "inf" not in half.public["tests"].partition("lambda")[2]
    for task in tasks:
        assert json.dumps(task.private["original"])[1:-1] not in json.dumps(task.public)


@pytest.mark.parametrize(("name", "total"), [("evens", 5), ("half", 4), ("last", 4), ("pairs", 3), ("reach", 3)])
def test_every_kind_of_tests_is_judged(sandboxed, clone, name, total):
    task = load_quixbugs(path=clone).task(f"quixbugs/{name}")
    assert judge(task, str(task.private["original"]).encode()) == Verdict(total, total)
    assert not judge(task, str(task.public["source"]).encode()).solved


def test_other_right_programs_are_right(sandboxed, clone):
    tasks = load_quixbugs(path=clone)
    assert judge(tasks.task("quixbugs/evens"), b"def evens(xs):\n    return [x for x in xs if not x % 2]\n").solved
    assert judge(tasks.task("quixbugs/half"), b"def half(x, close):\n    return x / 2 + close / 3\n").solved
    assert not judge(tasks.task("quixbugs/half"), b"def half(x, close):\n    return x / 2 + 2 * close\n").solved
    recursive = b"def last(node):\n    return last(node.successor) if node.successor else node\n"
    assert judge(tasks.task("quixbugs/last"), recursive).solved
    copies = b"from node import Node\ndef last(node):\n    while node.successor:\n        node = node.successor\n    return Node(node.value)\n"  # noqa: E501
    assert not judge(tasks.task("quixbugs/last"), copies).solved


def test_reference_and_visible_tests(sandboxed, clone, sh):
    env = CodeRepairEnv()
    for task in load_quixbugs(path=clone):
        observation, _ = env.reset(seed=0, options={"task": task})
        before = env.step(sh("python t.py"))[4]["tests"]
        assert before["passed"] < before["total"], task.id
        acting = players.reference(task, observation, np.random.default_rng(0))
        observation, *_ = env.step(next(acting))
        assert observation.endswith("PASS"), (task.id, observation)
        assert env.step(acting.send(observation))[1] == 1.0
        env.reset(seed=0, options={"task": task})
        assert env.step(sh("submit"))[1] == 0.0
    env.close()


def remove(clone, name):
    (clone / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda c: remove(c, "correct_python_programs/evens.py"), "correct_python_programs/evens.py cannot be read"),
        (lambda c: remove(c, "json_testcases/evens.json"), "python_programs/evens.py has no tests"),
        (lambda c: (c / "json_testcases/evens.json").write_text("[[1], [2]]\n{"), "evens.json, row 2: not JSON"),
        (lambda c: (c / "json_testcases/evens.json").write_text("\n[1]"), "evens.json, row 2: a case is a list"),
        (lambda c: (c / "python_testcases/test_evens.py").write_text("assert ("), "test_evens.py, line 1"),
        (lambda c: (c / "correct_python_programs/evens.py").write_text("odds = 3"), "no function evens"),
        (lambda c: (c / "python_programs/evens.py").write_bytes(b"\xff"), "python_programs/evens.py cannot be read"),
    ],
)
def test_bad_programs_are_located_and_the_rest_loads_where_asked(clone, spoil, complaint):
    spoil(clone)
    with pytest.raises(TaskError, match=complaint):
        load_quixbugs(path=clone)
    with pytest.warns(UserWarning, match=complaint):
        assert len(load_quixbugs(path=clone, skip_bad=True)) == 4


def test_missing_folders_are_told(clone, tmp_path):
    with pytest.raises(TaskError, match="has no folder python_programs"):
        load_quixbugs(path=tmp_path / "nowhere")
    remove(clone, "python_programs/node.py")
    with pytest.raises(TaskError, match=r"has no node\.py"):
        load_quixbugs(path=clone)


def test_the_environment_keeps_its_contract(sandboxed, sh, clone):
    options = {"task_set": "quixbugs", "split": "test", "task_options": {"path": str(clone)}}
    assert len(load_task_set(ENV_ID, "quixbugs", path=str(clone))) == 5
    check_agent_env(ENV_ID, actions=[sh(c) for c in ("cat m.py t.py", "python t.py", "submit")], **options)
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode="sync", **options)
    observations, _ = envs.reset(seed=[1, 2])
    assert all("t.py" in text for text in observations)
    envs.close()
