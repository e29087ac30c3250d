"""Running an agent named on the command line: which policy that is, and episodes of it.

Invariant: nothing is learned and nothing in a run folder is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import ConfigError, nearest
from agentgym_rtmc.registration import load_task_set
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.evaluate import Evaluation, evaluate_with_progress
from agentgym_rtmc.trainer.loop import env_factory, set_threads
from agentgym_rtmc.trainer.order import shuffled
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.progress import Progress

SCRIPTS = ("scripted:reference", "scripted:demonstrator")


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

    `agent`: a run folder (its own configuration, unless a file is given), a model folder or hub id, or one of SCRIPTS.
    """
    run = Path(agent)
    if config_file is None and (run / "config.toml").is_file():
        config_file = run / "config.toml"
    given = {
        "env.heldout_split": heldout_split,
        "evaluation.tasks": tasks,
        "evaluation.samples": samples,
        "evaluation.temperature": temperature,
    }
    changes = [f"{key}={value}" for key, value in given.items() if value is not None]
    return load_settings(TrainConfig, config_file, [*overrides, *changes, *_policy_overrides(agent)])


def _policy_overrides(agent: str) -> list[str]:
    if agent.startswith("scripted:"):
        if agent not in SCRIPTS:
            raise ConfigError(f"no agent {agent!r}{nearest(agent, SCRIPTS)}")
        return ["policy.kind=scripted", f"policy.player={agent.partition(':')[2]}"]
    run = Path(agent)
    if not (run / "config.toml").is_file():
        return ["policy.kind=hf", f'policy.model="{agent}"']
    from agentgym_rtmc.trainer.learner.checkpoint import load_latest

    checkpoint = load_latest(run)
    if checkpoint is None:
        raise ConfigError(f"{agent} has no checkpoint yet; continue it with: agentgym-rtmc train --resume {agent}")
    return ["policy.kind=hf", f'policy.model="{checkpoint.model_path}"']


def collect(
    config: TrainConfig, agent: str, progress: Progress, on_episode: Callable[[Episode], None] | None = None
) -> Evaluation:
    """Run the agent on `evaluation.tasks` tasks of the held-out split, `evaluation.samples` episodes each."""
    set_threads(config.run.threads)
    tasks = load_task_set(config.env.id, config.env.task_set, **config.env.task_options)
    chosen = shuffled(tasks.split(config.env.heldout_split), config.evaluation.tasks, config.evaluation.seed)
    make_env = env_factory(config.env)
    policy = make_policy(
        config.policy, env_id=config.env.id, make_env=make_env, observation_role=config.rollout.observation_role
    )
    with closing(policy):
        return evaluate_with_progress(config, make_env, policy, chosen, progress, agent, on_episode)
