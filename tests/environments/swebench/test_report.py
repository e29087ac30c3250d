"""Results on disk: swebench reads them back as its own, and only what is missing is done again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentgym_rtmc.environments.swebench.grading import Grade, GradedRun, grade_finished
from agentgym_rtmc.environments.swebench.predictions import Prediction, read_predictions, write_predictions
from agentgym_rtmc.environments.swebench.report import EvaluationRun
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import ConfigError, TaskError

READ_BACK = """
import json, sys
from swebench.harness.reporting import make_run_report
from swebench.harness.run_evaluation import get_dataset_from_preds, read_run_metadata, run_instance
from swebench.harness.utils import get_predictions_from_file, make_test_spec
run_id = sys.argv[1]
predictions = {p["instance_id"]: p for p in get_predictions_from_file("preds.json", "rows.json", "test")}
rows = json.load(open("rows.json"))
left = get_dataset_from_preds("rows.json", "test", [], predictions, run_id, False)
again = get_dataset_from_preds("rows.json", "test", [], predictions, run_id, True)
specs = [make_test_spec(row) for row in again]
reports = dict(run_instance(s, predictions[s.instance_id], None, run_id, rewrite_reports=True) for s in specs)
path = make_run_report(predictions, rows, run_id, client=None, report_dir="by_swebench")
print(json.dumps({
    "left": [row["instance_id"] for row in left],
    "reports": {name: report[name] for name, report in reports.items()},
    "summary": json.load(open(path)),
    "metadata": read_run_metadata(run_id),
}))
"""


def read_back(folder: Path, rows: list[dict[str, Any]], run_id: str) -> dict[str, Any]:
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", READ_BACK, run_id], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_swebench_reads_back_what_was_written(tmp_path: Path, recorded) -> None:
    pytest.importorskip("swebench")
    run = EvaluationRun(tmp_path, "one", "me/model", dataset="SWE-bench/SWE-bench_Lite")
    rows = [row for row, _ in recorded[::2]]
    names = [row["instance_id"] for row in rows]
    expected: dict[str, Any] = {}
    for number, (values, log) in enumerate([*recorded[1:16:2], *recorded[16:32:2]]):
        row = SWEBenchRow.read(values, "row")
        patch = values["patch"] if log["resolved"] else "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
        run.predict(row.instance_id, patch)
        graded = grade_finished(row, patch, log["log"])
        if number == 0:
            grade = Grade(True, True, graded.grade.fail_to_pass, graded.grade.pass_to_pass, reasons=("forged",))
            graded = GradedRun(grade, graded.log, graded.report)
        run.record(row, patch, graded, ["left out: x.png: a binary file"])
        expected[row.instance_id] = graded.report
    failed = SWEBenchRow.read(rows[16], "row")
    run.predict(failed.instance_id, "x")
    run.record_error(failed, "x", "the container died")
    run.predict(names[17], "")
    run.predict(names[18], None)

    path = run.write_report([SWEBenchRow.read(row, "row") for row in rows], hints=True)
    assert path == tmp_path / "me__model.one.json"
    report = json.loads(path.read_text())
    back = read_back(tmp_path, rows, "one")
    # The same verdicts from our logs, the same report but for our three keys, and the same instances left to do.
    assert back["reports"] == expected and len(expected) == 16
    assert {key: value for key, value in report.items() if key in back["summary"]} == back["summary"]
    assert set(report) - set(back["summary"]) == {"tampered_ids", "paid_ids", "hints_text"}
    assert report["schema_version"] == 2 and report["hints_text"] is True
    assert report["resolved_instances"] == 8 and report["unresolved_instances"] == 8
    assert report["error_ids"] == [names[16]] and report["empty_patch_ids"] == sorted(names[17:19])
    assert report["incomplete_ids"] == [names[19]] and report["total_instances"] == 20
    assert report["tampered_ids"] == [names[0]] and set(report["paid_ids"]) == set(report["resolved_ids"]) - {names[0]}
    assert back["left"] == [names[16]]
    assert run.todo(names) == [names[16], names[19]]
    assert back["metadata"]["dataset"] == "SWE-bench/SWE-bench_Lite"
    folder = tmp_path / "logs" / "run_evaluation" / "one" / "me__model" / names[0]
    files = {"patch.diff", "eval.sh", "test_output.txt", "run_instance.log", "report.json", "verdict.json"}
    assert {path.name for path in folder.iterdir()} == files
    assert run.grades()[names[0]].reasons == ("forged",) and run.grades()[names[0]].reward == 0.0


def small_run(folder: Path, recorded) -> tuple[EvaluationRun, SWEBenchRow, GradedRun]:
    values, log = recorded[1]
    row = SWEBenchRow.read(values, "row")
    run = EvaluationRun(folder, "one", "m")
    report = {"patch_exists": True, "patch_is_None": False, "resolved": True, "infra_failure": False}
    return run, row, GradedRun(Grade(True, False, (1, 0), (76, 0)), log["log"], report)


def test_only_what_is_missing_or_broken_is_done_again(tmp_path: Path, recorded) -> None:
    run, row, graded = small_run(tmp_path, recorded)
    name = row.instance_id
    assert run.todo([name]) == [name]
    run.predict(name, "p")
    run.record(row, "p", graded)
    again = EvaluationRun(tmp_path, "one", "m")
    assert again.todo([name]) == [] and again.grades() == {name: graded.grade}
    report = again.instance_folder(name) / "report.json"
    whole = report.read_text()
    for broken in ("", whole[: len(whole) // 2], "[]", "{}", f'{{"{name}": {{}}}}'):
        report.write_text(broken)
        assert again.todo([name]) == [name] and again.grades() == {}
    report.write_text(whole)
    again.predict(name, "p")
    assert again.todo([name]) == []
    # Another patch makes the old result none; so does an error.
    again.predict(name, "q")
    assert again.todo([name]) == [name]
    again.record(row, "q", graded)
    again.record_error(row, "q", "gone")
    assert again.todo([name]) == [name]
    assert (again.instance_folder(name) / "run_instance.log").read_text() == "gone\n"
    # What swebench graded itself is finished, too, but has no grade of ours.
    (again.instance_folder(name) / "verdict.json").unlink()
    report.write_text(whole)
    assert again.todo([name]) == [] and again.grades() == {}


def test_a_kill_in_the_middle_leaves_nothing_half(tmp_path: Path, recorded) -> None:
    """Killed by the signal no program can catch, over and over: every file is whole, and the rest is done again."""
    script = (
        "import sys\nfrom agentgym_rtmc.environments.swebench.report import EvaluationRun\n"
        "run = EvaluationRun(sys.argv[1], 'one', 'm')\nprint('go', flush=True)\nn = 0\n"
        "while True:\n    run.predict(f'a__b-{n % 50}', str(n)); n += 1\n"
    )
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "go\n"
        threading.Event().wait(0.2)
        process.kill()
        process.wait()
        process.stdout.close()
        EvaluationRun(tmp_path, "one", "m")
    assert len(read_predictions(tmp_path / "preds.json")) >= 1


def test_threads_lose_no_prediction(tmp_path: Path) -> None:
    run = EvaluationRun(tmp_path, "one", "m")
    threads = [threading.Thread(target=run.predict, args=(f"a__b-{number}", "p")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_predictions(tmp_path / "preds.json")) == 20


def test_folders_and_names_that_do_not_fit(tmp_path: Path, recorded) -> None:
    for run_id, model in (("a/b", "m"), ("", "m"), (".x", "m"), ("x", ""), ("x", ".."), ("x", "m" * 300)):
        with pytest.raises(ConfigError, match="cannot be part of a file's name"):
            EvaluationRun(tmp_path, run_id, model)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", Path("/proc/none")):
        with pytest.raises(ConfigError, match="cannot be the folder of a run"):
            EvaluationRun(folder, "x", "m")
    run, row, _ = small_run(tmp_path, recorded)
    with pytest.raises(TaskError, match="has no predictions to report on"):
        run.write_report([row])
    run.predict(row.instance_id, "p")
    with pytest.raises(TaskError, match="has predictions of m, not of other"):
        EvaluationRun(tmp_path, "two", "other")


PREDICTIONS = {
    "a__b-1": Prediction(instance_id="a__b-1", model_name_or_path="m/x", model_patch="+ü\u2028\r\n"),
    "a__b-2": Prediction(instance_id="a__b-2", model_name_or_path="m/x", model_patch=None),
}


@pytest.mark.parametrize("name", ["preds.json", "preds.jsonl"])
def test_predictions_are_read_as_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_predictions(path, PREDICTIONS)
    assert read_predictions(path) == PREDICTIONS
    assert [one.empty for one in PREDICTIONS.values()] == [False, True]


def test_predictions_of_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "preds.json"
    rows = [one.model_dump() | {"cost": 3} for one in PREDICTIONS.values()]
    path.write_text(json.dumps(rows))
    assert read_predictions(path) == PREDICTIONS
    path.write_text(json.dumps({row.pop("instance_id"): row for row in rows}))
    assert read_predictions(path) == PREDICTIONS


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("p.json", "{", "p.json: not JSON"),
        ("p.json", "3", "a list of predictions is expected"),
        ("p.json", "[3]", "p.json: prediction 1: it: "),
        ("p.json", '[{"model_patch": ""}]', "p.json: prediction 1: instance_id: Field required"),
        ("p.jsonl", '{"instance_id": "a"}\n{"instance_id": "a"}\n', "p.jsonl: prediction 2: a has one already"),
        ("p.jsonl", '{"instance_id": "a", "model_patch": 3}\n', "p.jsonl: prediction 1: model_patch"),
        ("p.json", '[{"instance_id": "a", "model_patch": "\\ud800"}]', "p.json: prediction 1: model_patch: "),
        ("p.txt", "", "are read from .json and .jsonl files"),
    ],
)
def test_predictions_that_cannot_be_read(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError) as caught:
        read_predictions(tmp_path / name)
    assert complaint in str(caught.value)
    with pytest.raises(TaskError, match="cannot be read"):
        read_predictions(tmp_path / "nosuch.json")
    with pytest.raises(TaskError, match="are written to"):
        write_predictions(tmp_path / "p.txt", PREDICTIONS)
