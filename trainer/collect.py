"""Running an agent named on the command line: which policy that is, and episodes of it.

Invariants: nothing is learned and nothing in a run folder is changed. A scripted agent needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import ConfigError, nearest
from agentgym_rtmc.registration import find_env, load
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.evaluate import Evaluation, evaluate_with_progress
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.preparation import env_factory, heldout_tasks, load_tasks
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.threads import set_threads

SCRIPTS = ("scripted:reference", "scripted:demonstrator")
ENDPOINT = "endpoint:"


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


def collect(
    config: TrainConfig,
    agent: str,
    progress: Progress,
    on_episode: Callable[[Episode], None] | None = None,
    kept: Sequence[Episode] = (),
) -> Evaluation:
    """Run the agent on `evaluation.tasks` tasks of the held-out split, `evaluation.samples` episodes each.

    `kept`: see `evaluate`.
    """
    tasks = heldout_tasks(config, load_tasks(config.env))
    make_env = env_factory(config.env)
    if config.policy.kind not in ("scripted", "endpoint"):
        set_threads(config.run.threads)
    policy = make_policy(
        config.policy, env_id=config.env.id, make_env=make_env, observation_role=config.rollout.observation_role
    )
    with closing(policy):
        return evaluate_with_progress(config, make_env, policy, tasks, progress, agent, on_episode, kept)


def write_report(config: TrainConfig, agent: str, result: Evaluation, folder: Path) -> list[Path]:
    """Let the environment write the official report of an evaluation into a folder; returns its files.

    Raises ConfigError where the environment has none.
    """
    entry = find_env(config.env.id)
    if entry.reporter is None:
        raise ConfigError(f"{entry.id} has no official report; leave --report out")
    tasks = heldout_tasks(config, load_tasks(config.env))
    files: list[Path] = load(entry.reporter)(result.groups, tasks, folder, agent, config.env.options)
    return files
