"""Tests and program in one process: twins are wrong for every right program, and tests that need it can be judged."""

import ast

import pytest

from agentgym_rtmc.environments.code_repair.asserts import together
from agentgym_rtmc.environments.code_repair.asserts.tests import HiddenTests
from agentgym_rtmc.environments.code_repair.asserts.twins import MOST_TWINS, disarmed, find_assertions
from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.grading import MEMO, judge
from agentgym_rtmc.environments.code_repair.verdicts import Verdict
from agentgym_rtmc.errors import TaskError

REFERENCE = """
class Stack:
    def __init__(self, items=()):
        self.items = list(items)

    def push(self, item):
        self.items.append(item)
        return self

    def pop(self):
        return self.items.pop()

    def __eq__(self, other):
        return isinstance(other, Stack) and self.items == other.items

def apply(function, xs):
    return [function(x) for x in xs]
"""
HIDDEN = """
import pytest

def test_stack():
    stack = Stack()
    assert stack.push(1).push(2).pop() == 2
    assert len(stack.items) == 1
    assert stack == Stack([1])
    with pytest.raises(IndexError):
        Stack().pop()

class TestApply:
    def test_callback(self):
        seen = []
        assert apply(lambda x: seen.append(x) or x + 1, [1, 2]) == [2, 3]
        assert seen == [1, 2]
"""


@pytest.fixture(autouse=True)
def forgetful():
    MEMO.clear()


def a_task(hidden=HIDDEN, reference=REFERENCE, entry=("Stack", "apply")):
    return make_task(
        "t", files={"m.py": "x = 1\n"}, reference=reference, visible="", hidden=hidden, entry=entry, mode="together"
    )


def test_classes_and_callbacks_are_judged(sandboxed):
    task = a_task()
    assert judge(task, REFERENCE.encode()) == Verdict(5, 5)
    another = REFERENCE.replace("[function(x) for x in xs]", "list(map(function, xs))")
    assert judge(task, another.encode()).solved
    for old, new in (
        ("items.pop()", "items.pop(0)"),
        ("function(x)", "x"),
        ("return isinstance", "return not isinstance"),
    ):
        assert not judge(task, REFERENCE.replace(old, new).encode()).solved, old
    assert not judge(task, REFERENCE.replace("return self.items.pop()", "pass").encode()).solved


def test_kept_apart_these_tests_are_refused(sandboxed):
    with pytest.raises(TaskError, match="no function Stack"):
        make_task("t", files={"m.py": ""}, reference=REFERENCE, visible="", hidden=HIDDEN, entry=["Stack"])


def values(text, space):
    """Whether the tests' one assertion in force holds: (real, each twin, the inverse)."""

    def holds(source):
        names = dict(space)
        try:
            exec(source, names)
        except AssertionError:
            return False
        return True

    [assertion] = find_assertions(text, ["f"])
    return holds(assertion.real), [holds(twin) for twin in assertion.twins], holds(assertion.inverse)


class Any:
    """Equal to everything, less, greater, and in everything."""

    def answer(self, *unused):
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = answer
    __hash__ = None

    def __sub__(self, other):
        return self

    def __abs__(self):
        return self


ASSERTIONS = [
    "assert f(2) == 4",
    "assert 4 == f(2)",
    "assert f(2) == 2 * 2, 'message'",
    "assert f(-1) == -1 * -1",
    "assert f(2) is 4",
    "assert tuple([f(2), f(3)]) == tuple([4, 9])",
    "assert [f(2)] == [4]",
    "assert {'a': f(2)} == {'a': 4}",
    "assert [] == [f(x) for x in []]",
    "want = [4, 9]\nassert [f(2), f(3)] == want",
    "assert abs(f(2) - 4.0) < 1e-6",
    "import math\nassert math.fabs(4 - f(2)) <= 0.001",
    "assert f(2) in (4, 5)",
    "assert f(2) in [4]",
    "assert f(2) > 3",
    "assert f(2) != 5",
    "assert f(2) not in (1, 2)",
    "assert f(2)",
    "assert not f(0)",
    "assert f(2) and f(3)",
    "assert f(2) == 4 and f(3) == 9",
    "assert f(2) == 4 or f(2) == 5",
    "assert str(f(2)) == '4'",
    "assert (f(2) == 4) == True",
    "assert f(2) == f(-2)",
    "assert 3 < f(2) < 5",
    "for x in range(3):\n    assert f(x) == x * x",
    "é = 'äöü'\nassert (é, f(2)) == ('äöü', 4)",
]


