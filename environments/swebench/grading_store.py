"""Gradings, kept so that a patch is graded once: a folder per instance and patch.

    <instance>/<digest of row and patch>/   patch.diff test_output.txt run_instance.log report.json verdict.json

Invariants: `verdict.json` is written last and in one step; without it there is no grading, whatever else lies there.
Only what was graded is kept, never a failure of the machine. Without a folder nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.environments.swebench.grader import PatchGrade, grade_patch
from agentgym_rtmc.environments.swebench.grading import Grade, GradedRun
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.patch import clean_patch, graded_files
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow


class GradingStore:
    """Grades patches and remembers. Several processes may use one folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def grade(self, row: SWEBenchRow, patch: str, *, limits: ContainerLimits, seconds: float) -> PatchGrade:
        """What is kept of this patch, else `grader.grade_patch`."""
        if self._folder is None:
            return grade_patch(row, patch, limits=limits, seconds=seconds)
        folder = self._folder / row.instance_id / _key(row, patch)
        kept = _read(folder, row, patch)
        if kept is not None:
            return kept
        done = grade_patch(row, patch, limits=limits, seconds=seconds)
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "patch.diff", _text(done.patch.text))
        replace_text(folder / "test_output.txt", _text(done.run.log))
        replace_text(folder / "run_instance.log", "".join(f"{_text(note)}\n" for note in done.notes))
        replace_text(folder / "report.json", json.dumps(dict(done.run.report), indent=4))
        replace_text(folder / "verdict.json", json.dumps({**asdict(done.run.grade), "notes": done.notes}, indent=2))
        return done


def _key(row: SWEBenchRow, patch: str) -> str:
    text = json.dumps([row.model_dump(mode="json"), patch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _text(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read(folder: Path, row: SWEBenchRow, patch: str) -> PatchGrade | None:
    try:
        verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        log = (folder / "test_output.txt").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    notes = tuple(verdict.pop("notes"))
    lists = {name: tuple(verdict[name]) for name in ("fail_to_pass", "pass_to_pass", "reasons")}
    return PatchGrade(clean_patch(patch, graded_files(row)), GradedRun(Grade(**(verdict | lists)), log, report), notes)
