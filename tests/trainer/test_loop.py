"""Whole runs with a very small model: what they write, what they print, and that the policy learns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from agentgym_rtmc.episode_file import read_episodes
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig

pytest.importorskip("transformers")
Start = Callable[..., CommandLine]


@pytest.fixture(scope="module")
def finished(command_line: Start, workplace: Path) -> tuple[Path, dict[str, Any], str]:
    """A run that learns for a while: folder, JSON result, standard error."""
    changes = ["run.name=whole", "loop.updates=16", "evaluation.every=8", "learner.learning_rate=3e-3"]
    changes += ["loop.groups=8", "rollout.group_size=8", "env.options={max_turns=1}"]
    changes += ["learner.schedule=cosine", "credit.estimator=grpo"]
    done = command_line("train", "tiny.toml", *changes, "--json")
    assert done.wait() == 0, done.err
    result = json.loads(done.out)
    return workplace / result["folder"], result, done.err


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_everything_behind(finished: tuple[Path, dict[str, Any], str]) -> None:
    folder, result, _ = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        ".lock",
        "checkpoints",
        "config.toml",
        "curve.png",
        "episodes.jsonl",
        "evaluations.jsonl",
        "metrics.jsonl",
        "result.json",
    }
    metrics, evaluations = rows(folder / "metrics.jsonl"), rows(folder / "evaluations.jsonl")
    assert [row["update"] for row in metrics] == list(range(1, 17))
    assert [(row["update"], row["split"]) for row in evaluations] == [(0, "heldout"), (8, "heldout"), (16, "heldout")]
    assert result["before"] == evaluations[0] and result["after"] == evaluations[-1]
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"latest", "step-000014", "step-000016"}
    always = {"reward", "pass_rate", "entropy", "clip_fraction", "logprob_gap_mean", "groups_zero_variance"}
    assert all(always | {"company_share", "turns_masked", "episodes_invalid", "forks"} <= set(row) for row in metrics)
    machine = {"learner_seconds", "rollout_seconds", "turns_per_second", "update_seconds", "episodes_retried"}
    assert all(machine <= set(row["machine"]) for row in metrics)
    assert not any("second" in name for row in metrics for name in row)
    assert (folder / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_every_episode_is_kept_with_its_tokens_and_weights(finished: tuple[Path, dict[str, Any], str]) -> None:
    folder, result, _ = finished
    episodes = read_episodes(folder / "episodes.jsonl").episodes
    assert len(episodes) == result["episodes"] == 16 * 8 * 8
    assert [int(episode.id.rpartition("/")[2]) for episode in episodes] == list(range(1024))
    for index, episode in enumerate(episodes):
        assert all(turn.weights_version == index // 64 and turn.token_ids for turn in episode.turns)
        assert not episode.opening.task.private
    # The members of a group share their beginning, not their noise.
    groups = [episodes[start : start + 8] for start in range(0, 1024, 8)]
    assert all(len({(e.group, e.opening.seed, e.opening.task.id) for e in group}) == 1 for group in groups)
    assert sum(len({e.turns[0].text for e in group}) > 1 for group in groups) > 64
    assert len({group[0].opening.seed for group in groups}) == 128


def test_the_policy_learns(finished: tuple[Path, dict[str, Any], str]) -> None:
    folder, _, _ = finished
    rewards = [row["reward"] for row in rows(folder / "metrics.jsonl")]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.05


def test_the_sampler_and_the_learner_agree(finished: tuple[Path, dict[str, Any], str]) -> None:
    gaps = [row["logprob_gap_max"] for row in rows(finished[0] / "metrics.jsonl")]
    assert max(gap for gap in gaps if gap is not None) < 1e-4


def test_a_schedule_ends_with_the_run(finished: tuple[Path, dict[str, Any], str]) -> None:
    metrics = rows(finished[0] / "metrics.jsonl")
    for row in metrics:
        share = 0.1 + 0.9 * (1 + math.cos(math.pi * (row["update"] - 1) / 16)) / 2
        assert row["learning_rate"] == pytest.approx(3e-3 * share)
    assert load_settings(TrainConfig, finished[0] / "config.toml").learner.total_updates is None


def test_progress_is_seen(finished: tuple[Path, dict[str, Any], str]) -> None:
    lines = finished[2].splitlines()
    assert "training with grpo: 16 to do" in lines
    assert any(line.startswith("held-out tasks after 0 updates: 6/6 · ") or "12/12" in line for line in lines)
    last = next(line for line in lines if line.startswith("training with grpo: 16/16"))
    assert "1024 episodes" in last and "turns per s" in last and "reward" in last
    assert len(lines) == len(set(lines))


def test_the_run_is_an_agent(finished: tuple[Path, dict[str, Any], str], command_line: Start, workplace: Path) -> None:
    folder, result, _ = finished
    again = command_line("eval", str(folder), "--json", "-o", "again.jsonl")
    model = command_line(
        "rollout", str(folder / "checkpoints" / "latest" / "model"), "tiny.toml", "-o", "m.jsonl", "--tasks", "2"
    )
    assert again.wait() == 0 and model.wait() == 0, again.err + model.err
    (row,) = json.loads(again.out)
    # The same tasks, noise and weights: exactly what the run found at its end.
    assert {name: row[name] for name in ("pass_at_1", "return", "tasks", "episodes", "turns_per_episode")} == {
        name: result["after"][name] for name in ("pass_at_1", "return", "tasks", "episodes", "turns_per_episode")
    }
    assert len(read_episodes(workplace / "again.jsonl").episodes) == row["episodes"]
    assert len(read_episodes(workplace / "m.jsonl").episodes) == 16 and "model" in model.out


def test_tensorboard_gets_the_same_numbers(command_line: Start, workplace: Path) -> None:
    pytest.importorskip("tensorboard")
    done = command_line("train", "tiny.toml", "run.tensorboard=true", "loop.updates=1", "run.name=board", "--json")
    assert done.wait() == 0, done.err
    assert list((workplace / json.loads(done.out)["folder"] / "tensorboard").glob("events.*"))


def test_a_model_that_cannot_be_loaded_leaves_no_folder(command_line: Start, workplace: Path) -> None:
    (workplace / "hollow").mkdir(exist_ok=True)
    before = set((workplace / "runs").glob("*"))
    done = command_line("train", "tiny.toml", "policy.kind=hf", "policy.model=./hollow")
    assert done.wait() == 2
    assert done.err.count("\n") == 1 and "policy.model" in done.err and "Traceback" not in done.err
    assert set((workplace / "runs").glob("*")) == before
