"""The built-in task set: splits, distinctness, and the proof that each task is one."""

import ast
import json
import random
import re
from collections import Counter

import pytest

from agentgym_rtmc.environments.code_repair import build, builtin
from agentgym_rtmc.environments.code_repair.builtin import SELECTIONS, SPLITS, TEST, VALIDATION, load_builtin
from agentgym_rtmc.environments.code_repair.cases import same
from agentgym_rtmc.environments.code_repair.corpus import Program, load_programs
from agentgym_rtmc.environments.code_repair.mutations import Edit, find_edits
from agentgym_rtmc.environments.code_repair.workspace import visible_tests
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.registration import load_task_set
from agentgym_rtmc.tasks import Task

TASKS = load_builtin()


def alpha_normal(source):
    """The program with every name it binds replaced by a number, in order of appearance; written apart from ours."""
    tree = ast.parse(source)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    numbers = {}

    class Renamer(ast.NodeTransformer):
        def number(self, name):
            return f"v{numbers.setdefault(name, len(numbers))}" if name in bound else name

        def visit_Name(self, node):
            node.id = self.number(node.id)
            return node

        def visit_Attribute(self, node):
            self.generic_visit(node)
            node.attr = self.number(node.attr)
            return node

        def visit_arg(self, node):
            node.arg = self.number(node.arg)
            return node

        def visit_FunctionDef(self, node):
            node.name = self.number(node.name)
            self.generic_visit(node)
            return node

    return ast.unparse(Renamer().visit(tree))


def test_size_and_splits():
    assert tuple(TASKS.splits) == SPLITS
    assert TASKS.splits["train"] >= 2000
    assert all(TASKS.splits[split] >= 200 for split in TEST)
    assert all(TASKS.splits[split] >= 100 for split in VALIDATION)
    programs = load_programs()
    assert len(programs) >= 60
    assert {program.topic for program in programs} >= {
        "strings", "numbers", "collections", "dates", "parsing", "graphs", "classes", "recursion", "machines",
    }  # fmt: skip
    families = {split: {task.public["family"] for task in TASKS.split(split)} for split in (*SPLITS, *SELECTIONS)}
    assert families["instances"] <= families["train"] and len(families["instances"]) > 80
    apart = [families[split] for split in ("train", "heldout", "families", "handwritten")]
    assert sum(map(len, apart)) == len(set().union(*apart)) == len(programs)


def test_validation_and_test_have_no_program_in_common():
    kinds = [("instances_validation", "instances_test"), ("heldout", "families")]
    for validation, test in (*kinds, ("handwritten_validation", "handwritten_test"), ("validation", "test")):
        ours, theirs = ({task.public["family"] for task in TASKS.split(split)} for split in (validation, test))
        assert ours and theirs and not ours & theirs, (validation, test)
    for name, parts in SELECTIONS.items():
        assert [task.id for task in TASKS.split(name)] == [task.id for part in parts for task in TASKS.split(part)]
    few = load_builtin(families=30)
    ids = {task.id: split for split in SPLITS for task in TASKS.split(split)}
    assert all(ids[task.id] == split for split in SPLITS[1:] for task in few.split(split))


def test_loading_is_deterministic_and_takes_options():
    again = load_builtin()
    assert [task.model_dump() for task in again] == [task.model_dump() for task in TASKS]
    few = load_task_set("agentgym_rtmc/CodeRepair-v0", "builtin", limit=50, renamed=0.0)
    assert set(few.splits.values()) == set(few.selections.values()) == {50}
    assert len({task.public["family"] for task in few.split("train")}) > 30
    by_id = {task.id: task for task in TASKS}
    assert {task.id for task in few} <= set(by_id)
    with pytest.raises(ConfigError, match="limit"):
        load_builtin(limit=0)
    with pytest.raises(ConfigError, match="renamed"):
        load_builtin(renamed=1.5)


def test_tasks_are_plain_data_that_does_not_name_the_bug():
    for task in TASKS:
        assert Task.model_validate_json(task.model_dump_json()) == task
        public = json.dumps(task.public)
        assert task.private["operator"] not in task.id and task.private["original"] not in public
        for call, value in task.public["visible"]:
            place = task.private["calls"].index(call)
            assert task.private["expected"][place] == value
        assert len(task.public["visible"]) < len(task.private["calls"])
        assert task.public["source"] != task.private["original"]
        assert 5 <= len(task.private["original"].splitlines()) <= 40


def test_instances_differ_from_training_up_to_names():
    trained = {alpha_normal(task.public["source"]) for task in TASKS.split("train")}
    fresh = [alpha_normal(task.public["source"]) for task in TASKS.split("instances")]
    assert not trained & set(fresh)
    assert len(set(fresh)) == len(fresh)
    sources = [task.public["source"] for task in TASKS]
    assert len(set(sources)) == len(sources)


def test_ten_kinds_of_bugs_are_in_every_split():
    for split in ("train", *SELECTIONS, "heldout", "families"):
        kinds = Counter(task.private["operator"] for task in TASKS.split(split))
        assert len(kinds) >= 10, (split, kinds)
        assert max(kinds.values()) < 0.35 * len(TASKS.split(split))


