"""A person plays: `play` and `envs` with a small environment of a user's own, from the folder it lies in."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest

from agentgym_rtmc import register_env
from agentgym_rtmc.cli import main

MODULES = Path(__file__).parent / "modules"


Play = Callable[..., str]


@pytest.fixture(autouse=True)
def _only_the_users_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module lies on the path, is imported anew and registers into a table of the test's own."""
    monkeypatch.syspath_prepend(MODULES)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    monkeypatch.setattr("agentgym_rtmc.registration._REGISTRY", {})
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {})


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    def run(typed: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert main(["play", "counting:test/Counting-v0", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert captured.out.endswith("[closed]\n")
        return captured.out

    return run


def test_a_bare_line_is_a_shell_command(play: Play) -> None:
    shown = play("echo 4\n\nquit\n", "--task", "number-4")
    assert "── system prompt" in shown
    assert "── task number-4" in shown
    assert "say 4" in shown
    assert "── turn 1, 2 left" in shown
    assert "you said: echo 4" in shown
    assert "the task is over after 2 turns. reward 1, right 1" in shown


def test_several_lines_and_continuations(play: Play) -> None:
    shown = play("```sh\necho 1\necho 2\n```\nls \\\n-l\n````sh\na\n```\nb\n````\n")
    assert "you said: echo 1\necho 2\n" in shown
    assert "you said: ls \\\n-l\n" in shown
    assert "you said: a\n```\nb\n" in shown
    assert "cut off by the limit of turns after 3 turns. reward 0, right 0" in shown


def test_what_cannot_be_read_is_shown(play: Play) -> None:
    assert "[not understood: the shell block is empty" in play("```sh\n```\n")


def test_tool_calls_are_typed_as_they_are(play: Play) -> None:
    typed = '<tool_call>\n{"name": "say",\n"arguments": {"n": "echo 7"}}\n</tool_call>\nquit\n'
    one_line = '<tool_call>{"name": "say", "arguments": {"n": "quit"}}</tool_call>\n'
    shown = play(typed + one_line, "--option", "tools=true", "--option", "max_turns=9", "--task", "number-7")
    assert "── turn 1, 8 left" in shown
    assert "[not understood: no tool call" in shown
    assert "the task is over after 3 turns. reward 1, right 1" in shown


@pytest.mark.parametrize("typed", ["", "echo 1\n", "```sh\nhalf a command\n"])
def test_the_end_of_the_input_ends_the_game(play: Play, typed: str) -> None:
    assert "you left after" in play(typed)


def test_an_interruption_closes_the_environment() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "agentgym_rtmc", "play", "counting:test/Counting-v0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=MODULES,
    )
    assert child.stdout is not None
    shown = ""
    while not shown.endswith("> "):
        shown += child.stdout.read(1) or pytest.fail(f"no prompt: {shown}")
    child.send_signal(signal.SIGINT)
    rest, complaint = child.communicate(timeout=60)
    assert (child.returncode, rest, complaint) == (130, "[closed]\n", "interrupted\n")


def test_tasks_are_drawn_by_seed_and_split(play: Play) -> None:
    drawn = {play("", "--split", "heldout", "--seed", str(seed)).partition("── task ")[2][:8] for seed in range(4)}
    assert len(drawn) > 1
    heldout = play("", "--split", "heldout", "--seed", "1")
    assert heldout == play("", "--split", "heldout", "--seed", "1")
    assert any(f"number-{n}" in heldout for n in (6, 7, 8))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--task", "number-44"], "task set 'numbers' has no task 'number-44'; did you mean 'number-4'?"),
        (["--split", "held"], "has no split 'held'; did you mean 'heldout'?"),
        (["--task-set", "letters"], "test/Counting-v0 has no task set 'letters'; known: numbers"),
        (["--option", "max_turn=3"], "test/Counting-v0 has no option 'max_turn'"),
        (["--option", "max_turns"], "is not of the form key.subkey=value"),
    ],
)
def test_mistakes_of_the_player(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "counting:test/Counting-v0", *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_envs_lists_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--import", "counting", "--tasks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "id": "test/Counting-v0",
            "summary": "say a number",
            "task_sets": {"numbers": {"train": 6, "heldout": 3}},
            "default_signature": "operations",
        }
    ]
    assert main(["envs", "--import", "counting", "--tasks"]) == 0
    assert "numbers: (train: 6, heldout: 3)" in capsys.readouterr().out


def test_a_set_that_cannot_be_loaded_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    register_env("test/Gone-v0", "m:E", task_sets={"gone": "no_such_module:load"})
    assert main(["envs", "--import", "counting", "--tasks", "--json"]) == 0
    sets = {entry["id"]: entry["task_sets"] for entry in json.loads(capsys.readouterr().out)}
    assert "cannot be loaded: no_such_module:load: cannot import" in sets["test/Gone-v0"]["gone"]
    assert sets["test/Counting-v0"] == {"numbers": {"train": 6, "heldout": 3}}


def test_a_real_pipe_from_the_folder_of_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentgym_rtmc", "play", "counting:test/Counting-v0", "--task", "number-2"],
        input="echo 2\nquit\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=MODULES,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "reward 1, right 1" in done.stdout
