"""The commands on the small instance in a real engine: fetch and prepare, validate, grade, resume after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from agentgym_rtmc.environments.known_bad import read_known_bad
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.docker.labels import OWNER
from agentgym_rtmc.environments.swebench.players import apply_commands, write_action
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.environments.swebench.splits import load_dataset
from agentgym_rtmc.environments.swebench.tasks import task_of

pytest.importorskip("swebench")
Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = [sys.executable, "-m", "agentgym_rtmc"]


@pytest.fixture
def rows(instance: dict[str, Any], tmp_path: Path) -> Path:
    """Four instances that differ in their names only."""
    made = [{**instance, "instance_id": f"small__shapes-{number}"} for number in range(1, 5)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


@pytest.fixture
def predictions(small: ModuleType, tmp_path: Path) -> Path:
    patches = dict(enumerate([small.PATCH, small.PARTIAL, "", small.PATCH.replace("shapes", "../x")], 1))
    made = [
        {"instance_id": f"small__shapes-{number}", "model_name_or_path": "some/model", "model_patch": patch}
        for number, patch in patches.items()
    ]
    path = tmp_path / "preds.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*WORDS, *words], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


def ours() -> list[str]:
    """Containers of whatever run, in the engine."""
    return [row["Id"] for row in connect().slow.containers(all=True, filters={"label": [OWNER]})]


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.05)


def results(folder: Path) -> dict[str, Any]:
    """All that a run says of its instances, and its report."""
    found = {
        str(path.relative_to(folder)): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.json"))
        if path.name != "run.json"
    }
    assert len(found) > 3
    return found


def test_prefetch_and_validate(run: Run, rows: Path) -> None:
    option = ("--task-option", f"source={rows}")
    run("prefetch", "--env", "SWEBench-v0", *option)
    again = run("prefetch", "--env", "SWEBench-v0", *option)
    assert again.stderr.count("prepared already") == 4
    small = ("--option", "container.memory_mb=512", "--option", "grading_seconds=300.0")
    done = run("validate", "SWEBench-v0", *option, "--limit", "2", "--workers", "1", *small[2:])
    assert "all 2 tasks are fine" in done.stdout


def test_validate_then_leave_out_then_train(
    run: Run, instance: dict[str, Any], small: ModuleType, tmp_path: Path
) -> None:
    """An instance whose reference patch fails is listed, and the list is what training leaves out."""
    rows = [{**instance, "instance_id": "small__shapes-1"}, {**instance, "instance_id": "small__shapes-2"}]
    rows[1]["patch"] = small.PARTIAL
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ["validate", "SWEBench-v0", "--task-option", f"source={path}", "--gold", "--workers", "1"]
    quick = ("--option", "grading_seconds=300.0", "--option", "gradings=gradings")
    done = run(*words, *quick, "--known-bad", "bad.toml")
    assert "1 of 2 tasks are broken" in done.stdout and "bad.toml: lists 1 of these tasks" in done.stdout
    assert read_known_bad(tmp_path / "bad.toml") == {"small__shapes-2": "the reference is paid 0, not 1"}
    options = {"source": path, "by": "repository", "held_out": ["other/one"], "known_bad_file": tmp_path / "bad.toml"}
    other = {**instance, "instance_id": "other__one-1", "repo": "other/one"}
    path.write_text(path.read_text(encoding="utf-8") + json.dumps(other) + "\n", encoding="utf-8")
    tasks = load_dataset(**options)
    assert [task.id for task in tasks.split("train")] == ["small__shapes-1"]


def test_grade_kill_and_resume(run: Run, rows: Path, predictions: Path, tmp_path: Path) -> None:
    words = ["grade", str(predictions), "--dataset", str(rows), "--memory-mb", "512", "--seconds", "300"]
    whole = run(*words, "-o", "whole")
    assert "resolved (2 of 2, 2 of 2)" in whole.stderr and "not resolved (1 of 2, 2 of 2)" in whole.stderr
    assert "small__shapes-4: not resolved, the patch was refused: " in whole.stderr
    with subprocess.Popen([*WORDS, *words, "-o", "killed"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        first = tmp_path / "killed/logs/run_evaluation/grade/some__model/small__shapes-1/report.json"
        wait_for(lambda: first.exists())
        wait_for(lambda: bool(ours()))  # the second is being graded
        process.kill()
    written = first.stat().st_mtime_ns
    refused = run(*words, "-o", "killed", code=2)
    assert "--resume" in refused.stderr
    run(*words, "-o", "killed", "--resume")
    assert first.stat().st_mtime_ns == written
    assert not ours()  # what ran ended with the killed run, what had only been made was removed by the next
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    report = json.loads((tmp_path / "whole/some__model.grade.json").read_text(encoding="utf-8"))
    assert (report["schema_version"], report["total_instances"]) == (2, 4)
    assert report["resolved_ids"] == report["paid_ids"] == ["small__shapes-1"]
    assert report["unresolved_ids"] == ["small__shapes-2", "small__shapes-4"]
    assert report["empty_patch_ids"] == ["small__shapes-3"] and report["tampered_ids"] == []


def test_without_an_engine_nothing_is_begun(
    run: Run, rows: Path, predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    told = run("grade", str(predictions), "--dataset", str(rows), "-o", "out", code=2)
    assert "no container engine answers" in told.stderr and not (tmp_path / "out/preds.json").exists()
    told = run("validate", "SWEBench-v0", "--task-option", f"source={rows}", "--workers", "1", code=2)
    assert "no container engine answers" in told.stderr and "broken" not in told.stdout
    told = run("validate", "SWEBench-v0", code=2)
    assert "needs the option 'source' (env.task_options, or --task-option key=value)" in told.stderr
    told = run("grade", str(predictions), "--dataset", str(rows), "--split", "trian", code=2)
    assert "leave --split out" in told.stderr


def test_swebench_reads_it(run: Run, rows: Path, predictions: Path, tmp_path: Path) -> None:
    """swebench's own functions make the same report of what lies in the folder."""
    words = ["--dataset", str(rows), "--memory-mb", "512", "--seconds", "300"]
    run("grade", str(predictions), *words, "-o", "mine")
    path = tmp_path / "mine/some__model.grade.json"
    mine = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    script = (
        "import json; from swebench.harness.reporting import make_run_report;"
        "rows = [json.loads(line) for line in open('../rows.jsonl')];"
        "make_run_report(json.load(open('preds.json')), rows, 'grade', client=None)"
    )
    subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path / "mine", check=True, timeout=300)
    theirs = json.loads(path.read_text(encoding="utf-8"))
    assert {key: mine[key] for key in theirs} == theirs


