"""The whole configuration of a training run: one TOML file, one pydantic tree.

Each part stands beside its concept; here they are put together, with the few settings that belong to the run itself.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentgym_rtmc.settings import Settings
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

    estimator: str = Field("rtmc", description="registered estimator or 'module:function'")
    parameters: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")


class LoopConfig(Settings):
    """The outer loop."""

    updates: int = Field(50, ge=0, description="policy updates")
    groups: int = Field(16, ge=1, description="tasks an update")
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
