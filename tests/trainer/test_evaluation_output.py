"""An evaluation that was stopped, however, goes on with what it had, and with nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym_rtmc.cli import main
from agentgym_rtmc.episode_file import EpisodeReader, read_episodes

ECHO = "env.id=echo_env:tests/Echo-v0"
COMMAND = ["eval", "scripted:demonstrator", ECHO, "--tasks", "4", "--samples", "2", "--json"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_an_output_there_is_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    (file,) = here.glob("runs/*-eval-Echo-v0/episodes.jsonl")
    assert capsys.readouterr().err.splitlines()[0] == f"episodes: {file.relative_to(here)}"
    assert len(read_episodes(file).episodes) == 8
    arguments = json.loads(file.with_name("episodes.arguments.json").read_text(encoding="utf-8"))
    assert arguments["env.id"] == "tests/Echo-v0" and arguments["evaluation.samples"] == 2
    assert arguments["policy.player"] == "demonstrator" and arguments["evaluation.seed"] == 20_000
    assert main([*COMMAND, "run.folder=other", "env.options={turns=3}"]) == 2
    assert not list(here.glob("other/*"))  # no episode came about


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (["--samples", "3"], ["evaluation.samples (was 2, now 3)"]),
        (["--temperature", "0.5"], ["evaluation.temperature (was 1.0, now 0.5)"]),
        (["evaluation.seed=7"], ["evaluation.seed (was 20000, now 7)"]),
        (["--split", "train"], ["env.heldout_split (was 'heldout', now 'train')"]),
        (["env.options={max_turns=2}"], ["env.options.max_turns (was None, now 2)"]),
        (["policy.max_tokens=7", "policy.top_k=2"], ["policy.max_tokens", "policy.top_k"]),
    ],
)
def test_other_arguments_are_refused_by_name(
    changes: list[str], keys: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "-o", "e.jsonl"]) == 0
    before = (here / "e.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*COMMAND, *changes, "-o", "e.jsonl", "--resume"]) == 2
    printed = capsys.readouterr()
    assert "other arguments" in printed.err and all(key in printed.err for key in keys)
    assert (here / "e.jsonl").read_bytes() == before and not printed.out


def test_another_agent_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "-o", "e.jsonl"]) == 0
    assert main(["eval", "scripted:reference", *COMMAND[2:], "-o", "e.jsonl", "--resume"]) == 2
    assert "policy.player (was 'demonstrator', now 'reference')" in capsys.readouterr().err


def test_what_changes_no_episode_may_differ(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "-o", "e.jsonl"]) == 0
    first = json.loads(capsys.readouterr().out)
    more = ["--workers", "1", "policy.endpoint.retries=1", "evaluation.success_reward=1.0"]
    assert main([*COMMAND, *more, "-o", "e.jsonl", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out) == first and len(read_episodes(here / "e.jsonl").episodes) == 8
    assert main([*COMMAND, "--tasks", "6", "-o", "e.jsonl", "--resume"]) == 0
    assert len(read_episodes(here / "e.jsonl").episodes) == 12


def test_files_are_not_mixed_up(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "-o", "e.jsonl"]) == 0
    assert main([*COMMAND, "-o", "e.jsonl"]) == 2
    assert "e.jsonl has episodes already; go on with --resume" in capsys.readouterr().err
    (here / "e.arguments.json").unlink()
    assert main([*COMMAND, "-o", "e.jsonl", "--resume"]) == 2
    assert "the arguments it was made with are not in e.arguments.json" in capsys.readouterr().err
    assert main([*COMMAND, "-o", "new.jsonl", "--resume"]) == 0  # nothing yet: everything is missing
    assert main([*COMMAND, "--resume"]) == 2


def test_a_kill_loses_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [*COMMAND[:-1], "env.options={seconds=0.3}", "--workers", "1", "--json"]
    words = [sys.executable, "-m", "agentgym_rtmc", *slow]
    modules = str(Path(__file__).parent / "modules")
    with subprocess.Popen(
        words, env={"PYTHONPATH": modules, "PATH": ""}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        file = here / process.stderr.readline().removeprefix("episodes: ").strip()
        give_up = time.monotonic() + 120
        while time.monotonic() < give_up and (not file.exists() or len(list(EpisodeReader(file))) < 2):
            time.sleep(0.02)
        process.kill()
    before = {episode.id: episode for episode in read_episodes(file).episodes}
    assert 2 <= len(before) < 8
    assert main([*slow, "-o", str(file), "--resume"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    after = {episode.id: episode for episode in read_episodes(file).episodes}
    assert len(after) == 8 and all(after[name] == episode for name, episode in before.items())
    assert main([*slow, "-o", "whole.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out) == resumed
    assert {episode.id: episode for episode in read_episodes(here / "whole.jsonl").episodes} == after
