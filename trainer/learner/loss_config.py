"""Settings of the policy loss. Imports nothing heavy: a configuration is read and checked without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentgym_rtmc.settings import Settings

Aggregation = Literal["token_mean", "turn_mean", "sequence_mean", "constant"]


class LossConfig(Settings):
    """Which loss, and its constants; the formulas stand in `losses.token_losses` and `losses.token_weights`."""

    kind: Literal["ppo", "gspo", "gspo_turn", "cispo"] = Field(
        "ppo", description="clip the ratio of a token, a sequence, a turn, or (cispo) as a detached weight"
    )
    clip_low: float | None = Field(None, ge=0, le=1, description="ε below 1; default 0.2, with gspo 3e-4")
    clip_high: float | None = Field(None, ge=0, description="ε above 1; default 0.28, with gspo 4e-4")
    dual_clip: float = Field(3.0, ge=0, description="bound on the ratio of tokens with A < 0; 0: none")
    log_ratio_limit: float = Field(20.0, gt=0, description="log-ratios are clamped to ± this")
    mismatch_cap: float = Field(
        2.0, ge=0, description="truncates the weight π_old/π_sampler where π_old is recomputed; 0: no weight"
    )
    aggregation: Aggregation = Field(
        "token_mean", description="tokens, turns or episodes weigh the same, or a constant normaliser"
    )
    constant_length: int = Field(1024, gt=0, description="tokens an episode, for aggregation = 'constant'")

    @model_validator(mode="after")
    def _bounds(self) -> LossConfig:
        if 0 < self.dual_clip <= 1:
            raise ValueError(
                f"dual_clip is {self.dual_clip}; it bounds a ratio from above: use more than 1, or 0 for none"
            )
        return self

    def clip_range(self) -> tuple[float, float]:
        """Return the lower and upper bound of the ratio."""
        low, high = (3e-4, 4e-4) if self.kind in ("gspo", "gspo_turn") else (0.2, 0.28)
        return 1 - (low if self.clip_low is None else self.clip_low), 1 + (
            high if self.clip_high is None else self.clip_high
        )
