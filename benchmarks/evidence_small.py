"""The learning result that stands: `python benchmarks/evidence_small.py [--out DIR] [--seeds N] [KEY=VALUE ...]`.

For each seed the embedded model gets its supervised start and is then trained with the same number of episodes three
times: on its successful episodes only (`successes`: the same loss, advantage 1 for them and 0 for others), with `grpo`
and with `rtmc`. Every policy, and the scripted demonstrator, plays the three test splits, which no setting was chosen
on. The table has means over seeds; differences are paired by program, with a bootstrap that resamples programs.

A cell (method, seed, split) is one file: a run that was stopped continues where it was, and training continues from its
last checkpoint. `--only SEED` makes one seed's cells and no table: so several processes can share the work of one
folder, each with its own seeds (`run.threads=1` for each, and for the table). KEY=VALUE override the configuration
(examples/code_repair.toml), for a quick trial for example.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidence.cells import Cell, difference, make_cells, refuse_other_settings, seeded
from numpy.typing import NDArray

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.credit import RolloutTree
from agentgym_rtmc.trainer.credit.registry import estimator
from agentgym_rtmc.trainer.edits import first_edit_hit
from agentgym_rtmc.trainer.evaluate import Evaluation, passed
from agentgym_rtmc.trainer.metrics import read_metrics
from agentgym_rtmc.trainer.preparation import prepare
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.threads import set_threads

HERE = Path(__file__).resolve().parent
SPLITS = {
    "instances_test": "new bugs in known programs",
    "families": "programs never trained on",
    "handwritten_test": "programs as a person wrote them",
}
TRAINED = ("successes", "grpo", "rtmc")
METHODS = {
    "demonstrator": "scripted demonstrator",
    "start": "supervised start",
    "successes": "supervised on successes",
    "grpo": "`grpo`",
    "rtmc": "`rtmc`",
}


@estimator("successes", needs_company=False)
def successes(tree: RolloutTree, *, success: float) -> NDArray[np.float64]:
    """1 for every step of an episode with at least the return `success`, else 0. Shape: (steps,)."""
    return np.repeat((tree.episode_returns >= success).astype(np.float64), tree.lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE.parent / "examples" / "code_repair.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence-small"), help="cells, runs, table and pictures")
    parser.add_argument("--images", type=Path, help="where the pictures go; default: OUT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, action="append", metavar="SEED", help="make this seed's cells alone")
    parser.add_argument("--episodes", type=int, default=200, help="least number of episodes of a cell")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    base = load_settings(TrainConfig, arguments.config, arguments.overrides)
    set_threads(base.run.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    refuse_other_settings(arguments.out / "settings.json", base, arguments.episodes)
    cells: list[Cell] = []
    with Progress() as progress:
        for seed in arguments.only or range(arguments.seeds):
            config = seeded(base, seed)
            prepared = prepare(config)
            for method in METHODS:
                cells += make_cells(
                    method, config, prepared, arguments.out, list(SPLITS), arguments.episodes,
                    lambda found, least=config.evaluation.success_reward: keep(found, least), progress,
                    {"success": config.evaluation.success_reward} if method == "successes" else None,
                )  # fmt: skip
    if arguments.only:
        return
    table = describe(cells)
    replace_text(arguments.out / "table.md", table)
    replace_text(arguments.out / "cells.json", json.dumps(cells) + "\n")
    draw(arguments.out, arguments.seeds, arguments.images or arguments.out)
    print(table)


def keep(found: Evaluation, success_reward: float) -> dict[str, Any]:
    """Outcomes and first-edit hits of every task, and the figures of the evaluation."""
    rows = []
    for group in found.groups:
        valid = [episode for episode in group.episodes if episode.valid]
        rows.append(
            {
                "task": group.task_id,
                "program": str(group.episodes[0].opening.task.public.get("family", group.task_id)),
                "passed": [int(passed(episode, success_reward)) for episode in valid],
                "first": [int(first_edit_hit(episode)) for episode in valid],
            }
        )
    return {"tasks": rows, "figures": found.row()}


# -- the table ------------------------------------------------------------------------------------------------------


def describe(cells: Sequence[Cell]) -> str:
    """Return the tables in Markdown: means over seeds, then differences paired by program."""
    seeds = sorted({cell["seed"] for cell in cells})
    lines = [f"pass@1 · first-edit hit rate, mean over {len(seeds)} seeds; in brackets the seeds' pass@1.", ""]
    lines += ["| | " + " | ".join(f"{split}: {words}" for split, words in SPLITS.items()) + " |", "|---|---|---|---|"]
    for method, words in METHODS.items():
        entries = [_entry([cell for cell in cells if (cell["method"], cell["split"]) == (method, s)]) for s in SPLITS]
        lines.append(f"| {words} | " + " | ".join(entries) + " |")
    counts = [sum(len(row["passed"]) for row in cell["tasks"]) for cell in cells if cell["split"] in SPLITS]
    lines += ["", f"At least {min(counts)} episodes a cell and seed. Differences of pass@1, 95 % intervals:", ""]
    lines += ["| | " + " | ".join(SPLITS) + " |", "|---|---|---|---|"]
    for new, old in (("rtmc", "start"), ("grpo", "start"), ("successes", "start"), ("rtmc", "successes"),
                     ("rtmc", "grpo")):  # fmt: skip
        changes = [str(difference(cells, old, new, split, "program")) for split in SPLITS]
        lines.append(f"| {METHODS[new]} less {METHODS[old]} | " + " | ".join(changes) + " |")
    return "\n".join(lines) + "\n"


def _entry(cells: Sequence[Cell]) -> str:
    def mean(cell: Cell, name: str) -> float:
        return float(np.mean([value for row in cell["tasks"] for value in row[name]]))

    each = [mean(cell, "passed") for cell in cells]
    first = float(np.mean([mean(cell, "first") for cell in cells]))
    return f"{np.mean(each):.3f} · {first:.3f} ({', '.join(f'{value:.2f}' for value in each)})"


# -- the pictures ---------------------------------------------------------------------------------------------------


def draw(out: Path, seeds: int, images: Path) -> None:
    """Draw what the runs recorded: learning curves, and what credit was made of."""
    runs = {m: [read_metrics(out / "runs" / f"{m}-{seed}" / "metrics.jsonl") for seed in range(seeds)] for m in TRAINED}
    images.mkdir(parents=True, exist_ok=True)
    learning = {
        "pass_rate": "solved (training episodes)",
        "first_edit_hit": "first edit right",
        "idle_edit_share": "edits that lead nowhere",
        "entropy": "entropy, nats a token",
    }
    credit = {
        "company_share": "turns whose state another episode met",
        "groups_zero_variance": "groups without variance (of those of an update)",
        "credit_rms": "advantages, root mean square",
        "grad_norm": "norm of the gradient",
    }
    _panels(runs, learning, images / "evidence-learning.png", "Learning curves, mean and range over seeds")
    _panels(runs, credit, images / "evidence-credit.png", "What credit is made of, mean and range over seeds")


def _panels(runs: Mapping[str, Sequence[Sequence[Cell]]], names: Mapping[str, str], file: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.style import context

    from agentgym_rtmc.trainer.figures import BLUE, INK, ORANGE, STYLE

    colours = dict(zip(TRAINED, (INK, ORANGE, BLUE), strict=True))
    with context(STYLE):
        figure = Figure(figsize=(9, 6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        for axes, (name, words) in zip(figure.subplots(2, 2).flat, names.items(), strict=True):
            axes.set_title(words)
            for method, tables in runs.items():
                curves = [_smooth([row.get(name) for row in table]) for table in tables if table]
                if not curves:
                    continue
                shortest = min(map(len, curves))
                values = np.asarray([curve[:shortest] for curve in curves])
                updates = np.arange(1, shortest + 1)
                axes.plot(updates, np.nanmean(values, 0), color=colours[method], label=method)
                axes.fill_between(updates, values.min(0), values.max(0), color=colours[method], alpha=0.12, lw=0)
            axes.set_xlabel("update")
        figure.axes[0].legend(frameon=False)
        figure.savefig(file, dpi=120)


def _smooth(values: Sequence[float | None], width: int = 7) -> NDArray[np.float64]:
    """Running mean over the last `width` updates. Shape: (updates,)."""
    numbers = np.asarray([np.nan if value is None else value for value in values], np.float64)
    return np.asarray([np.nanmean(numbers[max(0, i - width + 1) : i + 1]) for i in range(len(numbers))])


if __name__ == "__main__":
    main()