def test_names_vary_in_generated_splits_only():
    def renamed(split):
        tasks = TASKS.split(split)
        return sum(task.private["calls"][0][0] != task.public["family"] for task in tasks) / len(tasks)

    assert 0.2 < renamed("train") < 0.6 and 0.2 < renamed("families") < 0.6
    assert renamed("handwritten") == 0
    assert len({task.public["source"] for task in load_builtin(renamed=1.0).split("train")}) == TASKS.splits["train"]


def prove(tasks):
    """Run original and mutant of each task: the one is all right, the other fails a visible and a hidden case."""
    jobs = [
        (text, task.private["calls"]) for task in tasks for text in (task.private["original"], task.public["source"])
    ]
    answers = list(build.run_batches(jobs))
    for number, task in enumerate(tasks):
        right = [same(a, b) for a, b in zip(task.private["expected"], answers[2 * number], strict=True)]
        assert all(right), (task.id, answers[2 * number])
        kept = [same(a, b) for a, b in zip(task.private["expected"], answers[2 * number + 1], strict=True)]
        visible = [task.private["calls"].index(call) for call, _ in task.public["visible"]]
        hidden = [place for place in range(len(kept)) if place not in visible]
        assert not all(kept[place] for place in visible), task.id
        assert not all(kept[place] for place in hidden), task.id


def test_some_tasks_of_every_split_are_proven_again(sandboxed):
    prove(list(load_builtin(limit=30)))


def test_the_visible_tests_themselves_tell_mutant_and_original_apart(sandboxed):
    """`t.py` really run: one line each, a failing case for the mutant, a pass for the original."""
    tasks = list(load_builtin(limit=16))
    with LocalSandbox() as sandbox:
        for number, task in enumerate(tasks):
            for kind, text in (("mutant", task.public["source"]), ("original", task.private["original"])):
                sandbox.write(f"{kind}{number}/m.py", text.encode())
                sandbox.write(f"{kind}{number}/t.py", visible_tests(task.public["visible"]).encode())
        command = f"for i in $(seq 0 {len(tasks) - 1}); do python mutant$i/t.py; python original$i/t.py; done"
        lines = sandbox.exec(["sh", "-c", command], timeout=200.0, merge=True).stdout.splitlines()
    assert len(lines) == 2 * len(tasks)
    for task, mutant, original in zip(tasks, lines[::2], lines[1::2], strict=True):
        assert re.match(r"[0-5]/6 FAIL ", mutant), (task.id, mutant)
        assert original == "6/6 PASS", (task.id, original)


@pytest.mark.full
def test_all_tasks_are_proven_again(sandboxed):
    prove(list(TASKS))


@pytest.mark.full
def test_the_manifest_is_what_the_programs_give(sandboxed, tmp_path):
    build.write_manifest(tmp_path / "manifest.json")
    assert (tmp_path / "manifest.json").read_text() == build.manifest_path().read_text()


def test_building_proves_and_refuses(sandboxed):
    program = Program(
        name="double",
        topic="numbers",
        use="train",
        about="twice a number",
        source="def double(n):\n    if n < 0:\n        return 2 * n\n    return n + n\n",
        inputs=("int(-9, 9)",),
    )
    [row] = build.prove(build.make_forms(program)[:1])
    assert len(row["visible"]) == build.VISIBLE and row["edits"]
    texts = [Edit(*edit).apply(row["source"]) for edit in row["edits"]]
    # `n <= 0` is the same program: 2 * 0 = 0 + 0.
    assert not any("n <= 0" in text for text in texts)
    assert any("n <= 0" in edit.apply(row["source"]) for edit in find_edits(row["source"]))
    broken = program.model_copy(update={"source": "def double(n):\n    return 1 // n\n"})
    with pytest.raises(TaskError, match="double"):
        list(build.prove(build.make_forms(broken)))


def test_visible_tests_are_chosen_to_catch():
    calls = [["f", [n]] for n in range(10)]
    kills = [frozenset({3}), frozenset({3, 4}), frozenset({7}), frozenset({8, 9})]
    chosen = build.choose_visible(calls, kills)
    assert len(chosen) == build.VISIBLE and {3, 7} <= set(chosen) and set(chosen) & {8, 9}
    assert len(build.choose_visible(calls[:4], kills[:1])) == 3


def test_chosen_edits_spread_over_operators():
    edits = [Edit(n, n + 1, "x", "compare") for n in range(30)] + [Edit(40, 41, "y", "boolean")]
    kept = build.choose_edits(edits, "train", random.Random(1))
    assert Counter(edit.operator for edit in kept) == {"compare": build.PER_OPERATOR["train"], "boolean": 1}


def test_a_stale_manifest_is_refused(monkeypatch):
    builtin.read_manifest.cache_clear()
    monkeypatch.setattr(builtin, "corpus_digest", lambda: "another")
    with pytest.raises(TaskError, match=r"run python -m agentgym_rtmc\.environments\.code_repair\.build"):
        load_builtin()
    monkeypatch.undo()
    builtin.read_manifest.cache_clear()


@pytest.mark.parametrize("source", ["# comment\ndef f(): pass", 'def f(x):\n    return f"{x}"', "é = 1"])
def test_programs_that_names_cannot_be_replaced_in_are_refused(source):
    with pytest.raises(ValueError, match="plain ASCII"):
        Program(name="f", topic="numbers", use="train", about="", source=source)