def test_many_at_once(small_row: SWEBenchRow, tmp_path: Path) -> None:
    """32 episodes at once, a quarter of which repair it; then nothing of them is left."""
    limits = {"memory_mb": 256, "disk_mb": 64}
    gate = threading.Barrier(32, timeout=500)
    task = task_of(small_row)
    before = len(ours())

    def episode(number: int) -> float:
        env = gymnasium.make(
            "agentgym_rtmc/SWEBench-v0",
            container=limits,
            grading_container=limits,
            grading_seconds=500.0,
            gradings=tmp_path / "gradings",
            command_seconds=300.0,
        )
        try:
            env.reset(seed=number, options={"task": task})
            gate.wait()  # all containers are there at the same time
            env.step(write_action(f"echo '# {number}' >>shapes/area.py"))
            if number % 4 == 0:
                env.step(write_action(next(iter(apply_commands(small_row.patch)))))
            _, reward, terminated, _, info = env.step(write_action("submit"))
            assert terminated and not info["grade"]["tampered"] and f"+# {number}\n" in info["patch"]
            return float(reward)
        finally:
            env.close()

    threads = threading.active_count()
    with ThreadPoolExecutor(32) as pool:
        paid = list(pool.map(episode, range(32)))
    assert paid == [float(number % 4 == 0) for number in range(32)]
    assert len(ours()) == before
    assert threading.active_count() <= threads + 1  # one listens to the engine's events as long as the process lives


def test_eval_reports_and_resumes(run: Run, rows: Path, tmp_path: Path) -> None:
    options = [
        "env.id=agentgym_rtmc/SWEBench-v0",
        f'env.task_options={{source = "{rows}"}}',
        f'env.options={{gradings = "{tmp_path}/gradings", grading_container = {{memory_mb = 512}}, max_turns = 5}}',
    ]
    words = [
        "eval",
        "scripted:reference",
        *options,
        "--split",
        "test",
        "--workers",
        "2",
        "-o",
        "episodes.jsonl",
        "--json",
    ]
    first = json.loads(run(*words, "--tasks", "1", "--report", "report").stdout)
    assert first[0]["pass_at_1"] == 1.0
    report = json.loads(next((tmp_path / "report/sample-1").glob("*.eval.json")).read_text(encoding="utf-8"))
    assert report["resolved_instances"] == report["total_instances"] == 1
    lines = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").count("\n")
    run(*words, "--tasks", "1", "--resume")
    assert (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").count("\n") == lines
    run(*words, "--tasks", "2", "--resume")
    assert (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").count("\n") == lines + 2
