"""The draw: keyed noise, distribution, truncation."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams
from agentgym_rtmc.trainer.policy.noise import draw, uniforms


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    episode=st.integers(0, 2**62),
    turn=st.integers(0, 1000),
    count=st.integers(1, 64),
)
@settings(max_examples=50, deadline=None)
def test_uniforms_are_a_function_of_the_key_and_extend(seed: int, episode: int, turn: int, count: int) -> None:
    key = SampleKey(seed, episode, turn)
    long = uniforms(key, 100)
    assert np.array_equal(uniforms(key, count), long[:count])
    assert ((long >= 0) & (long < 1)).all()
    for other in (SampleKey(seed, episode, turn + 1), SampleKey(seed, episode + 1, turn)):
        assert not np.isin(uniforms(other, 100), long).any()


def test_uniforms_are_uniform() -> None:
    drawn = np.stack([uniforms(SampleKey(3, episode, turn), 20) for episode in range(50) for turn in range(8)])
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    expected = drawn.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.2


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -30.0]])
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    for temperature in (1.0, 0.5, 2.0):
        ids, logprobs = draw(logits.expand(10_000, -1), grid, SamplingParams(temperature=temperature))
        expected = torch.softmax(logits[0].double() / temperature, -1)
        assert torch.allclose(torch.bincount(ids, minlength=5) / 10_000, expected.float(), atol=2e-4)
        # Whatever the temperature, log-probabilities are those at temperature 1.
        assert torch.allclose(logprobs, torch.log_softmax(logits[0], -1)[ids])


def test_greedy_ignores_the_noise() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    ids, _ = draw(logits, torch.rand(6, dtype=torch.float64), SamplingParams(temperature=0))
    assert torch.equal(ids, logits.argmax(-1))


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.integers(1, 12), st.floats(0.05, 1.0))
@settings(max_examples=100, deadline=None)
def test_truncation_keeps_the_smallest_set_that_suffices(scores: list[float], top_k: int, top_p: float) -> None:
    logits = torch.tensor([scores], dtype=torch.float64)
    grid = (torch.arange(500, dtype=torch.float64) + 0.5) / 500
    ids, _ = draw(logits.expand(500, -1), grid, SamplingParams(top_k=top_k, top_p=top_p))
    # By hand: sort, cut to k, renormalise, take tokens until their sum reaches p.
    weights = np.exp(torch.log_softmax(logits[0].float(), -1).double().numpy())
    order = sorted(range(len(scores)), key=lambda i: (-weights[i], i))[:top_k]
    total, mass, allowed = sum(weights[i] for i in order), 0.0, set()
    for i in order:
        if mass >= top_p * total + 1e-9 and allowed:
            break
        allowed.add(i)
        mass += weights[i]
    assert set(ids.tolist()) <= allowed


def test_extreme_uniforms_never_draw_what_has_no_weight() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 3.0, -torch.inf]])
    uniform = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    ids, logprobs = draw(logits.expand(2, -1), uniform, SamplingParams())
    assert ids.tolist() == [1, 2]
    assert torch.isfinite(logprobs).all()
