"""Gradings that are kept: found again, by everybody, whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentgym_rtmc.environments.swebench.grading_store import GradingStore
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

pytest.importorskip("swebench")
REFUSED = "diff --git a/.git/config b/.git/config\n--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
def row(recorded) -> SWEBenchRow:  # type: ignore[no-untyped-def]
    return SWEBenchRow.read(recorded[0][0], "row")


def test_kept_and_found(row: SWEBenchRow, tmp_path: Path) -> None:
    """Neither patch needs a container: one is empty, one refused."""
    for patch in ("", REFUSED):
        first = GradingStore(tmp_path).grade(row, patch, limits=ContainerLimits(), seconds=1)
        assert GradingStore(tmp_path).grade(row, patch, limits=ContainerLimits(), seconds=1) == first
    folders = list((tmp_path / row.instance_id).iterdir())
    assert len(folders) == 2
    verdict = folders[0] / "verdict.json"
    verdict.write_text(json.dumps(json.loads(verdict.read_text()) | {"tampered": True, "notes": ["read"]}))
    kept = [GradingStore(tmp_path).grade(row, one, limits=ContainerLimits(), seconds=1) for one in ("", REFUSED)]
    assert sorted(done.run.grade.tampered for done in kept) == [False, True]


def test_at_the_same_time(row: SWEBenchRow, tmp_path: Path) -> None:
    def grade(number: int) -> object:
        return GradingStore(tmp_path).grade(row, REFUSED, limits=ContainerLimits(), seconds=1)

    for _ in range(5):
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(grade, range(16)))
        assert all(one == found[0] for one in found)
        (folder,) = (tmp_path / row.instance_id).iterdir()
        assert len(list(folder.iterdir())) == 5
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
