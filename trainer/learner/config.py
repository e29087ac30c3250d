"""Settings of the learner.

Invariants: a setting that is not used under the chosen options changes nothing; impossible combinations are refused
when the configuration is made, with what to change.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentgym_rtmc.trainer.learner.losses import LossConfig


class LearnerConfig(BaseModel):
    """How an update is made from rows.

    learning_rate: peak rate of AdamW; 6e-4 suits models of about a million parameters, 1e-6 to 1e-5 those of billions.
    schedule: `constant` or `cosine` (down to `final_rate` × learning_rate at update `total_updates`), both after a
    linear warm-up over `warmup_updates`. A rate belongs to an update, not to an optimiser step.
    epochs, minibatches: passes over the rows of an update, and optimiser steps in each pass.
    old_logprobs: where π_old comes from: `sampler`, `recompute` (one extra forward pass before the first step), or
    `auto`: the sampler's with one step per update, recomputed otherwise.
    normalize_advantages: over the trained tokens of an update; `rms` divides by √mean A², `std` subtracts the mean too.
    mask_length: leave turns cut by the token limit out of the loss (read by whoever builds the rows).
    microbatch_tokens: padded tokens per forward pass; bounds memory, does not change the result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: LossConfig = LossConfig()
    learning_rate: float = Field(default=6e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_updates: int = Field(default=0, ge=0)
    total_updates: int | None = Field(default=None, gt=0)
    final_rate: float = Field(default=0.1, ge=0, le=1)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    old_logprobs: Literal["auto", "sampler", "recompute"] = "auto"
    normalize_advantages: Literal["none", "rms", "std"] = "none"
    mask_length: bool = True
    microbatch_tokens: int = Field(default=8192, ge=1)
    gradient_checkpointing: bool = False
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _whole(self) -> LearnerConfig:
        if self.schedule == "cosine" and self.total_updates is None:
            raise ValueError("schedule = 'cosine' needs total_updates")
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
        if self.schedule == "constant" or self.total_updates is None:
            return self.learning_rate
        span = max(self.total_updates - self.warmup_updates, 1)
        progress = min((update - self.warmup_updates) / span, 1.0)
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * progress)) / 2)
