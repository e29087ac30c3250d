from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentgym_rtmc.trainer.learner.loss_config import LossConfig
from agentgym_rtmc.trainer.learner.losses import token_losses, token_weights
from agentgym_rtmc.trainer.learner.rows import LearningRow

KINDS = ["ppo", "gspo", "gspo_turn", "cispo"]


def literal(
    logp: list[float], old: list[float], sampler: list[float], adv: list[float], unit: list[int], config: LossConfig
) -> list[float]:
    """The definitions, one token at a time."""
    low, high = config.clip_range()
    values = []
    for i in range(len(logp)):
        if config.kind.startswith("gspo"):
            members = [j for j in range(len(logp)) if unit[j] == unit[i]]
            log_ratio = sum(logp[j] - old[j] for j in members) / len(members)
        else:
            log_ratio = logp[i] - old[i]
        ratio = math.exp(max(-config.log_ratio_limit, min(config.log_ratio_limit, log_ratio)))
        bounded = max(low, min(high, ratio))
        if config.kind == "cispo":
            value = -bounded * adv[i] * logp[i]
        else:
            value = max(-adv[i] * ratio, -adv[i] * bounded)
            if adv[i] < 0 and config.dual_clip > 0:
                value = min(value, -adv[i] * config.dual_clip)
        if config.mismatch_cap > 0:
            value *= min(math.exp(max(-20.0, min(20.0, old[i] - sampler[i]))), config.mismatch_cap)
        values.append(value)
    return values


def tensors(*columns: list[float]) -> list[Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in columns]


TOKEN = st.tuples(st.floats(-30, 0), st.floats(-30, 0), st.floats(-30, 0), st.floats(-3, 3), st.integers(0, 3))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(TOKEN, min_size=1, max_size=12),
    st.sampled_from(KINDS),
    st.sampled_from([0.0, 1.5, 3.0]),
    st.sampled_from([0.0, 2.0]),
)
def test_every_kind_equals_the_literal_definition(
    tokens: list[tuple[float, float, float, float, int]], kind: Any, dual: float, cap: float
) -> None:
    config = LossConfig(kind=kind, dual_clip=dual, mismatch_cap=cap, clip_low=0.2, clip_high=0.3)
    logp, old, sampler, adv = ([token[k] for token in tokens] for k in range(4))
    unit = [token[4] for token in tokens]
    units = torch.tensor(unit)
    got = token_losses(*tensors(logp, old, sampler, adv), config, sequence=units, turn=units)
    assert got.loss.tolist() == pytest.approx(literal(logp, old, sampler, adv, unit, config), rel=1e-9, abs=1e-12)
    assert not got.unusable.any()


