"""Test functions without pytest: what is found, what the stand-in for pytest does, and what an agent sees."""

import math
import re

import pytest

from agentgym_rtmc.environments.code_repair.asserts import harness


def results(text):
    """Outcome by test of a module of tests."""
    space = {"__name__": "tests", "pytest": harness.stand_in()}
    exec(text, space)
    found = {}
    for name, test in harness.collect(space).items():
        try:
            found[name] = test() and None
        except Exception as error:  # noqa: BLE001
            found[name] = type(error).__name__
    return found


def test_functions_and_methods_are_found():
    text = """
def test_a(): pass
def helper(): 1 / 0
test_number = 3
class Testing:
    def test_b(self): assert self.value() == 1
    def test_fails(self): assert self.value() == 2
    def value(self): return 1
class Other:
    def test_no(self): 1 / 0
"""
    assert results(text) == {"test_a": None, "Testing.test_b": None, "Testing.test_fails": "AssertionError"}


def test_unittest_cases_run():
    text = """
import unittest
class Sums(unittest.TestCase):
    def setUp(self): self.n = 2
    def test_right(self): self.assertEqual(self.n + 2, 4)
    def test_wrong(self): self.assertEqual(self.n + 2, 5)
"""
    assert results(text) == {"Sums.test_right": None, "Sums.test_wrong": "AssertionError"}


def test_rows_are_multiplied():
    text = """
@pytest.mark.parametrize("a, b", [(1, 2), [3, 4]])
@pytest.mark.parametrize(["c"], [[5], [6]])
@pytest.mark.slow
@pytest.mark.timeout(3)
def test_rows(a, b, c): assert (a, b, c) != (3, 4, 6)
class TestRows:
    @pytest.mark.parametrize("n", [1, 2])
    def test_n(self, n): assert n == 1
"""
    found = results(text)
    assert list(found.values()).count(None) == 4 and len(found) == 6
    assert found["TestRows.test_n[1]"] == "AssertionError"


def test_raises_and_skip():
    text = """
def test_raises():
    with pytest.raises(ZeroDivisionError): 1 / 0
def test_other():
    with pytest.raises(KeyError): 1 / 0
def test_none():
    with pytest.raises(KeyError): pass
def test_skips():
    pytest.skip("not here")
    1 / 0
"""
    assert results(text) == {
        "test_raises": None,
        "test_other": "ZeroDivisionError",
        "test_none": "AssertionError",
        "test_skips": None,
    }


@pytest.mark.parametrize("options", [{}, {"abs": 0.1}, {"rel": 0.01}, {"rel": 1e-3, "abs": 1e-9}])
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1.0, 1.0), (1.0, 1.0 + 1e-7), (1.0, 1.001), (1.0, 1.05), (1.0, 1.2), (0.0, 1e-13), (0.0, 1e-5), (100, 100.5),
        ([1.0, 2.0], [1.0, 2.0000001]), ([1.0], [1.0, 2.0]), ((1.0,), [1.0]), ({"a": 1.0}, {"a": 1.00000001}),
        ({"a": 1.0}, {"b": 1.0}), (math.inf, math.inf), (math.inf, 1.0), (1.0, "1"), (1.0, None),
    ],
)  # fmt: skip
def test_approx_is_what_pytest_says(one, two, options):
    assert (two == harness.Approx(one, **options)) == (two == pytest.approx(one, **options))
    assert (two != harness.Approx(one, **options)) == (two != pytest.approx(one, **options))


EXAMPLES = "def test_1():\n    assert add(1, 2) == 3\n\n\ndef test_2():\n    total = add(2, 2)\n    assert total > 3\n"


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("def add(a, b):\n    return a + b", "2/2 PASS"),
        ("def add(a, b):\n    return a - b", "0/2 FAIL add(1, 2) == 3, got -1"),
        ("def add(a, b):\n    return 3", "1/2 FAIL total > 3, got 3"),
        ("def add(a, b):\n    return 1 // 0", "0/2 FAIL add(1, 2) == 3: ZeroDivisionError: integer division"),
        ("def add(a, b):\n    while True: pass", "0/2 FAIL add(1, 2) == 3: TimeoutError: endless loop"),
        ("while True: pass", "0/2 FAIL TimeoutError: endless loop"),
        ("def add(a, b) return", "0/2 FAIL SyntaxError: expected ':'"),
        ("import sys\nsys.exit(0)", "0/2 FAIL SystemExit: 0"),
        ("collect = run = types = _outcome = sys = None\ndef add(a, b):\n    return a + b", "2/2 PASS"),
        ("def test_mine():\n    assert False\ndef add(a, b):\n    return a + b", "2/2 PASS"),
        ("sub = 3", "0/2 FAIL add(1, 2) == 3: NameError: name 'add' is not defined"),
    ],
)
def test_an_agent_sees_one_line(env, sh, make_tested_task, program, shown):
    env.reset(options={"task": make_tested_task("apart", visible=EXAMPLES)})
    observation, *_, info = env.step(sh(f"cat > m.py <<'END'\n{program}\nEND\npython t.py"))
    assert observation.startswith(shown) and observation.count("\n") == observation.count("\n[nothing changed]")
    assert info["tests"] == {"passed": int(shown[0]), "total": 2}
    assert info["exit_code"] == (0 if "PASS" in shown else 1)


def test_the_workspace_of_tested_tasks(env, sh, make_tested_task):
    observation, info = env.reset(options={"task": make_tested_task("apart", visible=EXAMPLES)})
    assert observation == "m.py: add two numbers\nfiles: harness.py m.py t.py"
    assert info["files"] == {}
    assert re.fullmatch(r"\d+/2 FAIL", env.step(sh("python t.py -q"))[0])
    text = env.step(sh("cat t.py"))[0]
    assert text.startswith("import harness\n\nglobals().update(harness.names_of('m'))\n\n\ndef test_1():")
    assert env.step(sh("git status --short; ls"))[0] == "harness.py\nm.py\nt.py"
    assert env.step(sh("rm harness.py; git checkout -q . && sed -i 's/-/+/' m.py && python t.py"))[0] == "2/2 PASS"
    assert list(env.step(sh("pwd"))[4]["files"]) == ["m.py"]


def test_pytest_runs_them_too(env, sh, make_tested_task):
    text = EXAMPLES + "\n\ndef test_3():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n"
    env.reset(options={"task": make_tested_task("apart", visible="import pytest\n" + text)})
    observation, *_, info = env.step(sh("pytest -q t.py 2>&1 | tail -3"))
    if "not found" in observation or "No module" in observation:
        pytest.skip("pytest is not in the sandbox's root: it is not installed beside this project")
    assert info["tests"] == {"passed": 0, "total": 3}
    assert env.step(sh("sed -i 's/-/+/' m.py; pytest -q t.py | tail -1; python t.py"))[4]["tests"]["passed"] == 3


def test_no_examples_are_said_to_be_none(env, sh, make_tested_task):
    env.reset(options={"task": make_tested_task("apart", visible="")})
    observation, *_, info = env.step(sh("python t.py"))
    assert observation == "0/0 there are no examples" and "tests" not in info
