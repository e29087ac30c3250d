"""The trainer's commands: mistakes are refused before anything begins, results are tables or JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.cli import main
from agentgym_rtmc.episode_file import read_episodes
from agentgym_rtmc.trainer.progress import Progress

ECHO = "env.id=echo_env:tests/Echo-v0"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimator", "rtmcc"], "no estimator 'rtmcc'; did you mean 'rtmc'?"),
        (["credit.parameters={alpa=1}"], "estimator 'adaptive' has no parameter 'alpa'"),
        (["signature.name=operation"], "no signature 'operation'; did you mean 'operations'?"),
        (["signature.parameters={nosuch=1}"], "signature 'operations': "),
        (["env.id=CodeRepare-v0"], "no environment 'CodeRepare-v0' is registered; did you mean"),
        ([ECHO, "env.train_split=trian"], "has no split 'trian'; did you mean 'train'?"),
        ([ECHO, "env.heldout_split=test"], "has no split 'test'; known: heldout, train"),
        ([ECHO, "env.heldout_split=train"], "tasks, such as"),
        ([ECHO, "env.task_options={empty=true}"], "env.heldout_split: the split 'heldout' is empty"),
        ([ECHO, "env.task_options={full=true}"], "has no option 'full'"),
        ([ECHO, "env.task_set=wrds"], "has no task set 'wrds'; did you mean 'words'?"),
        ([ECHO, "env.options={turns=3}"], "has no option 'turns'"),
        (["policy.kind=hf", "policy.model=./nosuch"], "policy.model: there is no folder './nosuch'"),
        (["policy.kind=hf"], "needs policy.model"),
        (["policy.kind=scripted"], "a scripted policy has no weights to train"),
        (["policy.kind=tini"], "'policy.kind' should be 'tiny', 'hf', 'endpoint' or 'scripted'"),
        (["loop.update=3"], "unknown key 'loop.update'; did you mean 'updates'?"),
        (["nosuch.toml"], "nosuch.toml: cannot be read"),
        (["x=1", "file.toml"], "'file.toml' is not of the form key=value; the configuration file comes first"),
        (["--resume", "nosuch"], "there is no run folder nosuch"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and printed.err.startswith("error: ")
    assert list(here.iterdir()) == [] and not printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scripted:refrence"], "there is no agent 'scripted:refrence'; did you mean 'scripted:reference'?"),
        (["./nosuch"], "there is no folder ./nosuch"),
        (["runs/0101-codes"], "there is no folder runs/0101-codes; did you mean '0101-code'?"),
        (["runs/0101-code"], "has no checkpoint yet; continue it with: agentgym-rtmc train --resume runs/0101-code"),
        (["scripted:reference", ECHO, "--split", "test"], "has no split 'test'"),
        (["scripted:reference", ECHO, "--tasks", "0"], "evaluation.tasks"),
    ],
)
def test_agents_that_are_not_there(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs" / "0101-code").mkdir(parents=True)
    (here / "runs" / "0101-code" / "config.toml").touch()
    assert main(["eval", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1


def test_a_resumed_run_stays_the_run_that_it_was(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.toml").touch()
    for override in ("run.seed=1", "learner.learning_rate=1", "evaluation.everything=1", "credit={}"):
        assert main(["train", "--resume", ".", override]) == 2
        assert f"override '{override}': a resumed run keeps its configuration; only loop.*" in capsys.readouterr().err
    assert main(["train", "file.toml", "--resume", "."]) == 2
    assert "leave the file out" in capsys.readouterr().err


def test_eval_of_a_scripted_agent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "scripted:demonstrator", ECHO, "--tasks", "5", "--samples", "3", "--json"]
    assert main([*arguments, "--show", "-o", "out/episodes.jsonl"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert (row["agent"], row["split"], row["tasks"], row["episodes"]) == ("scripted:demonstrator", "heldout", 5, 15)
    assert row["low"] <= row["pass_at_1"] <= row["high"]
    episodes = read_episodes(here / "out" / "episodes.jsonl").episodes
    assert len(episodes) == 15
    # Shown are all of them, with what was seen and said, on standard error: standard output is JSON's.
    assert all(episode.id in printed.err and episode.turns[0].text in printed.err for episode in episodes)
    assert "scripted:demonstrator: 15/15" in printed.err
    assert main([*arguments[:-1], "--quiet", "--show"]) == 0
    printed = capsys.readouterr()
    assert not printed.err and "pass at 1" in printed.out and episodes[0].id in printed.out


def test_rollouts_with_other_seeds_share_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rollout", "scripted:demonstrator", "-o", "e.jsonl", ECHO, "--tasks", "2", "--group-size", "3"]
    assert main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["split"], row["episodes"], row["file"]) == ("train", 6, "e.jsonl")
    assert main([*command, "evaluation.seed=5", "--quiet"]) == 0
    episodes = read_episodes(here / "e.jsonl").episodes
    assert len({episode.id for episode in episodes}) == 12 and len({episode.group for episode in episodes}) == 4
    assert main([*command, "env.options={max_turns=0}"]) == 2


def test_the_reference_repairs_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rollout", "scripted:reference", "-o", "e.jsonl", "--tasks", "4", "--group-size", "1", "--json"]
    code = main(command)
    printed = capsys.readouterr()
    if code == 2 and "isolate" in printed.err:
        pytest.skip(printed.err)
    assert code == 0, printed.err
    (row,) = json.loads(printed.out)
    assert (row["pass_at_1"], row["episodes"], row["invalid"], row["parsed_share"]) == (1.0, 4, 0, 1.0)
    assert all(not episode.opening.task.private for episode in read_episodes(here / "e.jsonl").episodes)


def test_scripted_agents_and_help_need_no_torch(here: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'matplotlib'));"
        "from agentgym_rtmc.cli import main;"
        "codes = [main(['train', '--help']), main(['eval', '--help']), main(sys.argv[1:]),"
        " main(['train', 'run.seed=-1']), main(['train', 'loop.updates=1'])]; print(codes)"
    )
    arguments = ["rollout", "scripted:reference", "-o", "e.jsonl", ECHO, "--tasks", "1", "--quiet"]
    modules = str(Path(__file__).parent / "modules")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": modules, "PATH": ""},
        timeout=200,
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 2, 2]", done.stderr
    assert "pip install 'agentgym-rtmc[train]'" in done.stderr and "Traceback" not in done.stderr


def test_progress_in_a_pipe_is_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """One line as a phase begins and one as it ends, none twice, none broken or read as markup."""
    with Progress() as progress:
        progress.phase("learn", 10, 4)
        progress.phase("learn", 10, 4)
        progress.update(7, reward=0.123456, note="[x] " + "long " * 40)
        progress.say("a [bold]word[/bold]")
        progress.phase("rest", 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "learn: 6 to do" and lines[1] == "a [bold]word[/bold]"
    assert lines[2].startswith("learn: 7/10 · 0.123 reward · [x] long") and lines[2].endswith(" s left")
    assert [line.partition(" ·")[0] for line in lines[3:]] == ["rest: 2 to do", "rest: 0/2"]
