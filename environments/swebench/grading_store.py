"""Gradings, kept so that a patch is graded once: a folder per instance and patch.

    <instance>/<digest of row and patch>/   patch.diff test_output.txt run_instance.log report.json verdict.json

Invariants: a grading appears in one step, whole; of two that are made at once the first stays.
Only what was graded is kept, never a failure of the machine. Without a folder nothing is kept.
"""

from __future__ import annotations

import errno
import hashlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.environments.swebench.grader import PatchGrade, grade_patch
from agentgym_rtmc.environments.swebench.grading import Grade, GradedRun
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.patch import clean_patch, graded_files
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import RunFolderError


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
        self._keep(folder, done)
        return done

    def _keep(self, folder: Path, done: PatchGrade) -> None:
        """Write a grading where nobody looks, then move it to its place, unless another was faster."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        files = {
            "patch.diff": _text(done.patch.text),
            "test_output.txt": _text(done.run.log),
            "run_instance.log": "".join(f"{_text(note)}\n" for note in done.notes),
            "report.json": json.dumps(dict(done.run.report), indent=4),
            "verdict.json": json.dumps({**asdict(done.run.grade), "notes": done.notes}, indent=2),
        }
        with tempfile.TemporaryDirectory(prefix=".grading-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            for name, text in files.items():
                replace_text(whole / name, text)
            try:
                whole.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise RunFolderError(f"{folder} could not be written: {error.strerror}; make room") from error


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
    run = GradedRun(Grade.read(verdict), log, report)
    return PatchGrade(clean_patch(patch, graded_files(row)), run, tuple(verdict["notes"]))
