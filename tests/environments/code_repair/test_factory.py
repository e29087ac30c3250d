"""One function makes a task from files and tests; what is wrong with them is told by its name."""

import json

import pytest

from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.grading import judge
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

RIGHT = "from units import LIMIT\n\n\ndef clip(n):\n    return min(n, LIMIT)\n"
GOOD = {
    "files": {"m.py": RIGHT.replace("min", "max"), "units.py": "LIMIT = 9\n"},
    "reference": RIGHT,
    "visible": "def test_low():\n    assert clip(1) == 1\n",
    "hidden": "from units import LIMIT\n\n\ndef test_high():\n    assert clip(100) == LIMIT\n",
    "entry": ["clip"],
    "statement": "cut at the limit",
}


def test_a_task_has_two_parts(sandboxed):
    task = make_task("mine/clip", **GOOD, public={"family": "clip"})
    assert Task.model_validate_json(task.model_dump_json()) == task
    assert task == make_task("mine/clip", **GOOD, public={"family": "clip"})
    assert set(task.public) == {"family", "statement", "source", "tests", "files"}
    shown = json.dumps(task.public)
    assert "min(n" not in shown and "test_high" not in shown and "LIMIT = 9" in shown
    assert judge(task, RIGHT.encode()).solved and not judge(task, task.public["source"].encode()).solved


def test_modules_beside_the_program_come_from_the_task(play):
    """An agent may change them in its workspace; that changes nothing."""
    task = make_task("mine/clip", **GOOD)
    assert play("sed -i s/max/min/ m.py && python t.py", task=task)[0] == 1.0
    total, seen = play("python t.py; ls", "echo LIMIT = 1 > units.py; python t.py", task=task)
    assert total == 0.0 and seen[0].endswith("harness.py\nm.py\nt.py\nunits.py") and seen[0].startswith("0/1 FAIL")
    assert play("echo 'LIMIT = 100' > units.py; sed -i s/max/min/ m.py", task=task)[0] == 1.0
    assert play("mkdir units; echo 'LIMIT = 100' > units/__init__.py", task=task)[0] == 0.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"files": {}}, r"'bad': files lack m\.py"),
        ({"files": {"m.py": "", "sub/x.py": ""}}, "'sub/x' cannot stand beside m.py"),
        ({"files": {"m.py": "", "data.txt": ""}}, r"'data\.txt' cannot stand beside"),
        ({"files": {"m.py": "", "t.py": ""}}, "'t' cannot stand beside"),
        ({"files": {"m.py": "", "harness.py": ""}}, "'harness' cannot stand beside"),
        ({"files": {"m.py": "", "x.py": "def"}}, r"x\.py, line 1: invalid syntax"),
        ({"reference": "def clip(n):\nreturn 1"}, "reference, line 2: expected an indented block"),
        ({"visible": "assert ("}, "visible, line 1"),
        ({"hidden": "assert ("}, "hidden, line 1"),
        ({"hidden": "a\0"}, "hidden: source code string cannot contain null bytes"),
        ({"entry": []}, "entry: the reference has no function"),
        ({"entry": ["cut"]}, "entry: the reference has no function cut"),
        ({"mode": "elsewhere"}, "mode"),
        ({"id": ""}, "id"),
    ],
)
def test_wrong_arguments_are_told(change, complaint):
    with pytest.raises(TaskError, match=complaint):
        make_task(**{"id": "bad", **GOOD, **change})


def test_a_buggy_program_need_not_even_parse():
    assert make_task("bad", **{**GOOD, "files": {"m.py": "def clip(n) return n", "units.py": ""}})


@pytest.mark.parametrize(
    ("private", "complaint"),
    [
        ({"tests": "x = 1"}, "private original: Field required"),
        ({"tests": "x = 1", "original": "", "entry": []}, "private entry"),
        ({"tests": 3, "original": "", "entry": ["f"]}, "private tests"),
    ],
)
def test_private_parts_of_other_makers_are_checked(private, complaint):
    with pytest.raises(TaskError, match=complaint):
        judge(Task(id="x", private=private), b"")
