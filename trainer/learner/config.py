"""Settings of the learner.

Invariants: a setting that is not used under the chosen options changes nothing; impossible combinations are refused
when the configuration is made, with what to change.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.settings import Settings
from agentgym_rtmc.trainer.learner.loss_config import LossConfig


class LearnerConfig(Settings):
    """How an update is made from rows."""

    loss: LossConfig = Field(default_factory=LossConfig, description="the policy loss")
    learning_rate: float = Field(
        6e-4, gt=0, description="peak rate of AdamW; 6e-4 suits a million parameters, 1e-6 to 1e-5 billions"
    )
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates")
    weight_decay: float = Field(0.0, ge=0, description="decay of matrices; norms and biases are never decayed")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    schedule: Literal["constant", "cosine"] = Field("constant", description="rate over updates, after the warm-up")
    warmup_updates: int = Field(0, ge=0, description="updates of linear warm-up")
    total_updates: int | None = Field(
        None, gt=0, description="update at which 'cosine' reaches its end; default: the run's last"
    )
    final_rate: float = Field(0.1, ge=0, le=1, description="share of the rate at the end of 'cosine'")
    epochs: int = Field(1, ge=1, description="passes over the rows of an update")
    minibatches: int = Field(1, ge=1, description="optimiser steps in each pass")
    old_logprobs: Literal["auto", "sampler", "recompute"] = Field(
        "auto",
        description="where π_old comes from; auto: the sampler's with one step an update, else one more forward pass",
    )
    normalize_advantages: Literal["none", "rms", "std"] = Field(
        "none", description="over an update's trained tokens: divide by √mean A², or (std) subtract the mean first"
    )
    mask_length: bool = Field(True, description="leave turns cut by the token limit out of the loss")
    microbatch_tokens: int = Field(8192, ge=1, description="padded tokens a forward pass; does not change the result")
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, a third more time")
    seed: int = Field(0, ge=0, description="fixes how rows are dealt to minibatches")

    @model_validator(mode="after")
    def _whole(self) -> LearnerConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {self.betas} are not both in [0, 1)")
        return self

    def recompute_old(self) -> bool:
        """Whether π_old is recomputed before the first step."""
        if self.old_logprobs == "auto":
            return self.epochs * self.minibatches > 1
        return self.old_logprobs == "recompute"

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, counted from 0.

        >>> config = LearnerConfig(learning_rate=1, schedule="cosine", warmup_updates=2, total_updates=4, final_rate=0)
        >>> [round(config.rate(update), 2) for update in range(5)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
        """
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        if self.schedule == "constant":
            return self.learning_rate
        if self.total_updates is None:
            raise ConfigError("learner.schedule = 'cosine' needs learner.total_updates outside a run")
        span = max(self.total_updates - self.warmup_updates, 1)
        progress = min((update - self.warmup_updates) / span, 1.0)
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * progress)) / 2)
