"""Runs that are interrupted, killed or run out of disk, and continued: nothing is lost and nothing differs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import CommandLine

from agentgym_rtmc.episode_file import read_episodes

pytest.importorskip("transformers")
Start = Callable[..., CommandLine]


def start_run(
    command_line: Start, workplace: Path, name: str, *changes: str, **limits: Any
) -> tuple[CommandLine, Path]:
    """Start a training run in a folder of its own; returns it and that folder's future parent."""
    parent = workplace / f"runs-{name}"
    return command_line("train", "tiny.toml", f"run.folder={parent.name}", *changes, **limits), parent


def only(parent: Path) -> Path:
    (folder,) = parent.iterdir()
    return folder


def fingerprint(folder: Path) -> dict[str, Any]:
    """What equal runs must have equal: figures, evaluations, weights, optimiser, and every episode."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in metrics:
        del row["machine"]
    latest = folder / "checkpoints" / "latest"
    return {
        "metrics": json.dumps(metrics),
        "evaluations": (folder / "evaluations.jsonl").read_text(),
        "weights": (latest / "model" / "model.safetensors").read_bytes(),
        "optimizer": (latest / "optimizer.safetensors").read_bytes(),
        "episodes": (folder / "episodes.jsonl").read_bytes(),
    }


@pytest.fixture(scope="module")
def whole(command_line: Start, workplace: Path) -> dict[str, Any]:
    """The fingerprint of a run of six updates that nobody interrupted."""
    run, parent = start_run(command_line, workplace, "whole")
    assert run.wait() == 0, run.err
    return fingerprint(only(parent))


def until_updates(run: CommandLine, parent: Path, count: int) -> None:
    """Wait until a run has written so many lines of metrics, or has ended."""

    def so_far() -> bool:
        if not (parent.exists() and any(parent.glob("*/config.toml"))):
            return False
        path = only(parent) / "metrics.jsonl"
        return not run.process.is_alive() or (path.read_bytes().count(b"\n") if path.exists() else 0) >= count

    run.until(so_far)


def continue_killing(command_line: Start, run: CommandLine, parent: Path, goals: Sequence[int], chance: Random) -> int:
    """Kill a run soon after it has written so many lines of metrics, and resume it, and so on; returns the kills."""
    kills = 0
    for goal in goals:
        until_updates(run, parent, goal)
        time.sleep(chance.uniform(0, 0.15))
        run.send(signal.SIGKILL)
        kills += run.wait() == -signal.SIGKILL
        run = command_line("train", "--resume", str(only(parent)))
    assert run.wait() == 0, run.err
    return kills


def test_killed_at_any_moment_a_run_continues_with_the_same_numbers(
    command_line: Start, workplace: Path, whole: dict[str, Any]
) -> None:
    run, parent = start_run(command_line, workplace, "killed")
    assert continue_killing(command_line, run, parent, (1, 3, 5), Random(1)) >= 1
    assert fingerprint(only(parent)) == whole


@pytest.mark.full
def test_killed_again_and_again_a_run_continues_with_the_same_numbers(
    command_line: Start, workplace: Path, whole: dict[str, Any]
) -> None:
    for seed in range(12):
        chance = Random(seed)
        run, parent = start_run(command_line, workplace, f"killed-{seed}")
        goals = sorted(chance.choices(range(7), k=6))
        assert continue_killing(command_line, run, parent, goals, chance) >= 1
        assert fingerprint(only(parent)) == whole
        superseded = only(parent) / "episodes-superseded.jsonl"
        if superseded.exists():
            assert not read_episodes(superseded).skipped


def test_killed_before_its_first_checkpoint_a_run_begins_anew(
    command_line: Start, workplace: Path, whole: dict[str, Any]
) -> None:
    run, parent = start_run(command_line, workplace, "early")
    until_updates(run, parent, 1)
    run.send(signal.SIGKILL)
    run.wait()
    again = command_line("train", "--resume", str(only(parent)))
    assert again.wait() == 0, again.err
    assert fingerprint(only(parent)) == whole


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_says_how_to_continue(
    command_line: Start, workplace: Path, whole: dict[str, Any], how: signal.Signals
) -> None:
    run, parent = start_run(command_line, workplace, how.name, "--quiet")
    until_updates(run, parent, 3)
    run.send(how)
    assert run.wait() == 130
    folder = only(parent)
    hint = f"stopped; continue with: agentgym-rtmc train --resume {folder.relative_to(workplace)}"
    assert run.err.splitlines() == [hint, "interrupted"] and not run.out
    again = command_line("train", "--resume", str(folder.relative_to(workplace)), "--json")
    assert again.wait() == 0 and "after update 2" in again.err, again.err
    assert json.loads(again.out)["updates"] == 6
    assert fingerprint(folder) == whole


def test_a_stop_before_anything_began_leaves_nothing(command_line: Start, workplace: Path) -> None:
    changes = ["policy.warm_start.episodes=4000", "policy.warm_start.epochs=500"]
    for phase in ("demonstrations", "supervised start"):
        run, parent = start_run(command_line, workplace, phase.replace(" ", "-"), *changes)
        run.until(lambda phase=phase, run=run: f"{phase}: " in run.err)
        run.send(signal.SIGINT)
        assert run.wait() == 130
        assert "Traceback" not in run.err and "continue with" not in run.err
        assert run.err.endswith("interrupted\n") and not list(parent.iterdir())


def test_a_full_disk_is_a_clear_end_and_the_run_continues(
    command_line: Start, workplace: Path, whole: dict[str, Any]
) -> None:
    for name, size in (("episodes", int(len(whole["episodes"]) * 0.6)), ("weights", len(whole["weights"]) - 1000)):
        run, parent = start_run(command_line, workplace, f"full-{name}", "--quiet", file_limit=size)
        assert run.wait() == 2
        folder = only(parent)
        assert "Traceback" not in run.err and "continue with: agentgym-rtmc train --resume" in run.err
        assert "error: " in run.err and "written" in run.err
        again = command_line("train", "--resume", str(folder))
        assert again.wait() == 0, again.err
        assert fingerprint(folder) == whole


def test_a_folder_has_one_writer_and_a_finished_run_says_so(
    command_line: Start, workplace: Path, whole: dict[str, Any]
) -> None:
    run, parent = start_run(command_line, workplace, "two", "loop.updates=3", "--json")
    until_updates(run, parent, 1)
    folder = only(parent)
    run.send(signal.SIGSTOP)
    try:
        second = command_line("train", "--resume", str(folder))
        assert second.wait() == 2
        assert "another process is training in this folder" in second.err and second.err.count("\n") == 1
    finally:
        run.send(signal.SIGCONT)
    assert run.wait() == 0, run.err
    before = fingerprint(folder)

    third = command_line("train", "--resume", str(folder), "--json")
    assert third.wait() == 0
    assert third.err == f"{folder} is finished; to go on: loop.updates=6\n"
    assert {**json.loads(third.out), "folder": "", "curve": ""} == {**json.loads(run.out), "folder": "", "curve": ""}
    assert fingerprint(folder) == before

    # Going on for longer is the run that would have been longer from the start, but for evaluating where it ended.
    longer = command_line("train", "--resume", str(folder), "loop.updates=6")
    assert longer.wait() == 0, longer.err
    assert fingerprint(folder) == whole
    assert "updates = 6" in (folder / "config.toml").read_text()

    # Other settings make another run, also where someone writes them into the file.
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("learning_rate = 0.0006", "learning_rate = 0.5"))
    other = command_line("train", "--resume", str(folder), "loop.updates=8")
    assert other.wait() == 2
    assert "made with another configuration" in other.err and other.err.count("\n") == 1
