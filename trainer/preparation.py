"""What a run needs, looked up and checked before anything slow begins.

Invariants: every name in the configuration - environment, tasks, splits, signature, estimator - is resolved here, so
that a misspelt one is refused within a second and leaves nothing behind. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium

from agentgym_rtmc.errors import ConfigError, DependencyError, TaskError
from agentgym_rtmc.extras import install_hint
from agentgym_rtmc.registration import check_options, find_env, load_task_set
from agentgym_rtmc.signatures import Signature, make_signature
from agentgym_rtmc.tasks import Task, TaskSet
from agentgym_rtmc.trainer.config import EnvConfig, TrainConfig
from agentgym_rtmc.trainer.credit import find_estimator
from agentgym_rtmc.trainer.episode_run import EnvFactory
from agentgym_rtmc.trainer.order import shuffled
from agentgym_rtmc.trainer.trained_on import trained_tasks


@dataclass(frozen=True)
class Preparation:
    """A resolved configuration."""

    make_env: EnvFactory
    train_tasks: tuple[Task, ...]
    heldout_tasks: tuple[Task, ...]
    signature: Signature[Any]


def prepare(config: TrainConfig) -> Preparation:
    """Resolve what training needs. Raises an AgentGymError that names the key or the nearest known name."""
    find_estimator(config.credit.estimator).check(config.credit.parameters)
    entry = find_env(config.env.id)
    signature = make_signature(config.signature.name or entry.default_signature, **config.signature.parameters)
    _check_policy(config)
    for package, wanted in (("torch", True), ("transformers", True), ("tensorboard", config.run.tensorboard)):
        if wanted and find_spec(package) is None:
            raise DependencyError(f"training needs {package}, which is not installed: {install_hint(package)}")
    tasks = load_tasks(config.env)
    train_tasks = _filled(tasks.split(config.env.train_split), "env.train_split", config.env.train_split)
    heldout = heldout_tasks(config, tasks)
    shared = {task.id for task in train_tasks} & {task.id for task in heldout}
    if shared:
        raise ConfigError(
            f"env.train_split {config.env.train_split!r} and env.heldout_split {config.env.heldout_split!r} share "
            f"{len(shared)} tasks, such as {min(shared)}: what is evaluated must not be trained on"
        )
    trained_tasks(config, heldout)  # by the run that the model comes from, too
    return Preparation(env_factory(config.env), train_tasks, heldout, signature)


def heldout_tasks(config: TrainConfig, tasks: TaskSet) -> tuple[Task, ...]:
    """Return the tasks that are evaluated on: the first ones of the shuffled split."""
    split = _filled(tasks.split(config.env.heldout_split), "env.heldout_split", config.env.heldout_split)
    return tuple(shuffled(split, config.evaluation.tasks, config.evaluation.seed))


def load_tasks(config: EnvConfig) -> TaskSet:
    """Load the configured task set."""
    return load_task_set(config.id, config.task_set, **config.task_options)


def env_factory(config: EnvConfig) -> EnvFactory:
    """Return a function that makes one environment, after it has been tried. Raises ConfigError."""
    entry = find_env(config.id)
    check_options(entry, config.options)
    make: EnvFactory = partial(gymnasium.make, config.id if ":" in config.id else entry.id, **config.options)
    try:
        make().close()
    except (TypeError, gymnasium.error.Error) as error:
        options = f" with env.options {config.options}" if config.options else ""
        raise ConfigError(f"env.id: {config.id!r} cannot be made{options}: {error}") from error
    return make


def _check_policy(config: TrainConfig) -> None:
    if config.policy.kind == "scripted":
        raise ConfigError("policy.kind: a scripted policy has no weights to train; use 'tiny' or 'hf'")
    if config.policy.kind == "endpoint":
        raise ConfigError("policy.kind: a model behind an endpoint cannot be trained; use 'tiny' or 'hf'")
    model = config.policy.model
    if model.startswith((".", "/", "~")) and not Path(model).is_dir():
        raise ConfigError(f"policy.model: there is no folder {model!r}")
    if config.policy.kind == "tiny" and not model and find_env(config.env.id).demonstrator is None:
        raise ConfigError(
            f"policy.kind 'tiny' learns its first lessons from a demonstrator, and {config.env.id} has none: register "
            "one with register_env(demonstrator=...), or set policy.model"
        )


def _filled(tasks: Sequence[Task], key: str, split: str) -> tuple[Task, ...]:
    if not tasks:
        raise TaskError(f"{key}: the split {split!r} is empty; choose another, or set env.task_options")
    return tuple(tasks)
