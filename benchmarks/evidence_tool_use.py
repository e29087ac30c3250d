"""What learning makes of tool use: `python benchmarks/evidence_tool_use.py [ENV ...] [--out DIR] [--seeds N]`.

ENV is `service_desk`, `data_questions` or both; each is trained as its file in `examples/` says. For each seed the
embedded model gets its supervised start and is then trained with the same number of episodes by each estimator. Every
policy, and the scripted demonstrator, plays the split `test`, which no setting was chosen on. Success is a total reward
of at least `evaluation.success_reward`. Differences are paired by task, with a bootstrap that resamples tasks.

A cell (method, seed) is one file: a run that was stopped continues where it was, and training continues from its last
checkpoint. `--only SEED` makes one seed's cells and no table, so that several processes can share a folder's work, each
with its own seeds (`--set run.threads=1` for each, and for the table). `--set KEY=VALUE` (repeatable) overrides the
configuration, for a quick trial for example.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidence.cells import DEMONSTRATOR, START, Cell, difference, make_cells, refuse_other_settings, seeded

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.evaluate import Evaluation, passed
from agentgym_rtmc.trainer.preparation import prepare
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.statistics import clustered_interval
from agentgym_rtmc.trainer.threads import set_threads

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = ("service_desk", "data_questions")
ESTIMATORS = ("rtmc", "grpo", "gigpo", "closure")
SPLIT = "test"
WORDS = {DEMONSTRATOR: "scripted demonstrator", START: "supervised start"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENV", help=" or ".join(ENVIRONMENTS))
    parser.add_argument("--out", type=Path, default=Path("runs/evidence-tool-use"), help="cells, runs and tables")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, action="append", metavar="SEED", help="make this seed's cells alone")
    parser.add_argument("--episodes", type=int, default=400, help="least number of episodes of a cell")
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS, metavar="NAME")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for name in arguments.environments or ENVIRONMENTS:
        if name not in ENVIRONMENTS:
            parser.error(f"{name} is none of {', '.join(ENVIRONMENTS)}")
        base = load_settings(TrainConfig, HERE.parent / "examples" / f"{name}.toml", arguments.overrides)
        set_threads(base.run.threads)
        out = arguments.out / name
        out.mkdir(parents=True, exist_ok=True)
        refuse_other_settings(out / "settings.json", base, arguments.episodes)
        cells: list[Cell] = []
        with Progress() as progress:
            for seed in arguments.only or range(arguments.seeds):
                config = seeded(base, seed)
                prepared = prepare(config)
                for method in (DEMONSTRATOR, START, *arguments.estimators):
                    cells += make_cells(
                        method, config, prepared, out, [SPLIT], arguments.episodes,
                        lambda found, least=config.evaluation.success_reward: keep(found, least), progress,
                    )  # fmt: skip
                    if not arguments.only:
                        replace_text(out / "table.md", f"# {base.env.id}\n\n{describe(cells)}")
                        replace_text(out / "cells.json", json.dumps(cells) + "\n")
        if not arguments.only:
            print((out / "table.md").read_text(encoding="utf-8"))


def keep(found: Evaluation, success_reward: float) -> dict[str, Any]:
    """What a cell keeps: outcomes by task, and the figures of the evaluation."""
    groups = [(group.task_id, [episode for episode in group.episodes if episode.valid]) for group in found.groups]
    rows = [{"task": task, "passed": [int(passed(e, success_reward)) for e in episodes]} for task, episodes in groups]
    valid = [episode for _, episodes in groups for episode in episodes]
    unfinished = float(np.mean([episode.truncated for episode in valid]))
    return {"tasks": rows, "figures": {**found.row(), "unfinished": unfinished}}


def describe(cells: Sequence[Cell]) -> str:
    """Return the tables in Markdown: means over seeds, then differences paired by task."""
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    lines = ["| | seeds | success on `test` | each seed | return | turns | read | unfinished |", "|---" * 8 + "|"]
    for method in methods:
        mine = [cell for cell in cells if cell["method"] == method]
        tasks: dict[str, list[int]] = {}
        for cell in mine:
            for row in cell["tasks"]:
                tasks.setdefault(row["task"], []).extend(row["passed"])
        each = ", ".join(f"{cell['figures']['pass_at_1']:.2f}" for cell in mine)
        figures = [
            f"{np.mean([cell['figures'][name] for cell in mine]):.{places}f}"
            for name, places in (("return", 2), ("turns_per_episode", 1), ("parsed_share", 3), ("unfinished", 3))
        ]
        success = clustered_interval([values for values in tasks.values() if values])
        entries = [_name(method), str(len(mine)), str(success), each, *figures]
        lines.append(f"| {' | '.join(entries)} |")
    lines += ["", "| difference | of seeds | success, 95 % interval |", "|---|---|---|"]
    for new in methods:
        for old in (START, "grpo"):
            if new in (DEMONSTRATOR, START, old) or old not in methods:
                continue
            shared = {c["seed"] for c in cells if c["method"] == new} & {c["seed"] for c in cells if c["method"] == old}
            change = difference([cell for cell in cells if cell["seed"] in shared], old, new, SPLIT, "task")
            lines.append(f"| {_name(new)} less {_name(old)} | {len(shared)} | {change} |")
    return "\n".join(lines) + "\n"


def _name(method: str) -> str:
    return WORDS.get(method, f"`{method}`")


if __name__ == "__main__":
    main()
