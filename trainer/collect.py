"""Running an agent named on the command line: which policy that is, and episodes of it.

Invariants: nothing is learned and nothing in a run folder is changed. A scripted agent needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import ConfigError, nearest
from agentgym_rtmc.registration import find_env, load
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.evaluate import Evaluation, evaluate_with_progress
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.preparation import env_factory
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.threads import set_threads

SCRIPTS = ("scripted:reference", "scripted:demonstrator")
ENDPOINT = "endpoint:"
DEFAULT_WORKERS = 4
"""Episodes that step at once, where there are as many cores and nobody says otherwise."""


def agent_config(
    agent: str,
    config_file: Path | None,
    overrides: list[str],
    *,
    heldout_split: str | None = None,
    tasks: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
) -> TrainConfig:
    """Return the configuration to run an agent with.

    `agent`: a run folder (its own configuration, unless a file is given), a model folder or hub id, `endpoint:NAME`
    for a model behind the server of `policy.endpoint`, one of SCRIPTS, or "" for what the configuration says of the
    policy.
    """
    policy = _policy_overrides(agent) if agent else []
    run = Path(agent)
    if config_file is None and agent and (run / "config.toml").is_file():
        config_file = run / "config.toml"
    given = {
        "env.heldout_split": heldout_split,
        "evaluation.tasks": tasks,
        "evaluation.samples": samples,
        "evaluation.temperature": temperature,
    }
    # JSON's strings and numbers are TOML's.
    changes = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    return load_settings(TrainConfig, config_file, [*overrides, *changes, *policy])


def _policy_overrides(agent: str) -> list[str]:
    if agent.startswith(ENDPOINT):
        return ["policy.kind=endpoint", f"policy.model={json.dumps(agent.removeprefix(ENDPOINT))}"]
    if agent.startswith("scripted:"):
        if agent not in SCRIPTS:
            raise ConfigError(f"there is no agent {agent!r}{nearest(agent, SCRIPTS)}")
        return ["policy.kind=scripted", f"policy.player={agent.partition(':')[2]}"]
    folder = Path(agent)
    model: str | Path = agent
    if (folder / "config.toml").is_file():
        model = _newest_model(folder)
    elif not folder.is_dir() and (agent.startswith((".", "/", "~")) or (folder.parent.name and folder.parent.is_dir())):
        # Not the id of a model on a hub: its owner is no folder here.
        beside = [other.name for other in folder.parent.glob("*/") if other.name[:1] != "."]
        raise ConfigError(f"there is no folder {agent}{nearest(folder.name, beside) if beside else ''}")
    return ["policy.kind=hf", f"policy.model={json.dumps(str(model))}"]


def _newest_model(run: Path) -> Path:
    checkpoint = None
    if (run / "checkpoints").is_dir():
        from agentgym_rtmc.trainer.learner.checkpoint import load_latest

        checkpoint = load_latest(run)
    if checkpoint is None:
        raise ConfigError(f"{run} has no checkpoint yet; continue it with: agentgym-rtmc train --resume {run}")
    return checkpoint.model_path


def share_workers(config: TrainConfig, workers: int | None) -> TrainConfig:
    """Set how many episodes step at once: `workers`, else what is configured, else a thread a core, up to 4.

    An agent without weights here (behind an endpoint, scripted) gains nothing from many conversations at a time: so
    many episodes are open at once, too, unless rollout.concurrency is configured.
    """
    given = config.rollout.model_fields_set
    if workers is None:
        known = "env_workers" in given
        workers = config.rollout.env_workers if known else min(DEFAULT_WORKERS, os.cpu_count() or 1)
    changes = {"env_workers": workers}
    if config.policy.kind in ("scripted", "endpoint") and "concurrency" not in given:
        changes["concurrency"] = workers
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=changes)})


def collect(
    config: TrainConfig,
    agent: str,
    progress: Progress,
    tasks: Sequence[Task],
    *,
    on_start: Callable[[], None] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    kept: Sequence[Episode] = (),
) -> Evaluation:
    """Run the agent on tasks of `config.env`, `evaluation.samples` episodes each.

    `on_start` is called when nothing is wrong with the set-up any more; `kept`: see `evaluate`.
    """
    make_env = env_factory(config.env)
    if config.policy.kind not in ("scripted", "endpoint"):
        set_threads(config.run.threads)
    policy = make_policy(
        config.policy, env_id=config.env.id, make_env=make_env, observation_role=config.rollout.observation_role
    )
    with closing(policy):
        if on_start is not None:
            on_start()
        return evaluate_with_progress(config, make_env, policy, tasks, progress, agent, on_episode, kept, table=True)


def reporter_of(config: TrainConfig) -> str:
    """The reference of the environment's reporter. Raises ConfigError where it has none."""
    entry = find_env(config.env.id)
    if entry.reporter is None:
        raise ConfigError(f"{entry.id} has no official report; leave --report out")
    return entry.reporter


def write_report(
    config: TrainConfig,
    agent: str,
    result: Evaluation,
    folder: Path,
    tasks: Sequence[Task],
    trained: Sequence[str] = (),
) -> list[Path]:
    """Let the environment write the official report of an evaluation into a folder; returns its files.

    `tasks` are those that were evaluated; `trained` those of them that the agent was trained on: a report that is a
    JSON object gets them as `trained_on_ids`. Raises ConfigError where the environment has no report.
    """
    files: list[Path] = load(reporter_of(config))(result.groups, tasks, folder, agent, config.env.options)
    for path in files if trained else []:
        if path.suffix == ".json":
            report = json.loads(path.read_text(encoding="utf-8"))
            replace_text(path, json.dumps(report | {"trained_on_ids": list(trained)}, indent=4) + "\n")
    return files
