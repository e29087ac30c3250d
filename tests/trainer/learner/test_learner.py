from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.trainer.learner.config import LearnerConfig
from agentgym_rtmc.trainer.learner.learner import Learner, normalized
from agentgym_rtmc.trainer.learner.loss_config import LossConfig
from agentgym_rtmc.trainer.learner.losses import token_losses, token_weights
from agentgym_rtmc.trainer.learner.rows import LearningRow, RowCounts

Model = Callable[..., Any]
Rows = Callable[..., list[LearningRow]]


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def as_sampled(learner: Learner, rows: list[LearningRow]) -> list[LearningRow]:
    """The rows with the log-probabilities that the learner's own weights give."""
    changed = []
    for row, values in zip(rows, learner.logprobs(rows), strict=True):
        logprobs = row.logprobs.copy()
        logprobs[row.sampled_mask] = values
        changed.append(replace(row, logprobs=logprobs))
    return changed


@pytest.mark.parametrize("kind", ["ppo", "gspo", "gspo_turn", "cispo"])
@pytest.mark.parametrize("aggregation", ["token_mean", "turn_mean", "sequence_mean", "constant"])
def test_the_result_does_not_depend_on_the_micro_batches(
    make_model: Model, make_rows: Rows, kind: Any, aggregation: Any
) -> None:
    rows = make_rows(np.random.default_rng(0))
    results = []
    for budget in (1, 60, 100_000):
        model = make_model()
        learner = Learner(
            model,
            LearnerConfig(
                loss=LossConfig(kind=kind, aggregation=aggregation, clip_low=0.2, clip_high=0.3, constant_length=50),
                microbatch_tokens=budget,
                old_logprobs="recompute",
                epochs=2,
                learning_rate=1e-3,
                max_grad_norm=1e6,
            ),
        )
        metrics = learner.update(rows)
        results.append((metrics, weights(model)))
    for metrics, trained in results[1:]:
        for name in ("loss", "entropy", "clip_fraction", "ratio_mean", "grad_norm", "logprob_gap_mean"):
            assert metrics[name] == pytest.approx(results[0][0][name], rel=1e-5, abs=1e-6), name
        for a, b in zip(trained, results[0][1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradient_equals_a_row_by_row_reference(make_model: Model, make_rows: Rows) -> None:
    rows = make_rows(np.random.default_rng(1))
    config = LearnerConfig(loss=LossConfig(aggregation="turn_mean"), max_grad_norm=1e9, microbatch_tokens=64)
    model, reference = make_model(), make_model()
    learner = Learner(model, config)
    rows = as_sampled(learner, rows)
    seen: list[list[torch.Tensor]] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    )
    learner.update(rows)

    for row, weight in zip(rows, token_weights(rows, config.loss), strict=True):
        ids = torch.from_numpy(row.ids)[None]
        logprobs = torch.log_softmax(reference(input_ids=ids).logits[0, :-1], -1)
        where = torch.from_numpy(np.flatnonzero(row.sampled_mask))
        chosen = logprobs[where - 1, ids[0, where]]
        old = torch.from_numpy(row.logprobs)[where]
        unit = torch.from_numpy(row.turn)[where]
        adv = torch.from_numpy(row.advantages)[where]
        losses = token_losses(chosen, old, old, adv, config.loss, sequence=unit, turn=unit)
        (losses.loss * torch.from_numpy(weight)).sum().backward()
    expected = [p.grad for p in reference.parameters() if p.grad is not None]
    assert len(seen[0]) == len(expected)
    for a, b in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_credit_moves_the_probability_of_what_was_sampled(make_model: Model, make_rows: Rows) -> None:
    rows = make_rows(np.random.default_rng(2), 6)
    learner = Learner(make_model(), LearnerConfig(learning_rate=3e-3))
    rows = as_sampled(learner, rows)
    before = np.concatenate(learner.logprobs(rows))
    for _ in range(5):
        metrics = learner.update(as_sampled(learner, rows))
    after = np.concatenate(learner.logprobs(rows))
    credit = np.concatenate([row.advantages[row.sampled_mask] for row in rows])
    assert float(((after - before) * credit).sum()) > 0.5
    assert metrics["steps"] == 1 and metrics["logprob_gap_max"] < 1e-5


def test_gap_ratio_and_clip_are_measured_against_the_sampler(make_model: Model, make_rows: Rows) -> None:
    rows = make_rows(np.random.default_rng(3))
    learner = Learner(make_model(), LearnerConfig(loss=LossConfig(dual_clip=0)))
    own = np.concatenate(learner.logprobs(rows)).astype(np.float64)
    sampler = np.concatenate([row.logprobs[row.sampled_mask] for row in rows]).astype(np.float64)
    credit = np.concatenate([row.advantages[row.sampled_mask] for row in rows])
    gap = own - sampler
    ratio = np.exp(gap)
    metrics = learner.update(rows)
    assert metrics["logprob_gap_mean"] == pytest.approx(np.abs(gap).mean(), rel=1e-5)
    assert metrics["logprob_gap_max"] == pytest.approx(np.abs(gap).max(), rel=1e-5)
    assert metrics["logprob_gap_kl"] == pytest.approx((ratio - 1 - gap).mean(), rel=1e-4)
    assert metrics["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(ratio.max(), rel=1e-4)
    clipped = ((credit > 0) & (ratio > 1.28)) | ((credit < 0) & (ratio < 0.8))
    assert metrics["clip_fraction"] == pytest.approx(clipped.mean())
    assert metrics["advantage_rms"] == pytest.approx(np.sqrt((credit.astype(float) ** 2).mean()))
    assert metrics["tokens_trained"] == len(own)


def test_old_logprobs_are_the_samplers_for_one_step_and_recomputed_for_more(make_model: Model, make_rows: Rows) -> None:
    rows = make_rows(np.random.default_rng(4))
    one = Learner(make_model()).update(rows)
    assert one["ratio_max"] > 1.5 and one["mismatch_weight_mean"] == 1, (
        "the rows' log-probabilities are not the model's"
    )
    more = Learner(make_model(), LearnerConfig(epochs=2, learning_rate=1e-12)).update(rows)
    assert more["ratio_max"] == pytest.approx(1, abs=1e-4) and more["mismatch_weight_mean"] != 1
    assert more["logprob_gap_mean"] == pytest.approx(one["logprob_gap_mean"], rel=1e-4)
    assert more["steps"] == 2


def test_epochs_and_minibatches_make_steps(make_model: Model, make_rows: Rows) -> None:
    rows = make_rows(np.random.default_rng(5), 9)
    metrics = Learner(make_model(), LearnerConfig(epochs=2, minibatches=3)).update(rows)
    assert metrics["steps"] == 6
    assert metrics["tokens_trained"] == 2 * sum(int(row.sampled_mask.sum()) for row in rows)


@pytest.mark.parametrize("where", ["weights", "advantages"])
def test_no_bad_number_reaches_the_weights(make_model: Model, make_rows: Rows, where: str) -> None:
    rows = make_rows(np.random.default_rng(6))
    model = make_model()
    learner = Learner(model)
    if where == "weights":
        hook = model.get_output_embeddings().register_forward_hook(lambda *args: args[2] * math.nan)
    else:
        rows[2].advantages[rows[2].sampled_mask] = 3e38
        hook = None
    before = weights(model)
    metrics = learner.update(rows)
    assert metrics["steps_skipped"] == 1 and metrics["steps"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    if hook:
        assert metrics["logprobs_unusable"] == metrics["tokens_trained"]
        hook.remove()
    healthy = learner.update(make_rows(np.random.default_rng(7)))
    assert healthy["steps"] == 1 and all(torch.isfinite(p).all() for p in model.parameters())


def test_rows_without_sampler_logprobs_are_trained_and_counted(make_model: Model, make_rows: Rows) -> None:
    rows = [replace(row, logprobs=np.full(len(row), np.nan, np.float32)) for row in make_rows(np.random.default_rng(8))]
    metrics = Learner(make_model()).update(rows)
    assert metrics["ratio_mean"] == 1 and metrics["logprobs_unusable"] == metrics["tokens_trained"]
    assert metrics["grad_norm"] > 0 and math.isnan(metrics["logprob_gap_mean"])


def test_an_update_without_rows_is_counted_and_changes_nothing(make_model: Model) -> None:
    model = make_model()
    learner = Learner(model, LearnerConfig(warmup_updates=4))
    before = weights(model)
    metrics = learner.update([], RowCounts(rows_zero_advantage=5))
    assert learner.updates == 1 and metrics["steps"] == 0 and metrics["rows_zero_advantage"] == 5
    assert math.isnan(metrics["loss"])
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    assert learner.update([])["learning_rate"] == pytest.approx(6e-4 / 2)


def test_equal_runs_give_equal_numbers(make_model: Model, make_rows: Rows) -> None:
    outcomes = []
    for _ in range(2):
        model = make_model()
        learner = Learner(model, LearnerConfig(epochs=2, minibatches=2, microbatch_tokens=50))
        metrics = [learner.update(make_rows(np.random.default_rng(seed))) for seed in (1, 2)]
        outcomes.append((metrics, weights(model)))
    assert outcomes[0][0] == outcomes[1][0]
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0][1], outcomes[1][1], strict=True))


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_gradient_checkpointing_changes_memory_not_results(make_model: Model, make_rows: Rows, kind: str) -> None:
    rows = make_rows(np.random.default_rng(9))
    outcomes = []
    for checkpointing in (False, True):
        model = make_model(kind).train()
        calls = []
        layer = model.base_model.layers[0] if kind == "qwen3" else model.base_model.h[0]
        inner = layer.mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        learner = Learner(model, LearnerConfig(gradient_checkpointing=checkpointing, microbatch_tokens=100_000))
        calls.clear()
        learner.update(rows)
        inner.remove()
        assert len(calls) == (2 if checkpointing else 1), "a checkpointed layer runs again in the backward pass"
        assert model.training and not layer.gradient_checkpointing
        outcomes.append(weights(model))
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_normalising_advantages(make_model: Model, make_rows: Rows) -> None:
    parts = [np.array([1.0, 3.0], np.float32), np.array([-2.0], np.float32)]
    assert normalized(parts, "none")[0] is parts[0]
    rms = np.concatenate(normalized(parts, "rms"))
    assert np.sqrt((rms**2).mean()) == pytest.approx(1) and rms[0] / rms[1] == pytest.approx(1 / 3)
    std = np.concatenate(normalized(parts, "std"))
    assert std.mean() == pytest.approx(0, abs=1e-6) and std.std() == pytest.approx(1, rel=1e-5)
    assert normalized([np.zeros(3, np.float32)], "std")[0].tolist() == [0, 0, 0]
    rows = make_rows(np.random.default_rng(10))
    tiny = [replace(row, advantages=row.advantages * np.float32(1e-3)) for row in rows]
    config = LearnerConfig(normalize_advantages="rms", max_grad_norm=1e9)
    norms = [Learner(make_model(), config).update(batch)["grad_norm"] for batch in (rows, tiny)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_impossible_settings_are_refused() -> None:
    for bad in (
        {"betas": (0.9, 1.0)},
        {"learning_rate": 0},
        {"epoch": 2},
        {"loss": {"dual_clip": 0.5}},
    ):
        with pytest.raises(ValidationError):
            LearnerConfig(**bad)
    with pytest.raises(ConfigError, match="total_updates"):
        LearnerConfig(schedule="cosine").rate(0)


def test_frozen_parameters_stay(make_model: Model, make_rows: Rows) -> None:
    model = make_model("llama")
    frozen = model.get_input_embeddings().weight
    frozen.requires_grad_(False)
    before = copy.deepcopy(frozen)
    Learner(model).update(make_rows(np.random.default_rng(11)))
    assert torch.equal(frozen, before)
