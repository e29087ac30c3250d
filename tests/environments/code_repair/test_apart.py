"""Tests and program in processes apart: whatever plain tests do works, and what cannot work is told."""

import pytest

from agentgym_rtmc.environments.code_repair.asserts import apart
from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.grading import MEMO, judge
from agentgym_rtmc.environments.code_repair.verdicts import Verdict
from agentgym_rtmc.errors import GradingError, SandboxError, TaskError

NODE = """
class Node:
    def __init__(self, value=None, after=None, others=None):
        self.value = value
        self.after = after
        self.others = others or []

    def total(self):
        return self.value + sum(other.total() for other in self.others)
"""


@pytest.fixture(autouse=True)
def forgetful():
    MEMO.clear()


@pytest.fixture
def verdict(sandboxed):
    """Judges a program (default: the reference) by hidden tests."""

    def run(reference, hidden, entry, program=None, **files):
        task = make_task(
            "t",
            files={"m.py": "x = 1\n", **{f"{name}.py": text for name, text in files.items()}},
            reference=reference,
            visible="",
            hidden=hidden,
            entry=entry,
        )
        return judge(task, (reference if program is None else program).encode())

    return run


def test_loops_chance_tolerance_and_helpers(verdict):
    reference = """
import math

def poly(xs, x):
    return sum(c * x ** n for n, c in enumerate(xs))

def root(xs):
    return -xs[0] / xs[1]
"""
    hidden = """
import random, copy

def check(root):
    for _ in range(20):
        xs = [random.randint(-9, 9), random.randint(1, 9)]
        assert math.fabs(poly(xs, root(copy.deepcopy(xs)))) < 1e-4

check(root)
"""
    assert verdict(reference, hidden, ["root"]) == Verdict(1, 1)
    # A program cannot bring helpers of its own: the tests use the reference's.
    cheat = "def poly(xs, x):\n    return 0\n\ndef root(xs):\n    return 0\n"
    assert verdict(reference, hidden, ["root"], cheat) == Verdict(0, 1)


def test_every_test_counts(verdict):
    reference = "def f(n):\n    return n * n\n"
    hidden = "".join(f"def test_{n}():\n    assert f({n}) == {n * n}\n" for n in range(4))
    # The text of the tests itself counts as one, which fails where it raises.
    assert verdict(reference, hidden, ["f"]) == Verdict(5, 5)
    assert verdict(reference, hidden, ["f"], "def f(n):\n    return n + n\n") == Verdict(3, 5)
    assert verdict(reference, hidden, ["f"], "def g(n):\n    return n\n") == Verdict(1, 5)


def test_exceptions_arrive_by_name(verdict):
    reference = "def f(n):\n    if n < 0:\n        raise ValueError('negative')\n    return n\n"
    hidden = """
import pytest
def test_raises():
    with pytest.raises(ValueError):
        f(-1)
def test_caught():
    try:
        f(-2)
    except ValueError:
        return
    assert False
"""
    assert verdict(reference, hidden, ["f"]).solved
    other = reference.replace("ValueError", "KeyError")
    assert verdict(reference, hidden, ["f"], other) == Verdict(1, 3)
    own = "class ValueError_(Exception):\n    pass\n" + reference.replace("ValueError", "ValueError_")
    assert verdict(reference, hidden, ["f"], own) == Verdict(1, 3)
    leaving = reference.replace("raise ValueError('negative')", "raise SystemExit(0)")
    assert verdict(reference, hidden, ["f"], leaving) == Verdict(1, 3)
    # StopIteration and the like are exceptions as others are; they end nothing here.
    assert verdict(reference, hidden, ["f"], reference.replace("ValueError", "StopIteration")) == Verdict(1, 3)