def test_ppo_worked_example() -> None:
    logp, old = [math.log(1.5), math.log(0.5), math.log(1.5), math.log(5.0)], [0.0] * 4
    adv = [1.0, -1.0, -1.0, -1.0]
    got = token_losses(
        *tensors(logp, old, old, adv), LossConfig(), sequence=torch.zeros(4, dtype=torch.long), turn=torch.arange(4)
    )
    # clipped above; clipped below; a bad token made likelier is not clipped; and is bounded by the dual clip at 3
    assert got.loss.tolist() == pytest.approx([-1.28, 0.8, 1.5, 3.0])
    assert got.clipped.tolist() == [True, True, False, True]
    assert got.ratio.tolist() == pytest.approx([1.5, 0.5, 1.5, 5.0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_derivatives(kind: Any) -> None:
    rng = np.random.default_rng(0)
    old = torch.tensor(-rng.uniform(0.1, 3, 12))
    logp = (old + torch.tensor(rng.normal(0, 0.15, 12))).requires_grad_()
    adv = torch.tensor(rng.normal(size=12))
    unit = torch.tensor([0] * 5 + [1] * 7)
    config = LossConfig(kind=kind, clip_low=0.2, clip_high=0.28)
    # Where A is constant in a unit the token form's gradient is that of the plain sequence ratio.
    if kind.startswith("gspo"):
        adv = torch.tensor([0.7] * 5 + [-0.4] * 7)

    def total(values: Tensor) -> Tensor:
        return token_losses(values, old, old, adv, config, sequence=unit, turn=unit).loss.sum()

    total(logp).backward()
    assert logp.grad is not None
    low, high = config.clip_range()
    ratio = torch.exp(logp.detach() - old)
    if kind == "cispo":
        expected = -ratio.clamp(low, high) * adv  # the ratio is a constant: no finite difference shows that
    else:
        if kind.startswith("gspo"):
            for name in (0, 1):
                ratio[unit == name] = torch.exp((logp.detach() - old)[unit == name].mean())
        dead = ((adv > 0) & (ratio > high)) | ((adv < 0) & (ratio < low))
        expected = torch.where(dead, torch.zeros_like(ratio), -adv * ratio)
        step = 1e-6
        for i in range(len(logp)):
            shifted = logp.detach().clone()
            shifted[i] += step
            slope = float(total(shifted) - total(logp.detach())) / step
            assert slope == pytest.approx(float(expected[i]), abs=1e-4)
    assert logp.grad.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


def test_gspo_lets_each_turn_keep_its_own_credit() -> None:
    logp = torch.zeros(4, requires_grad=True)
    adv = torch.tensor([1.0, 1.0, -1.0, -1.0])
    config = LossConfig(kind="gspo")
    losses = token_losses(
        logp, torch.zeros(4), torch.zeros(4), adv, config, sequence=torch.zeros(4, dtype=torch.long), turn=adv.long()
    )
    losses.loss.sum().backward()
    assert logp.grad is not None and logp.grad.tolist() == [-1, -1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_unusable_logprobs_give_ratio_one_and_are_counted(kind: Any, which: int, bad: float) -> None:
    columns = [[-1.0, -2.0, -0.5], [-1.1, -2.1, -0.4], [-1.2, -2.0, -0.3], [1.0, -1.0, 0.5]]
    columns[which][1] = bad
    logp, old, sampler, adv = tensors(*columns)
    logp.requires_grad_()
    unit = torch.tensor([0, 1, 0])
    got = token_losses(logp, old, sampler, adv, LossConfig(kind=kind), sequence=unit, turn=unit)
    assert got.unusable.tolist() == [False, True, False]
    assert torch.isfinite(got.loss).all()
    if which < 2:
        assert got.ratio[1] == 1
    else:
        assert got.mismatch[1] == 1
    got.loss.sum().backward()
    assert logp.grad is not None and torch.isfinite(logp.grad).all()
    assert (logp.grad[1] == 0) == (which == 0), "only an unusable policy log-probability has no gradient"


def test_mismatch_weight_is_truncated_and_detached() -> None:
    old = torch.tensor([0.0, 0.0, -5.0], requires_grad=True)
    sampler = torch.tensor([-0.1, -3.0, 0.0])
    got = token_losses(
        torch.zeros(3), old, sampler, torch.ones(3), LossConfig(), sequence=torch.zeros(3), turn=torch.zeros(3)
    )
    assert got.mismatch.tolist() == pytest.approx([math.exp(0.1), 2.0, math.exp(-5)])
    assert not got.mismatch.requires_grad


@pytest.mark.parametrize("aggregation", ["token_mean", "turn_mean", "sequence_mean", "constant"])
def test_weights_equal_nested_means(aggregation: Any, make_rows: Callable[..., list[LearningRow]]) -> None:
    rng = np.random.default_rng(1)
    rows = make_rows(rng, 6)
    config = LossConfig(aggregation=aggregation, constant_length=40)
    losses = [rng.normal(size=int(row.sampled_mask.sum())) for row in rows]
    got = sum(float((w * v).sum()) for w, v in zip(token_weights(rows, config), losses, strict=True))

    by_turn: dict[tuple[int, int], list[float]] = {}
    by_episode: dict[int, list[float]] = {}
    for row, values in zip(rows, losses, strict=True):
        for turn, value in zip(row.turn[row.sampled_mask], values, strict=True):
            by_turn.setdefault((row.episode, int(turn)), []).append(float(value))
            by_episode.setdefault(row.episode, []).append(float(value))
    everything = [value for values in by_episode.values() for value in values]
    expected = {
        "token_mean": np.mean(everything),
        "turn_mean": np.mean([np.mean(values) for values in by_turn.values()]),
        "sequence_mean": np.mean([np.mean(values) for values in by_episode.values()]),
        "constant": sum(everything) / (len(by_episode) * 40),
    }[aggregation]
    assert got == pytest.approx(float(expected), rel=1e-5)


def test_clip_range_defaults_follow_the_kind() -> None:
    assert LossConfig().clip_range() == pytest.approx((0.8, 1.28))
    assert LossConfig(kind="gspo").clip_range() == pytest.approx((1 - 3e-4, 1 + 4e-4))
    assert LossConfig(kind="gspo", clip_low=0.1).clip_range() == pytest.approx((0.9, 1 + 4e-4))
