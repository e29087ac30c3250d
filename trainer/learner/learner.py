"""The learner: rows in, a better policy and the numbers of the update out.

Invariants: blind to the estimator - it sees ids, masks and advantages. The result of an optimiser step does not depend
on the micro-batches. No gradient that is not finite reaches the weights: such a step is skipped and counted. The model
runs without dropout, as it does when it samples. Equal weights, optimiser state, rows and update number give equal
results on a CPU.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.trainer.learner.config import LearnerConfig
from agentgym_rtmc.trainer.learner.gauges import GapGauge, StepGauge
from agentgym_rtmc.trainer.learner.logprobs import TokenScorer
from agentgym_rtmc.trainer.learner.losses import token_losses, token_weights
from agentgym_rtmc.trainer.learner.packing import (
    MicroBatch,
    balanced_split,
    collate,
    plan_microbatches,
    turn_units,
)
from agentgym_rtmc.trainer.learner.rows import LearningRow, RowCounts


class Learner:
    """Trains any transformers causal LM in place. `updates` counts calls of `update`, and sets the learning rate."""

    def __init__(self, model: Any, config: LearnerConfig | None = None) -> None:
        self.model = model
        self.config = config or LearnerConfig()
        self.updates = 0
        self.seconds = 0.0
        self._score = TokenScorer(model)
        self._layers = _checkpointing_layers(model) if self.config.gradient_checkpointing else []
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parameter_names = [name for name, p in named if p.ndim >= 2] + [name for name, p in named if p.ndim < 2]
        self._parameters = [p for _, p in named]
        # Decay belongs to matrices; shrinking norms and biases only moves the scale about.
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self._parameters if p.ndim >= 2], "weight_decay": self.config.weight_decay},
                {"params": [p for p in self._parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=self.config.learning_rate,
            betas=self.config.betas,
            fused=True,
        )

    def update(self, rows: Sequence[LearningRow], counts: RowCounts | None = None) -> dict[str, float]:
        """Take the optimiser steps of one update and return its metrics; `counts` are passed through as metrics.

        Metrics (NaN where there was nothing to measure): `loss`, `entropy` (nats per trained token), `clip_fraction`,
        `ratio_mean`, `ratio_max`, `mismatch_weight_mean`, `logprob_gap_mean` and `logprob_gap_max` (absolute, trainer
        against sampler, before the first step), `logprob_gap_kl` (k3), `logprobs_unusable`, `grad_norm` (before
        clipping, mean over steps), `steps`, `steps_skipped`, `tokens_trained`, `tokens_fed`, `padding_share`,
        `advantage_mean`, `advantage_rms` (before normalising), `learning_rate`. All are functions of weights
        and rows; the time of the last update is in `seconds`.
        Without rows no step is taken, and the update is counted.
        """
        started = time.perf_counter()
        rate = self.config.rate(self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        gauge, gap = StepGauge(), GapGauge()
        advantages = [row.advantages[row.sampled_mask] for row in rows]
        metrics = _advantage_metrics(advantages)
        if rows:
            scaled = normalized(advantages, self.config.normalize_advantages)
            sampler = [row.logprobs[row.sampled_mask] for row in rows]
            with self._running():
                recompute = self.config.recompute_old()
                old = self.logprobs(rows) if recompute else sampler
                if recompute:
                    gap.add(np.concatenate(old), np.concatenate(sampler))
                    gap.close()
                for epoch in range(self.config.epochs):
                    for part in balanced_split(
                        [len(row) for row in rows], self.config.minibatches, (self.config.seed, self.updates, epoch)
                    ):
                        self._step(
                            [rows[i] for i in part], [scaled[i] for i in part], [old[i] for i in part], gauge, gap
                        )
        self.updates += 1
        metrics |= gauge.metrics() | gap.metrics()
        metrics["learning_rate"] = rate
        self.seconds = time.perf_counter() - started
        return metrics | (counts.metrics() if counts else {})

    @torch.no_grad()
    def logprobs(self, rows: Sequence[LearningRow]) -> list[NDArray[np.float32]]:
        """Score rows with the present weights. Shape of entry i: (trained tokens of row i,)."""
        scores: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
        for batch, micro in self._microbatches(rows, None, None):
            values = self._score(micro.ids, micro.position, micro.target)[0].cpu().numpy()
            ends = np.cumsum([int(rows[i].sampled_mask.sum()) for i in batch])[:-1]
            for i, part in zip(batch, np.split(values, ends), strict=True):
                scores[i] = part
        return scores

    def _step(
        self,
        rows: Sequence[LearningRow],
        advantages: Sequence[NDArray[np.float32]],
        old: Sequence[NDArray[np.float32]],
        gauge: StepGauge,
        gap: GapGauge,
    ) -> None:
        """One optimiser step on all of `rows`."""
        self.optimizer.zero_grad(set_to_none=True)
        first = not gap.measured
        total = 0.0
        for _, micro in self._microbatches(rows, advantages, old):
            logprobs, entropy = self._score(micro.ids, micro.position, micro.target)
            losses = token_losses(
                logprobs,
                micro.old_logprobs,
                micro.sampler_logprobs,
                micro.advantages,
                self.config.loss,
                sequence=micro.sequence,
                turn=micro.turn,
            )
            loss = (losses.loss * micro.weights).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            gauge.add(micro, losses, entropy)
            if first:
                gap.add(_array(logprobs), _array(micro.sampler_logprobs))
        gap.close()
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm))
        taken = math.isfinite(norm) and math.isfinite(total)
        if taken:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        gauge.close_step(total, norm, taken)

    def _microbatches(
        self,
        rows: Sequence[LearningRow],
        advantages: Sequence[NDArray[np.float32]] | None,
        old: Sequence[NDArray[np.float32]] | None,
    ) -> Iterator[tuple[list[int], MicroBatch]]:
        """Collate the rows of a step; without `advantages` and `old` they only serve to be scored."""
        device = next(self.model.parameters()).device
        own = [row.logprobs[row.sampled_mask] for row in rows]
        weights, turns = token_weights(rows, self.config.loss), turn_units(rows)
        for batch in plan_microbatches([len(row) for row in rows], self.config.microbatch_tokens):
            micro = collate(
                rows, batch, advantages=advantages or own, old_logprobs=old or own, weights=weights, turns=turns
            )
            yield batch, micro.to(device)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Evaluation mode, and gradient checkpointing where asked; both undone at the end."""
        was_training = self.model.training
        self.model.eval()
        for layer in self._layers:  # checkpointing asks the layer's own flag; its dropouts stay in evaluation mode
            layer.training = layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        try:
            yield
        finally:
            for layer in self._layers:
                layer.gradient_checkpointing = False
            self.model.train(was_training)


def normalized(advantages: Sequence[NDArray[np.float32]], how: str) -> list[NDArray[np.float32]]:
    """Scale advantages over all tokens: `none`, `rms` (A/√mean A²) or `std` ((A − mean)/std). 0/0 stays 0."""
    if how == "none":
        return list(advantages)
    everything = np.concatenate(advantages).astype(np.float64)
    centre = float(everything.mean()) if how == "std" else 0.0
    scale = math.sqrt(float(((everything - centre) ** 2).mean()))
    if scale < 1e-12:
        return [np.zeros_like(part) for part in advantages]
    return [((part - centre) / scale).astype(np.float32) for part in advantages]


def _advantage_metrics(advantages: Sequence[NDArray[np.float32]]) -> dict[str, float]:
    if not advantages:
        return {"advantage_mean": math.nan, "advantage_rms": math.nan}
    everything = np.concatenate(advantages).astype(np.float64)
    return {"advantage_mean": float(everything.mean()), "advantage_rms": math.sqrt(float((everything**2).mean()))}


def _array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().cpu().numpy()
    return array


def _checkpointing_layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no layers that support it: set gradient_checkpointing = false")
    return layers
