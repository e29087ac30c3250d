from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_rtmc.trainer.figures import learning_curve, moving_mean

ROWS: list[dict[str, Any]] = [
    {"update": u, "pass_rate": 0.3 + u / 50, "reward": 0.2 + u / 50, "entropy": 0.4 - u / 100, "company_share": 0.9}
    for u in range(1, 25)
]
HELD_OUT = [
    {"update": 0, "pass_at_1": 0.3, "low": 0.25, "high": 0.36, "tasks": 200},
    {"update": 24, "pass_at_1": 0.6, "low": 0.54, "high": 0.66, "tasks": 200},
]


def panels(path: Path) -> int:
    """Count the blocks of ink that stand apart in each of the picture's halves."""
    image = pytest.importorskip("matplotlib.image").imread(path)[..., :3]
    ink = image.min(axis=2) < 0.5
    height, width = ink.shape
    rows = max(1, round(height / 435))
    return sum(
        bool(ink[i * height // rows : (i + 1) * height // rows, half].sum() > 1500)
        for i in range(rows)
        for half in (slice(0, width // 2), slice(width // 2, None))
    )


@pytest.mark.parametrize(
    ("drop", "held_out", "expected"),
    [((), HELD_OUT, 4), ((), [], 3), (("entropy",), HELD_OUT, 3), (("entropy", "company_share"), [], 1)],
)
def test_each_recorded_series_has_a_panel(
    tmp_path: Path, drop: tuple[str, ...], held_out: list[dict[str, Any]], expected: int
) -> None:
    rows = [{name: value for name, value in row.items() if name not in drop} for row in ROWS]
    learning_curve(rows, held_out, tmp_path / "curve.png")
    assert panels(tmp_path / "curve.png") == expected


def test_gaps_splits_and_short_runs_are_drawn(tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[3]["entropy"] = None
    rows[5]["reward"] = -2.0
    splits = [row | {"split": name} for name in ("families", "programs") for row in HELD_OUT]
    learning_curve(rows, splits, tmp_path / "a.png", title="a run")
    learning_curve(ROWS[:1], HELD_OUT[:1], tmp_path / "b.png")
    learning_curve([], HELD_OUT, tmp_path / "c.png")
    assert [panels(tmp_path / f"{name}.png") for name in "abc"] == [4, 4, 1]


def test_the_mean_moves_over_what_is_known() -> None:
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan])
    assert moving_mean(values, 3).tolist() == [1.0, 2.0, 4.0, 4.0, 5.0]
    assert np.isnan(moving_mean(np.array([np.nan, np.nan]), 1)).all()
    assert moving_mean(values[:1], 1).tolist() == [1.0]


def test_importing_the_trainer_does_not_import_matplotlib() -> None:
    code = "import sys; import agentgym_rtmc.trainer.figures; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
