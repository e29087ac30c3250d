"""Calls, typed values and their comparison."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.environments.code_repair import driver
from agentgym_rtmc.environments.code_repair.answering import LATE, NO_ANSWER, answer_calls
from agentgym_rtmc.environments.code_repair.cases import decode, is_value, parse_call, same, show_steps
from agentgym_rtmc.errors import TaskError

atoms = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
hashable = st.recursive(atoms, lambda inner: st.tuples(inner, inner), max_leaves=4)
values = st.recursive(
    atoms | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=12,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("fdtsex") | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


def through_json(value):
    return json.loads(json.dumps(value))


@given(values)
def test_a_value_survives_encoding_json_and_decoding(value):
    typed = through_json(driver.encode(value))
    assert same(typed, through_json(driver.encode(value)))
    assert decode(typed) == value
    assert is_value(typed)


@given(values, values)
def test_different_values_are_not_the_same(one, other):
    if repr(one) != repr(other) and one != other:
        assert not same(driver.encode(one), through_json(driver.encode(other)))


@given(values, json_values)
def test_any_answer_can_be_compared(value, answer):
    assert same(driver.encode(value), answer) in (True, False)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [(1, True), (0, False), (1, 1.0), ([1], (1,)), ("1", 1), ({1}, [1]), ({1: 2}, [[1, 2]]), (None, 0), ("", [])],
)
def test_equal_looking_values_of_other_types_differ(wanted, got):
    assert not same(driver.encode(wanted), driver.encode(got))
    assert not same(driver.encode(got), driver.encode(wanted))


def test_floats_are_compared_with_tolerance_and_order_of_dicts_and_sets_does_not_matter():
    assert same(driver.encode(0.1 + 0.2), driver.encode(0.3))
    assert not same(driver.encode(0.3), driver.encode(0.3001))
    assert same(driver.encode(math.nan), driver.encode(math.nan))
    assert same(driver.encode({"a": 1, "b": 2}), driver.encode({"b": 2, "a": 1}))
    assert same(driver.encode({3, 1, 2}), driver.encode({2, 3, 1}))
    assert not same({"f": "1.0"}, {"f": ["1.0"]})
    assert not same({"f": "1.0"}, {"f": "one"})


@pytest.mark.parametrize("text", ["f(x)", "f(a=1)", "f", "1 + 2", "f()(1)", "o.f(1)", "f(*[1])"])
def test_other_text_is_no_call(text):
    with pytest.raises((TaskError, ValueError)):
        parse_call(text)


def test_calls_are_read_and_shown():
    call = parse_call("Stack(3).push('a').pop()")
    assert call == ["Stack", [3], ["push", ["a"]], ["pop", []]]
    assert show_steps(call) == ["Stack(3)", "push('a')", "pop()"]


@pytest.mark.parametrize("value", [{"e": "ValueError"}, {"x": "endless"}, {"q": 1}, {}])
def test_what_is_no_value_cannot_be_decoded(value):
    with pytest.raises(TaskError, match="typed value"):
        decode(value)
    assert is_value({"q": 1}) and not is_value({"e": "ValueError"}) and not is_value({"x": "endless"})


class Odd(int):
    """Not exactly an int."""


@pytest.mark.parametrize("value", [Odd(3), [Odd(3)], {1: Odd(3)}, object(), b"x", 3j, lambda: 1, range(3)])
def test_only_exact_builtin_types_leave_the_driver(value):
    with pytest.raises(driver.NoAnswer):
        driver.encode(value)


def answers(source, *calls, lines=0):
    return driver.run_job({"source": source, "calls": [parse_call(c) for c in calls]}, lines)


def test_the_driver_answers_functions_and_objects():
    source = "class C:\n    def __init__(self, n): self.n = n\n    def up(self): self.n += 1; return self.n\n"
    source += "def f(x): return {x: (x, 1.5)}\n"
    assert answers(source, "f(2)", "C(4).up().up()") == [{"d": [[2, {"t": [2, {"f": "1.5"}]}]]}, [5, 6]]


def test_the_driver_tells_exceptions_and_missing_answers_apart():
    source = "def f(x): return 1 // x\ndef g(): return object()\n"
    assert answers(source, "f(0)", "g()", "f(1)") == [
        {"e": "ZeroDivisionError"},
        {"x": "not a built-in value"},
        {"x": "skipped"},
    ]
    assert answers("def f(", "f(0)") == [{"e": "SyntaxError"}]
    assert answers("", "f(0)") == [{"e": "KeyError"}]


def test_the_driver_ends_endless_calls():
    source = "def f():\n    while True:\n        pass\n"
    assert answers(source, "f()", "f()", lines=1000) == [{"x": "endless"}, {"x": "skipped"}]


@given(values)
def test_the_drivers_json_is_json(value):
    typed = driver.encode(value)
    assert json.loads(driver.to_json(typed)) == through_json(typed)
    assert driver.to_json(typed).isascii()


def test_modules_answer_in_a_sandbox_each_for_itself(sandboxed):
    jobs = [
        ("def f(x):\n    print('noise')\n    return x + x\n", [["f", [2]], ["f", ["é\ud800字𝄞"]], ["f", [[]]]]),
        ("import os\nos._exit(3)", [["f", [1]]]),
        ("def f():\n    while True: pass\n", [["f", []]]),
        ("def f(x): return {x: (x, 0.5)}\n", [["f", [None]]]),
        ("import time\ntime.sleep(60)", [["f", []], ["f", []]]),
    ]
    first, second, third, fourth = answer_calls(jobs[:4], seconds=60.0, timeout=100.0)
    assert first == [4, "é\ud800字𝄞" * 2, []]
    assert second == third == [NO_ANSWER]
    assert fourth == [{"d": [[None, {"t": [None, {"f": "0.5"}]}]]}]
    assert answer_calls(jobs[4:], seconds=0.5) == [[LATE, LATE]]
    assert answer_calls(jobs[4:], seconds=9.0, timeout=0.5) == [[LATE, LATE]]
