"""What a run ends with, on disk as result.json and printed as a table.

Invariant: a finished run prints its result without a model being loaded.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.tables import show_json, show_table
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.run_folder import RunFolder


@dataclass(frozen=True)
class TrainResult:
    """`before` and `after` are evaluations (None: not on record); `seconds` those of the process that ended the run."""

    updates: int
    episodes: int
    seconds: float
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def write_result(folder: RunFolder, result: TrainResult) -> None:
    """Keep a result in the run's folder."""
    replace_text(folder.result, json.dumps(dataclasses.asdict(result), indent=2) + "\n")


def read_result(folder: RunFolder) -> TrainResult | None:
    """Read the result of a run, None while it has none."""
    if not folder.result.exists():
        return None
    return TrainResult(**json.loads(folder.result.read_text(encoding="utf-8")))


def show_result(config: TrainConfig, folder: RunFolder, result: TrainResult, *, as_json: bool) -> None:
    """Print a result, where it lies, and what to do next."""
    curve = str(folder.curve) if folder.curve.exists() else None
    if as_json:
        show_json({**dataclasses.asdict(result), "folder": str(folder.path), "curve": curve})
        return
    title = f"{config.env.id}, {config.credit.estimator}: {result.updates} updates, {result.episodes} episodes"
    rows = [_row(name, row) for name, row in (("before", result.before), ("after", result.after)) if row]
    show_table(rows, title=title)
    print(f"run folder:     {folder.path}")
    if curve is not None:
        print(f"learning curve: {curve}")
    other = "grpo" if config.credit.estimator != "grpo" else "rtmc"
    print(f"next: compare with another estimator:  agentgym-rtmc train --estimator {other}")
    print(f"      see it at work:                  agentgym-rtmc eval {folder.path} --tasks 3 --show")


def _row(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    return {
        "held-out tasks": name,
        "pass@1": share(figures["pass_at_1"]),
        "95 % interval": f"{share(figures['low'])} – {share(figures['high'])}",
        "tasks": figures["tasks"],
        "episodes": figures["episodes"],
        "turns/episode": f"{figures['turns_per_episode']:.1f}",
    }
