"""What is shown of results, and what of them counts as learnt."""

from agentgym_rtmc.environments.data_questions.results import learnt_digest, result_digest, show_result, show_value
from agentgym_rtmc.environments.queries import QueryResult


def result(count, more=False, columns=("n",)):
    return QueryResult(columns, tuple((number,) for number in range(count)), more)


def test_results_are_cut_with_a_note():
    shown = show_result(result(1000), "table", 40)
    assert shown.startswith("n\n0\n1\n") and shown.endswith("more rows left out)") and len(shown) < 90
    left_out = int(shown.rpartition("(")[2].split()[0])
    assert left_out + shown.count("\n") - 1 == 1000
    assert show_result(result(2, more=True), "short", 40) == "0\n1\n(only the first 2 rows were read)"
    assert show_result(result(0), "short", 40) == "(no rows)" and show_result(result(0), "table", 40) == "n\n(no rows)"
    assert show_result(result(1), "table", 40) == "n\n0\n(1 row)"


def test_values_are_one_line_and_short():
    assert show_value("a\n b\tc") == "a b c" and show_value(None) == "NULL" and show_value(0.1 + 0.2) == "0.3"
    assert len(show_value("x" * 10_000)) == 83 and show_value(12345678.5) == "12345678.5"
    assert "\n" not in show_value("a\u2028b\x85c")


def test_what_counts_of_a_result_are_its_values_in_order():
    assert result_digest(result(2)) == result_digest(result(2, columns=("other",)))
    assert result_digest(result(2)) != result_digest(result(2, more=True)) != result_digest(result(3))
    swapped = QueryResult(("n",), ((1,), (0,)))
    assert result_digest(swapped) != result_digest(result(2))
    assert result_digest(QueryResult(("n",), (("1",),))) != result_digest(QueryResult(("n",), ((1,),)))


def test_what_was_learnt_is_a_set():
    assert learnt_digest(["a", "b"]) == learnt_digest(["b", "a"]) != learnt_digest(["a"])
    assert learnt_digest([]) == "nothing"
