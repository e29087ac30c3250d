"""From settings to a policy that can act, and be trained where it has weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentgym_rtmc.errors import ConfigError, DependencyError
from agentgym_rtmc.extras import missing_extra
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.base import Policy
from agentgym_rtmc.trainer.policy.config import PolicyConfig
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.rollout import EnvFactory

if TYPE_CHECKING:
    from agentgym_rtmc.trainer.policy.warm_start import Report


def make_policy(
    config: PolicyConfig,
    *,
    env_id: str,
    make_env: EnvFactory,
    tasks: Sequence[Task] = (),
    observation_role: Literal["user", "tool"] = "user",
    progress: Progress | None = None,
    model_path: str | Path | None = None,
    trainable: bool = False,
) -> Policy:
    """Make the policy that the settings describe.

    `tasks` are what the embedded model may be warm-started on; `model_path` overrides the configured model (a
    checkpoint). A `trainable` policy is a `TokenPolicy`, so that its `model` can be handed to a learner.
    Raises ConfigError, DependencyError (packages missing) or RegistrationError (no player).
    """
    if config.kind == "scripted":
        if trainable:
            raise ConfigError("policy.kind: a scripted policy has no weights to train; use 'tiny' or 'hf'")
        return ScriptedPolicy.of(env_id, config.player)
    if config.kind == "endpoint":
        if trainable:
            raise ConfigError("policy.kind: a model behind an endpoint cannot be trained; use 'tiny' or 'hf'")
        try:
            from agentgym_rtmc.trainer.policy.endpoint import EndpointPolicy
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error
        return EndpointPolicy.connect(config.endpoint, config.model)
    try:
        from agentgym_rtmc.trainer.policy import tokens, warm_start
    except ImportError as error:
        raise DependencyError(
            f"policy.kind {config.kind!r} needs the package {error.name!r}: pip install 'agentgym-rtmc[train]'"
        ) from error
    name: str | Path = model_path or config.model
    if not name:
        if not tasks:
            raise ConfigError(
                "policy.kind 'tiny' learns its first lessons on tasks, and there are none; set policy.model"
            )
        name, result = warm_start.warm_start(
            env_id,
            make_env,
            tasks,
            config.tiny,
            config.warm_start,
            observation_role=observation_role,
            report=_reporting(progress) if progress else warm_start.no_report,
        )
        if progress:
            progress.say(
                f"embedded model from {result.episodes} demonstrations ({result.solved:.0%} solved), "
                f"held-out token loss {result.heldout_loss:.3f}: {name}"
            )
    return tokens.load_policy(config, name)


def _reporting(progress: Progress) -> Report:
    phase = ""

    def report(name: str, done: int, total: int, /, **figures: float) -> None:
        nonlocal phase
        if name != phase:
            phase = name
            progress.phase(name, total)
        progress.update(done, **figures)

    return report
