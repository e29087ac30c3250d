"""What evidence of learning is made of: cells (method, seed, split), each one policy playing one split, kept in a file.

Invariants: a cell that is there is never made again, and training continues from its last checkpoint, so a run that was
stopped goes on where it was. Cells made with other settings are refused, never mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.evaluate import Evaluation, evaluate
from agentgym_rtmc.trainer.order import shuffled
from agentgym_rtmc.trainer.policy.base import Policy
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.preparation import Preparation, load_tasks
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.run_folder import RunFolder
from agentgym_rtmc.trainer.statistics import Interval

Cell = dict[str, Any]
DEMONSTRATOR, START = "demonstrator", "start"
"""The methods that train nothing; every other one is an estimator's name."""


def refuse_other_settings(file: Path, config: TrainConfig, episodes: int) -> None:
    """Write down the settings of all cells of a folder, or end the program where they were others."""
    settings = json.dumps({"config": config.model_dump(mode="json"), "episodes": episodes}, indent=1)
    if file.exists() and file.read_text(encoding="utf-8") != settings:
        raise SystemExit(f"{file.parent} holds results of other settings; choose another --out, or remove it")
    replace_text(file, settings)


def seeded(config: TrainConfig, seed: int) -> TrainConfig:
    """The configuration with a seed for its first lessons and for its run."""
    start = config.policy.warm_start.model_copy(update={"seed": seed})
    policy = config.policy.model_copy(update={"warm_start": start})
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed}), "policy": policy})


def make_cells(
    method: str,
    config: TrainConfig,
    prepared: Preparation,
    out: Path,
    splits: Sequence[str],
    episodes: int,
    describe: Callable[[Evaluation], Mapping[str, Any]],
    progress: Progress,
    parameters: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of one method and the configuration's seed, those that are missing made now.

    `episodes`: the least number of a cell; `describe` says what is kept of an evaluation;
    `parameters` are the estimator's, where it is not the configuration's own.
    """
    seed = config.run.seed
    files = {split: out / f"{method}-{seed}-{split}.json" for split in splits}
    if not all(file.exists() for file in files.values()):
        policy = _policy(method, config, prepared, out / "runs" / f"{method}-{seed}", progress, parameters or {})
        for split, file in files.items():
            if not file.exists():
                progress.say(f"{method}, seed {seed}, {split}")
                found = play(policy, config, prepared, split, episodes)
                cell = {"method": method, "seed": seed, "split": split, **describe(found)}
                replace_text(file, json.dumps(cell) + "\n")
        policy.close()
    return [json.loads(file.read_text(encoding="utf-8")) for file in files.values()]


def _policy(
    method: str,
    config: TrainConfig,
    prepared: Preparation,
    path: Path,
    progress: Progress,
    parameters: Mapping[str, Any],
) -> Policy:
    """The policy of a method: trained as far as it is not yet."""
    from agentgym_rtmc.trainer.learner.checkpoint import load_latest
    from agentgym_rtmc.trainer.loop import train
    from agentgym_rtmc.trainer.policy.factory import make_policy

    if method == DEMONSTRATOR:
        return ScriptedPolicy.of(config.env.id, "demonstrator", config.run.seed)
    model = None
    if method != START:
        own = config.credit.parameters if method == config.credit.estimator else dict(parameters)
        credit = config.credit.model_copy(update={"estimator": method, "parameters": own})
        config = config.model_copy(update={"credit": credit})
        path.mkdir(parents=True, exist_ok=True)
        with RunFolder(path, fresh=not (path / "config.toml").exists()) as folder:
            train(config, prepared, folder, progress)
        checkpoint = load_latest(path, config.digest())
        model = checkpoint.model_path if checkpoint else None
    return make_policy(
        config.policy,
        env_id=config.env.id,
        make_env=prepared.make_env,
        tasks=prepared.train_tasks,
        observation_role=config.rollout.observation_role,
        progress=progress,
        model_path=model,
    )


def play(policy: Policy, config: TrainConfig, prepared: Preparation, split: str, episodes: int) -> Evaluation:
    """Play a split's tasks, all equally often, `episodes` times in all or a few more."""
    tasks = shuffled(load_tasks(config.env).split(split), episodes, config.evaluation.seed)
    evaluation = config.evaluation.model_copy(update={"samples": -(-episodes // len(tasks)), "tasks": len(tasks)})
    params = config.policy.sampling(temperature=evaluation.temperature)
    return evaluate(prepared.make_env, policy, tasks, evaluation, config.rollout, params)


def difference(cells: Sequence[Cell], old: str, new: str, split: str, cluster: str, *, draws: int = 10_000) -> Interval:
    """Difference of pass@1, every episode of all seeds weighing the same, with a percentile bootstrap.

    `cluster` names what the bootstrap resamples whole: a field of a cell's rows.
    """
    counts: dict[str, list[int]] = {}  # by cluster: passed and played, old and new
    for cell in cells:
        if cell["split"] == split and cell["method"] in (old, new):
            place = 0 if cell["method"] == old else 2
            for row in cell["tasks"]:
                count = counts.setdefault(row[cluster], [0, 0, 0, 0])
                count[place] += sum(row["passed"])
                count[place + 1] += len(row["passed"])
    table = np.asarray(list(counts.values()), np.float64)
    drawn = np.random.default_rng(0).multinomial(len(table), np.full(len(table), 1 / len(table)), size=draws)
    changes = [
        totals[..., 2] / totals[..., 3] - totals[..., 0] / totals[..., 1] for totals in (table.sum(0), drawn @ table)
    ]
    low, high = np.quantile(changes[1], [0.025, 0.975])
    return Interval(float(changes[0]), float(low), float(high))