@pytest.mark.parametrize("name", ["UnicodeDecodeError", "OSError", "StopIteration", "RecursionError", "ExceptionGroup"])
def test_exceptions_of_every_kind_arrive(verdict, name):
    arguments = {"UnicodeDecodeError": "'utf-8', b'x', 0, 1, 'why'", "ExceptionGroup": "'why', [ValueError()]"}
    reference = f"def f():\n    raise {name}({arguments.get(name, '')})\n"
    wanted = "Exception" if name == "ExceptionGroup" else name
    hidden = f"import pytest\ndef test_f():\n    with pytest.raises({wanted}):\n        f()\n"
    assert verdict(reference, hidden, ["f"]).solved


@pytest.mark.parametrize("program", ["import os\ndef f(n):\n    os._exit(0)\n", "def f(n):\n    return object()\n"])
def test_no_answer_is_not_taken_for_an_exception(verdict, program):
    reference = "def f(n):\n    raise ValueError\n"
    hidden = "def test_f():\n    try:\n        f(1)\n    except Exception:\n        return\n    assert False\n"
    assert verdict(reference, hidden, ["f"]).solved
    assert verdict(reference, hidden, ["f"], program) == Verdict(1, 2)


def test_programs_may_use_chance(verdict):
    reference = "import random\n\ndef f(xs):\n    random.shuffle(xs)\n    return sorted(xs)\n"
    hidden = """
import random
def test_f():
    for _ in range(30):
        xs = [random.randint(0, 9) for _ in range(5)]
        assert f(list(xs)) == sorted(xs)
"""
    assert verdict(reference, hidden, ["f"]).solved
    assert verdict(reference, hidden, ["f"], "def f(xs):\n    return sorted(xs)\n").solved
    assert not verdict(reference, hidden, ["f"], "def f(xs):\n    return sorted(set(xs))\n").solved


def test_answers_may_lead_to_other_calls(verdict):
    """One call is made of another's answer; a program with a form of its own is asked again."""
    reference = "def pack(t):\n    return t[::-1]\n\ndef unpack(t):\n    return t[::-1]\n"
    hidden = "def test_back():\n    for word in ('abc', 'xyz'):\n        assert unpack(pack(word)) == word\n"
    other = "def pack(t):\n    return '<' + t + '>'\n\ndef unpack(t):\n    return t[1:-1]\n"
    assert verdict(reference, hidden, ["pack", "unpack"]).solved
    assert verdict(reference, hidden, ["pack", "unpack"], other).solved
    wrong = other.replace("t[1:-1]", "t[1:]")
    assert not verdict(reference, hidden, ["pack", "unpack"], wrong).solved


def test_answers_that_never_settle_fail(verdict):
    reference = "def follow(n):\n    return n\n"
    hidden = "def test_chain():\n    n = 0\n    for _ in range(50):\n        n = follow(n) + 1\n    assert n == 50\n"
    assert verdict(reference, hidden, ["follow"]).solved
    strange = "import itertools\ncount = itertools.count()\ndef follow(n):\n    return n + 100 * next(count)\n"
    assert not verdict(reference, hidden, ["follow"], strange).solved


def test_state_between_calls_and_keywords(verdict):
    reference = "seen = []\n\ndef note(x, *, twice=False):\n    seen.append(x)\n    return len(seen) * (1 + twice)\n"
    asserted = ("note('a') == 1", "note(x='b', twice=True) == 4", "note('c') == 3")
    hidden = "def test_state():\n" + "".join(f"    assert {one}\n" for one in asserted)
    assert verdict(reference, hidden, ["note"]).solved


def test_arguments_changed_in_place(verdict):
    reference = "def sort(xs):\n    xs.sort()\n"
    hidden = (
        "def test_sorts():\n    xs = [3, 1, 2]\n    ys = xs\n    assert sort(xs) is None\n    assert ys == [1, 2, 3]\n"
    )
    assert verdict(reference, hidden, ["sort"]).solved
    assert not verdict(reference, hidden, ["sort"], "def sort(xs):\n    return None\n").solved