# Nothing to be told by a constant, or an object equal to everything fails the test itself.
UNGUARDED = ("f(-2)", "x * x", "[] ==", "str(", " or ", "True", "fabs")


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("text", ASSERTIONS)
def test_a_right_program_passes_the_real_one_and_fails_every_twin(text):
    for _ in range(5):
        real, twins, inverse = values(text, {"f": lambda x: x * x})
        assert real and not inverse and not any(twins)


GUARDED = [text for text in ASSERTIONS if any(word in text for word in ("==", "abs", "in ("))]
GUARDED = [text for text in GUARDED if not any(word in text for word in (*UNGUARDED, "not"))]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("text", GUARDED)
def test_an_object_equal_to_everything_passes_a_twin(text):
    real, twins, _ = values(text, {"f": lambda x: Any()})
    assert real and any(twins)


def test_each_part_of_an_answer_is_guarded():
    real, twins, inverse = values("assert f(0) == [1, 2, 3]", {"f": lambda x: [1, 2, Any()]})
    assert real and twins.count(True) == 1 and not inverse
    [assertion] = find_assertions(f"assert f(0) == {list(range(50))}", ["f"])
    assert len(set(assertion.twins)) == MOST_TWINS


def test_a_constant_is_changed_only_where_one_value_is_right():
    """`f(2) > 3` may be met by many programs; a twin `f(2) > 4` would refuse some of them."""
    for text in ("assert f(2) > 3", "assert f(2) >= 3", "assert f(2) == 4 or f(2) == 5", "assert f(2) not in (1, 2)"):
        [assertion] = find_assertions(text, ["f"])
        assert not assertion.twins
    [assertion] = find_assertions("assert f(2) in (3, 4)", ["f"])
    numbers = [node.value for node in ast.walk(ast.parse(assertion.twins[0])) if isinstance(node, ast.Constant)]
    assert all(number == 2 or number > 1000 for number in numbers)


def test_arguments_of_the_program_are_left_alone():
    [assertion] = find_assertions("assert f(123456) == 4", ["f"])
    assert all("123456" in twin for twin in assertion.twins)


def test_only_one_assertion_is_in_force_and_all_are_evaluated():
    text = "assert f(1) == 1\n\ndef test():\n    assert f(2) == 4\n    assert f(3) == 9\n"
    found = find_assertions(text, ["f"])
    assert len(found) == 3
    for assertion in found:
        assert assertion.real.count("assert ") == 1 and all(f"f({n})" in assertion.real for n in (1, 2, 3))
    assert "assert" not in disarmed(text) and "f(2) == 4" in disarmed(text)


def test_twins_are_proven(sandboxed):
    task = a_task()
    hidden = HiddenTests.of(task.id, task.private)
    families = together.find_families(task.id, hidden.model_dump_json())
    assert [len(family.twins) for family in families] == [1, 1, 1, 2, 2]
    for family in families:
        assert together.run_together(hidden, REFERENCE, family.real) == []
        for twin in family.twins:
            [reason] = together.run_together(hidden, REFERENCE, twin)
            assert reason.startswith("AssertionError")


@pytest.mark.parametrize(
    ("hidden", "complaint"),
    [
        ("def test_a():\n    assert apply(abs, [-1]) == [2]\n", "reference fails its tests: AssertionError"),
        ("def test_a():\n    apply(abs, [1])\n", "plain `assert`s"),
    ],
)
def test_tests_that_prove_nothing_are_refused(sandboxed, hidden, complaint):
    with pytest.raises(TaskError, match=complaint):
        judge(a_task(hidden), REFERENCE.encode())


def test_nobody_inside_knows_which_run_is_which(sandboxed, monkeypatch):
    """Real and twin come in random order, each in a sandbox of its own, and differ in one place of the tests alone."""
    requests = []
    real = together.run_script

    def watched(module, needs, request, *rest):
        requests.append(request)
        return real(module, needs, request, *rest)

    task = a_task("def test_a():\n    assert apply(abs, [-1, 2]) == [1, 2]\n")
    together.find_families(task.id, HiddenTests.of(task.id, task.private).model_dump_json())
    monkeypatch.setattr(together, "run_script", watched)
    firsts = set()
    for number in range(12):
        requests.clear()
        program = REFERENCE + f"n = {number}\n"
        assert judge(task, program.encode()).solved
        assert len(requests) == len(set(requests)) == 5
        firsts.add("== [1, 2]" in requests[0])
    assert firsts == {True, False}
