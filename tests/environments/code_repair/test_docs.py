"""docs/code_repair.md: its code runs, and its numbers are those of the code."""

import ast
import re
from pathlib import Path

from agentgym_rtmc.environments.code_repair.builtin import load_builtin
from agentgym_rtmc.environments.code_repair.corpus import load_programs
from agentgym_rtmc.environments.code_repair.grading import judge
from agentgym_rtmc.environments.code_repair.mutations import OPERATORS

HERE = Path(__file__).parent
TEXT = (HERE.parents[2] / "docs" / "code_repair.md").read_text(encoding="utf-8")


def test_code_makes_a_task_that_can_be_solved(sandboxed):
    [code] = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(code, "docs/code_repair.md", "exec"), names)
    task = names["task"]
    assert judge(task, str(task.private["original"]).encode()).solved
    assert not judge(task, str(task.public["source"]).encode()).solved


def test_sizes_are_those_of_the_set():
    tasks = load_builtin()
    said = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| \d+", TEXT, re.MULTILINE))
    assert {name: int(number) for name, number in said.items()} == tasks.splits
    families = dict(re.findall(r"^\| `(\w+)` \| \d+ \| (\d+)", TEXT, re.MULTILINE))
    for name, number in families.items():
        assert len({task.public["family"] for task in tasks.split(name)}) == int(number)
    assert f"mutants of {len(load_programs())} programs" in TEXT
    assert f"one of {len(OPERATORS)} operators" in TEXT
    assert f"all {len(tasks)} tasks are fine" in TEXT


def size_of(file, *names):
    """Number of entries of the dicts that a module assigns to some names."""
    tree = ast.parse((HERE / file).read_text())
    found = {
        node.targets[0].id: len(node.value.keys)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name)
    }
    return tuple(found[name] for name in names)


def test_attacks_are_as_many_as_is_said():
    workspace, programs = size_of("test_attacks.py", "WORKSPACE_ATTACKS", "PROGRAM_ATTACKS")
    winning, losing = size_of("test_assert_attacks.py", "WINNING", "LOSING")
    assert f"{workspace} on the workspace, {programs} by the program" in TEXT
    assert f"{winning + losing} more on assert code" in TEXT
    assert f"{winning} of the latter would win" in TEXT
