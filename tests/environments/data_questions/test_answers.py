"""Answers are compared by value and type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.environments.data_questions.answers import holds_answer, is_answer, is_right
from agentgym_rtmc.environments.queries import QueryResult
from agentgym_rtmc.errors import TaskError

SEVEN = {"kind": "number", "value": 7}
HALF = {"kind": "number", "value": 2.5, "tolerance": 0.0051}
NAME = {"kind": "text", "value": "Ada"}
DAY = {"kind": "date", "value": "2024-03-05"}
SET = {"kind": "set", "value": ["Ada", "Bo", "Bo"]}
LIST = {"kind": "list", "value": ["Bo", "Ada"]}
DAYS = {"kind": "list", "value": ["2024-03-05"]}
NUMBERS = {"kind": "set", "value": [1, 2.5]}


@pytest.mark.parametrize(
    ("answer", "value", "right"),
    [
        (SEVEN, 7, True),
        (SEVEN, 7.0, True),
        (SEVEN, "7", True),
        (SEVEN, " 7.0 ", True),
        (SEVEN, 7.01, False),
        (SEVEN, True, False),
        (SEVEN, "seven", False),
        (SEVEN, "7 orders", False),
        (SEVEN, [7], False),
        (SEVEN, None, False),
        (SEVEN, float("nan"), False),
        (SEVEN, 10**400, False),
        (SEVEN, "1e999", False),
        (HALF, 2.5, True),
        (HALF, 2.505, True),
        (HALF, 2.51, False),
        (HALF, 10**400, False),
        ({"kind": "number", "value": 1}, True, False),
        (NAME, "Ada", True),
        (NAME, " ada ", True),
        (NAME, "Adam", False),
        (NAME, ["Ada"], False),
        ({"kind": "text", "value": "2024-03"}, "2024-03", True),
        ({"kind": "text", "value": "7"}, 7, True),
        (DAY, "2024-03-05", True),
        (DAY, "2024-3-5", True),
        (DAY, "05.03.2024", True),
        (DAY, "2024/03/05 00:00:00", True),
        (DAY, "2024-05-03", False),
        (DAY, "March 2024", False),
        (DAY, 20240305, False),
        (SET, ["Bo", "Ada", "Bo"], True),
        (SET, ["Bo", "Ada"], False),
        (SET, ["Bo", "Ada", "Ada"], False),
        (SET, "Bo, ada, Bo", True),
        (SET, "Ada\nBo\nBo", True),
        (SET, 3, False),
        (LIST, ["Bo", "Ada"], True),
        (LIST, ["Ada", "Bo"], False),
        (LIST, [["Bo"], ["Ada"]], False),
        (DAYS, ["5.3.2024"], True),
        (DAYS, "2024-03-05", True),
        (NUMBERS, [2.5, 1], True),
        (NUMBERS, ["2.5", "1"], True),
        (NUMBERS, [2.5, True], False),
    ],
)
def test_values(answer, value, right):
    assert is_right(answer, value) is right


def result(*rows, more=False):
    return QueryResult(tuple("abcdefgh"[: len(rows[0]) if rows else 1]), tuple(rows), more)


@pytest.mark.parametrize(
    ("answer", "rows", "given_right", "held"),
    [
        (SEVEN, [(7,)], True, True),
        (SEVEN, [(7, "x")], True, True),
        (SEVEN, [("x", 7)], False, True),
        (SEVEN, [(7,), (8,)], False, False),
        (SEVEN, [(7, 1, 2, 3)], True, False),
        (SEVEN, [(None,)], False, False),
        (SEVEN, [], False, False),
        (SET, [("Bo",), ("Ada",), ("Bo",)], True, True),
        (SET, [(1, "Bo"), (2, "Ada"), (3, "Bo")], False, True),
        (LIST, [("Ada",), ("Bo",)], False, False),
        (DAY, [("05.03.2024",)], True, True),
    ],
)
def test_results(answer, rows, given_right, held):
    assert is_answer(answer, result(*rows)) is given_right
    assert holds_answer(answer, result(*rows)) is held


def test_a_result_that_was_cut_is_no_answer():
    cut = result(("Bo",), ("Ada",), ("Bo",), more=True)
    assert not is_answer(SET, cut) and not holds_answer(SET, cut)
    assert not is_answer(SEVEN, None)


def test_unknown_kinds_are_refused():
    for answer in ({}, {"kind": "number_of", "value": 3}, {"kind": "set", "value": "x"}):
        with pytest.raises(TaskError):
            is_right(answer, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_nothing_raises_and_nothing_odd_is_right(value):
    for answer in (SEVEN, HALF, NAME, DAY, SET, LIST, DAYS, NUMBERS):
        assert isinstance(is_right(answer, value), bool)
        if isinstance(value, dict | None):
            assert not is_right(answer, value)