def test_nodes_of_a_module_beside_the_program(verdict):
    reference = """
from node import Node

def reverse(node):
    before = None
    while node:
        node.after, before, node = before, node, node.after
    return before

def grow(node):
    node.others.append(Node(1))
    return node
"""
    hidden = """
from node import Node
last = Node(3)
first = Node(1, Node(2, last))

def test_reverse():
    head = reverse(first)
    assert head is last and head.after.after is first and first.after is None
    assert reverse(None) is None

def test_grow():
    node = Node(5)
    assert grow(node) is node and node.total() == 6

def test_search():
    assert reverse(Node(4)).value == 4
"""
    assert verdict(reference, hidden, ["reverse", "grow"], node=NODE) == Verdict(4, 4)
    wrong = reference.replace("return before", "return Node(3)")
    assert verdict(reference, hidden, ["reverse", "grow"], wrong, node=NODE).right < 4
    # Methods are the module's own, whatever the program does to the class where it runs.
    patched = "from node import Node\nNode.total = lambda self: 6\n" + reference.replace("Node(1)", "Node(2)")
    assert not verdict(reference, hidden, ["reverse", "grow"], patched, node=NODE).solved


def test_iterators_and_kinds_of_dicts(verdict):
    reference = "def count(n):\n    yield from range(n)\n\ndef letters(t):\n    return {c: t.count(c) for c in t}\n"
    hidden = "def test_both():\n    assert list(count(3)) == [0, 1, 2]\n    assert letters('aab') == {'a': 2, 'b': 1}\n"
    other = "from collections import Counter as letters\ndef count(n):\n    return iter(range(n))\n"
    assert verdict(reference, hidden, ["count", "letters"]).solved
    assert verdict(reference, hidden, ["count", "letters"], other).solved


def test_the_program_can_be_imported(verdict):
    reference = "LIMIT = 3\n\ndef f():\n    return 3\n"
    hidden = "import m\nfrom m import f as g, LIMIT\n\ndef test_names():\n    assert m.f() == g() == f() == LIMIT\n"
    assert verdict(reference, hidden, ["f"]).solved


def test_tests_that_disagree_with_their_reference_are_told(verdict):
    with pytest.raises(TaskError, match=r"'t': its own reference fails test test_f: AssertionError"):
        verdict("def f():\n    return 1\n", "def test_f():\n    assert f() == 2\n", ["f"])
    with pytest.raises(TaskError, match="fails its tests: ZeroDivisionError"):
        verdict("def f():\n    return 1\n", "1 / 0\n", ["f"])
    with pytest.raises(TaskError, match="never call f"):
        verdict("def f():\n    return 1\n", "def test_f():\n    assert True\n", ["f"])
    with pytest.raises(TaskError, match="function is not plain data"):
        verdict("def f(g):\n    return g(1)\n", "def test_f():\n    assert f(lambda x: x) == 1\n", ["f"])


def test_what_the_clock_stopped_is_tried_again(verdict, monkeypatch):
    reference = "def f():\n    return 1\n"
    hidden = "def test_f():\n    assert f() == 1\n"
    slow = "import time\ntime.sleep(1.5)\n" + reference
    monkeypatch.setattr(apart, "SECONDS", 1.0)
    assert verdict(reference, hidden, ["f"], slow).late
    monkeypatch.undo()
    assert verdict(reference, hidden, ["f"], slow).solved


def test_a_program_is_judged_once(verdict, monkeypatch):
    reference = "def f():\n    return 1\n"
    hidden = "def test_f():\n    assert f() == 1\n"
    assert verdict(reference, hidden, ["f"]).solved
    monkeypatch.setattr(apart, "run_script", None)
    assert verdict(reference, hidden, ["f"]).solved


def test_a_broken_machine_is_nobodys_fault(verdict, monkeypatch):
    from agentgym_rtmc.environments.code_repair.asserts import scripts

    class Broken(scripts.LocalSandbox):
        def exec(self, *arguments, **options):
            raise SandboxError("no more processes")

    monkeypatch.setattr(scripts, "LocalSandbox", Broken)
    with pytest.raises(GradingError, match="doctor"):
        verdict("def f():\n    return 2\n", "def test_f():\n    assert f() == 2\n", ["f"])
