"""The recipe of the examples trains on the small instance: episodes in containers, gradings, credit, checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentgym_rtmc.trainer.policy.config import TinyConfig
from agentgym_rtmc.trainer.policy.tiny import build_model, save_policy, train_tokenizer

pytest.importorskip("swebench")
RECIPE = Path(__file__).parents[3] / "examples/swebench_verified.toml"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a very small model that has learnt nothing, and babbles."""
    tokenizer = train_tokenizer(["```sh\nls\n```", "submit", "the shapes and their areas"], TinyConfig())
    folder = tmp_path / "model"
    save_policy(folder, build_model(TinyConfig(context=8192), tokenizer, seed=0), tokenizer)
    return folder


def test_one_update(instance: dict[str, Any], small: ModuleType, model: Path, tmp_path: Path) -> None:
    other = {**instance, "instance_id": "other__one-1", "repo": "other/one"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in (instance, other)), encoding="utf-8")
    settings = {
        "run.folder": tmp_path / "run",
        "env.id": "agentgym_rtmc/SWEBench-v0",
        "env.task_options.source": rows,
        "env.task_options.held_out": '["other/one"]',
        "env.options.max_turns": 2,
        "env.options.container": "{ memory_mb = 512 }",
        "policy.model": model,
        "policy.max_tokens": 12,
        "policy.max_context": 8000,
        "rollout.group_size": 2,
        "rollout.concurrency": 2,
        "loop.updates": 1,
        "loop.groups": 1,
        "evaluation.tasks": 1,
        "evaluation.samples": 1,
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    argv = [sys.executable, "-m", "agentgym_rtmc", "train", str(RECIPE), *words]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (tmp_path / "run").iterdir()
    [update] = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    # Two whole episodes that were played to their last turn and graded; babble earns nothing and breaks nothing.
    assert (update["episodes"], update["episodes_invalid"], update["machine"]["episodes_retried"]) == (2, 0, 0)
    assert (update["turns_per_episode"], update["pass_rate"], update["company_share"]) == (2, 0, 1)
    evaluations = map(json.loads, (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines())
    assert [(row["update"], row["tasks"], row["invalid"]) for row in evaluations] == [(0, 1, 0), (1, 1, 0)]
