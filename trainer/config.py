"""The whole configuration of a training run: one TOML file, one pydantic tree.

Each part stands beside its concept; here they are put together, with the few settings that belong to the run itself.
Imports no torch, so that a configuration is read and refused at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.settings import Settings, parse_override
from agentgym_rtmc.trainer.evaluate import EvaluationConfig
from agentgym_rtmc.trainer.learner.config import LearnerConfig
from agentgym_rtmc.trainer.policy.config import PolicyConfig
from agentgym_rtmc.trainer.rollout import RolloutConfig


class RunConfig(Settings):
    """The run itself."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="part of the run folder's name")
    folder: str = Field("runs", description="where run folders are made")
    seed: int = Field(0, ge=0, description="fixes tasks, noise and order")
    deterministic: bool = Field(False, description="fix waves, order and padding: equal runs give equal numbers")
    threads: int = Field(0, ge=0, description="torch threads; 0: as many as there are cores")
    save_episodes: bool = Field(True, description="keep every episode in episodes.jsonl")
    tensorboard: bool = Field(False, description="write the metrics as TensorBoard event files, too")


class EnvConfig(Settings):
    """The environment and its tasks."""

    id: str = Field("agentgym_rtmc/CodeRepair-v0", description="a registered environment; 'module:id' imports it first")
    task_set: str | None = Field(None, description="registered task set or 'module:function'; default: the first")
    task_options: dict[str, Any] = Field(default_factory=dict, description="options of the task set's loader")
    train_split: str = Field("train", description="split trained on")
    heldout_split: str = Field("heldout", description="split evaluated on, never trained on")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of gymnasium.make")


class SignatureConfig(Settings):
    """What makes two states the same."""

    name: str | None = Field(None, description="registered signature or 'module:name'; default: the environment's")
    parameters: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")


class CreditConfig(Settings):
    """How credit is assigned."""

    estimator: str = Field("adaptive", description="registered estimator or 'module:function'")
    parameters: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")


class LoopConfig(Settings):
    """The outer loop."""

    updates: int = Field(50, ge=0, description="policy updates")
    groups: int = Field(16, ge=1, description="tasks an update")
    tasks: int = Field(
        0, ge=0, description="tasks trained on, drawn from the split; 0: all. On known ones environments answer faster"
    )
    checkpoint_every: int = Field(10, ge=1, description="updates between checkpoints; the last is always kept")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept")


class TrainConfig(Settings):
    """Everything `agentgym-rtmc train` reads."""

    run: RunConfig = Field(default_factory=RunConfig)
    env: EnvConfig = Field(default_factory=EnvConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    signature: SignatureConfig = Field(default_factory=SignatureConfig)
    credit: CreditConfig = Field(default_factory=CreditConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    loop: LoopConfig = Field(default_factory=LoopConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    def learner_settings(self) -> LearnerConfig:
        """The learner's settings, with the run's length where a schedule needs one."""
        if self.learner.total_updates is not None or self.loop.updates == 0:
            return self.learner
        return self.learner.model_copy(update={"total_updates": self.loop.updates})

    def digest(self) -> str:
        """Hash of all settings but those that a resumed run may change."""
        values = self.model_dump(mode="json")
        for section, name in _CHANGEABLE:
            if name:
                del values[section][name]
            else:
                del values[section]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


_CHANGEABLE = (("loop", ""), ("evaluation", "every"), ("run", "threads"), ("learner", "total_updates"))
"""Settings (section, name; "" for all of it) that do not make another run of a run."""


def refuse_changes(overrides: Sequence[str]) -> None:
    """A resumed run may go on for longer or be evaluated more often, but it stays the run that it was (ConfigError)."""
    for override in overrides:
        keys, _ = parse_override(override)
        if not any(keys[:2] == one or (keys[0] == one[0] and not one[1]) for one in _CHANGEABLE):
            allowed = ", ".join(f"{section}.{name or '*'}" for section, name in _CHANGEABLE)
            raise ConfigError(
                f"override {override!r}: a resumed run keeps its configuration; only {allowed} may change. "
                "Start a new run for anything else"
            )
