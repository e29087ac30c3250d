"""Tables for people and for programs show the same rows."""

import io
import json

import pytest
from rich.console import Console

from agentgym_rtmc.tables import Row, show_json, show_table

ROWS: list[Row] = [
    {"name": "rtmc [bold]", "pass_rate": 0.123456789, "episodes": 12, "note": None},
    {"name": "grpo", "pass_rate": float("nan"), "episodes": 7, "note": {"a": [1, True]}},
]


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(ROWS, as_json=True, columns=["name"], title="results")
    assert json.loads(capsys.readouterr().out) == [
        {"name": "rtmc [bold]", "pass_rate": 0.123456789, "episodes": 12, "note": None},
        {"name": "grpo", "pass_rate": None, "episodes": 7, "note": {"a": [1, True]}},
    ]
    show_table([], as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    show_json({"é": (1, float("inf"))})
    assert capsys.readouterr().out == '{\n  "é": [\n    1,\n    null\n  ]\n}\n'


def test_people_see_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(ROWS, title="results")
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].strip() == "results"
    for text in ("pass rate", "rtmc [bold]", "0.1235", "a: 1, yes", "–", "nan"):
        assert text in shown
    show_table([])
    capsys.readouterr()
    show_table(ROWS, columns=["episodes", "name"])
    header = capsys.readouterr().out.splitlines()[1]
    assert header.index("episodes") < header.index("name")
    assert "pass rate" not in header


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([{"text": "word " * 100}])
    assert "word " * 99 in capsys.readouterr().out


def test_a_narrow_terminal_folds_and_loses_nothing() -> None:
    console = Console(file=io.StringIO(), width=20, force_terminal=True, color_system=None)
    show_table([{"text": "0123456789" * 5}], console=console, style=lambda row: "red")
    assert isinstance(console.file, io.StringIO)
    assert sum(character.isdigit() for character in console.file.getvalue()) == 50
