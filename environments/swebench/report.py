"""The results of an evaluation, on disk as swebench leaves them, so that its own tools go on with them.

    preds.json                                                  the predictions
    logs/run_evaluation/<run>/<model>/<instance>/               patch.diff eval.sh test_output.txt run_instance.log
                                                                report.json (swebench's verdict) verdict.json (ours)
    <model>.<run>.json                                          the report of the run, schema version 2

Invariants: `report.json` is written last and in one step, so an instance that has one is finished; what a kill leaves
unfinished is done again, nothing else. swebench's verdicts stand alone in its files; what we know beyond them
(tampering, what is paid, hints) is in `verdict.json` and in the keys that `write_report` adds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.environments.swebench import harness_process
from agentgym_rtmc.environments.swebench.grading import Grade, GradedRun
from agentgym_rtmc.environments.swebench.predictions import Prediction, read_predictions, write_predictions
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import ConfigError, TaskError

LOGS = Path("logs/run_evaluation")
_LONGEST = 240
"""Bytes of a model's name and a run's id together: one file has both in its name, and an ending."""


class EvaluationRun:
    """One run of one model below `folder`; may be opened again to go on. Methods may be called from any thread.

    `run_id` and the model's name are part of folders and file names. Raises ConfigError for unusable ones, TaskError
    for predictions of another model in the folder.
    """

    def __init__(self, folder: str | Path, run_id: str, model: str, *, dataset: str = "", split: str = "test") -> None:
        together = len(f"{model.replace('/', '__')}.{run_id}".encode())
        for what, name in (("run id", run_id), ("model name", model.replace("/", "__"))):
            if not name or name.startswith(".") or "/" in name or not name.isprintable() or together > _LONGEST:
                raise ConfigError(f"the {what} {name[:80]!r} cannot be part of a file's name")
        self.folder, self.run_id, self.model = Path(folder), run_id, model
        self.logs = self.folder / LOGS / run_id / model.replace("/", "__")
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be the folder of a run ({error}); choose another one") from error
        self._predictions_file = self.folder / "preds.json"
        self._lock = threading.Lock()
        self._predictions = read_predictions(self._predictions_file) if self._predictions_file.exists() else {}
        others = {one.model_name_or_path for one in self._predictions.values()} - {model}
        if others:
            raise TaskError(
                f"{self._predictions_file} has predictions of {min(others)}, not of {model}; take a new folder"
            )
        self._write_metadata(dataset, split)

    def _write_metadata(self, dataset: str, split: str) -> None:
        path = self.logs.parent / "run.json"
        if not path.exists():
            created = datetime.now(UTC).isoformat(timespec="seconds")
            values = {"dataset": dataset, "split": split, "task_repo": None, "created_at": created}
            replace_text(path, json.dumps(values, indent=2) + "\n")

    @property
    def predictions(self) -> dict[str, Prediction]:
        """The predictions so far, by id."""
        with self._lock:
            return dict(self._predictions)

    def instance_folder(self, instance_id: str) -> Path:
        """Where the files of an instance lie."""
        return self.logs / instance_id

    def predict(self, instance_id: str, patch: str | None) -> Prediction:
        """Keep a prediction; what was graded of an earlier, other one of this instance is no longer a result."""
        prediction = Prediction(instance_id=instance_id, model_name_or_path=self.model, model_patch=patch)
        with self._lock:
            if self._predictions.get(instance_id) not in (None, prediction):
                (self.instance_folder(instance_id) / "report.json").unlink(missing_ok=True)
            self._predictions[instance_id] = prediction
            write_predictions(self._predictions_file, self._predictions)
        return prediction

    def record(self, row: SWEBenchRow, patch: str, run: GradedRun, notes: Sequence[str] = ()) -> None:
        """Keep the result of a prediction that was graded; `notes` are lines for its log (what was left out, why)."""
        folder = self._begin(row, patch, notes)
        replace_text(folder / "test_output.txt", run.log)
        values = {**asdict(run.grade), "reward": run.grade.reward}
        replace_text(folder / "verdict.json", json.dumps(values, indent=2) + "\n")
        replace_text(folder / "report.json", json.dumps({row.instance_id: dict(run.report)}, indent=4))

    def record_error(self, row: SWEBenchRow, patch: str, error: str) -> None:
        """Keep that a prediction could not be graded: it counts as an error, and is graded again on resuming."""
        self._begin(row, patch, [error])

    def _begin(self, row: SWEBenchRow, patch: str, notes: Sequence[str]) -> Path:
        folder = self.instance_folder(row.instance_id)
        folder.mkdir(exist_ok=True)
        (folder / "report.json").unlink(missing_ok=True)
        replace_text(folder / "patch.diff", patch)
        replace_text(folder / "eval.sh", row.eval_script)
        replace_text(folder / "run_instance.log", "".join(f"{note}\n" for note in notes))
        return folder

    def grades(self) -> dict[str, Grade]:
        """The grades of all finished instances that were graded here, by id."""
        found = {}
        for name in self.predictions:
            verdict = self.instance_folder(name) / "verdict.json"
            if self._report(name) is not None and verdict.exists():
                found[name] = Grade.read(json.loads(verdict.read_text(encoding="utf-8")))
        return found

    def todo(self, instance_ids: Iterable[str]) -> list[str]:
        """The instances without a result: never predicted, never graded, or ended by an error. In the order given.

        An empty prediction is one: it is never run.
        """
        known = self.predictions
        return [
            name
            for name in instance_ids
            if name not in known or not (known[name].empty or self._report(name) is not None)
        ]

    def _report(self, instance_id: str) -> Mapping[str, Any] | None:
        """swebench's verdict on an instance, None where there is none that can be read."""
        try:
            values = json.loads((self.instance_folder(instance_id) / "report.json").read_text(encoding="utf-8"))
            report: Mapping[str, Any] = values[instance_id]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return report if isinstance(report.get("resolved"), bool) else None

    def write_report(self, rows: Sequence[SWEBenchRow], *, hints: bool = False) -> Path:
        """Let swebench write the report of the run over `rows` (the whole dataset); returns its path.

        Keys of ours are added: `tampered_ids` and `paid_ids`, and `hints_text` where the agents were shown hints.
        Raises TaskError where there are no predictions, GradingError when swebench fails.
        """
        predictions = self.predictions
        if not predictions:
            raise TaskError(f"{self.folder} has no predictions to report on")
        values = {name: one.model_dump() for name, one in predictions.items()}
        written = harness_process.run_report(rows, values, self.run_id, self.folder.resolve())
        path = self.folder / Path(written).name
        report = json.loads(path.read_text(encoding="utf-8"))
        grades = self.grades()
        report["tampered_ids"] = sorted(name for name, grade in grades.items() if grade.tampered)
        report["paid_ids"] = sorted(name for name, grade in grades.items() if grade.reward)
        if hints:
            report["hints_text"] = True
        replace_text(path, json.dumps(report, indent=4) + "\n")
        return path
