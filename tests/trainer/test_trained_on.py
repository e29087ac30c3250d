"""A policy is not measured on what it was trained on unasked, in whichever run that was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym_rtmc.cli import main
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.registration import load_task_set
from agentgym_rtmc.settings import dump_toml, load_settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.collect import agent_config, collect, write_report
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.preparation import heldout_tasks, load_tasks, prepare
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.trained_on import run_of, trained_tasks

ECHO = 'env.id="echo_env:tests/Echo-v0"'


def make_run(folder: Path, *overrides: str) -> Path:
    """A run's folder as far as it matters here; returns its newest model."""
    model = folder / "checkpoints" / "000004" / "model"
    model.mkdir(parents=True)
    (folder / "checkpoints" / "latest").symlink_to("000004")
    config = load_settings(TrainConfig, None, [ECHO, *overrides])
    (folder / "config.toml").write_text(dump_toml(config), encoding="utf-8")
    return folder / "checkpoints" / "latest" / "model"


def evaluating(model: Path, *overrides: str) -> tuple[TrainConfig, tuple[Task, ...]]:
    config = agent_config(str(model), None, [ECHO, *overrides])
    return config, heldout_tasks(config, load_tasks(config.env))


def test_its_own_training_split_is_refused(tmp_path: Path) -> None:
    model = make_run(tmp_path / "a")
    assert run_of(str(model)) == tmp_path / "a" and run_of(str(tmp_path / "a")) is None and run_of("some/id") is None
    assert trained_tasks(*evaluating(model)) == ()
    with pytest.raises(ConfigError, match=r"a trained on 5 of the 5 tasks .*--split.*drop_shared.*--allow-trained"):
        trained_tasks(*evaluating(model, "env.heldout_split=train", "evaluation.tasks=5"))
    allowed = evaluating(model, "env.heldout_split=train", "evaluation.tasks=5", "evaluation.allow_trained=true")
    assert trained_tasks(*allowed) == tuple(sorted(task.id for task in allowed[1]))


def test_runs_that_a_run_began_with_count(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", "env.train_split=heldout", "env.heldout_split=train")
    second = make_run(tmp_path / "second", "policy.kind=hf", f"policy.model={json.dumps(str(first))}")
    with pytest.raises(ConfigError, match="first trained on 7 of the 7"):
        trained_tasks(*evaluating(second))
    # Nor may training start from such a model while it is measured on these tasks.
    with pytest.raises(ConfigError, match="first trained on 7 of the 7"):
        prepare(evaluating(second)[0])


def test_what_cannot_be_told_is_an_error(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    config = tmp_path / "other" / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('train_split = "train"', 'train_split = "gone"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"other was trained on cannot be told: .*no split 'gone'.*--allow-trained"):
        trained_tasks(*evaluating(other))
    assert trained_tasks(*evaluating(other, "evaluation.allow_trained=true")) == ()
    first = evaluating(other)[0]
    config.write_text("[nosuch]", encoding="utf-8")
    tasks = load_tasks(first.env).split("heldout")
    with pytest.raises(ConfigError, match=r"other was trained on cannot be told: .*nosuch.*--allow-trained"):
        trained_tasks(first, tasks)


def test_other_environments_have_other_tasks(tmp_path: Path) -> None:
    model = make_run(tmp_path / "a", "env.id=CodeRepair-v0")
    assert trained_tasks(*evaluating(model, "env.heldout_split=train")) == ()


def test_datasets_of_one_family_share_instances(shared_data: Path, tmp_path: Path) -> None:
    """A run on Lite, measured on Verified: 93 instances are the same."""
    lite, verified = (shared_data / "swebench" / f"SWE-bench_{name}_test.parquet" for name in ("Lite", "Verified"))
    if not lite.exists():
        pytest.skip("no SWE-bench data here")
    pytest.importorskip("pyarrow")
    options = f"env.task_options={{source = {json.dumps(str(lite))}}}"
    model = make_run(tmp_path / "a", "env.id=SWEBench-v0", options, "env.train_split=test", "env.heldout_split=test")
    config = agent_config(
        str(model),
        None,
        ["env.id=SWEBenchVerified-v0", "env.task_set=agentgym_rtmc.environments.swebench.splits:load_dataset"],
        heldout_split="test",
    )
    tasks = load_task_set("SWEBench-v0", source=verified).split("test")
    with pytest.raises(ConfigError, match="trained on 93 of the 500"):
        trained_tasks(config, tasks)


def test_the_command_refuses_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_run(tmp_path / "a")
    assert main(["eval", str(model), ECHO, "--split", "train"]) == 2
    printed = capsys.readouterr()
    assert "--allow-trained" in printed.err and printed.err.count("\n") == 1 and not (tmp_path / "runs").exists()
    # Further on, and only then, the empty folder is seen to hold no model.
    assert main(["eval", str(model), ECHO, "--split", "train", "--allow-trained"]) == 2
    assert "trained on" not in capsys.readouterr().err and not list((tmp_path / "runs").glob("*"))


def test_reports_are_marked(tmp_path: Path) -> None:
    config = agent_config("scripted:reference", None, [ECHO, "evaluation.tasks=2", "evaluation.samples=1"])
    tasks = heldout_tasks(config, load_tasks(config.env))
    with Progress(quiet=True) as progress:
        result = collect(config, "scripted:reference", progress, tasks)
    written = write_report(config, "scripted:reference", result, tmp_path, tasks)
    assert "trained_on_ids" not in json.loads(written[0].read_text(encoding="utf-8"))
    written = write_report(config, "scripted:reference", result, tmp_path, tasks, [tasks[0].id])
    report = json.loads(written[0].read_text(encoding="utf-8"))
    assert report["trained_on_ids"] == [tasks[0].id] and report["episodes"] == 2
