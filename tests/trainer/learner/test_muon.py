"""Muon against a singular value decomposition, and which parameters it is for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentgym_rtmc.trainer.learner.muon import Muon, hidden_matrices, orthogonalized  # noqa: E402


@pytest.mark.parametrize("shape", [(6, 6), (4, 24), (24, 4)])
def test_steps_have_the_singular_vectors_and_about_equal_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.mT @ orthogonalized(matrix) @ vh.mT
    values = inside.diagonal()
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    assert float((inside - torch.diag(values)).abs().max()) < 1e-4


def test_the_scale_of_gradients_does_not_matter() -> None:
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(orthogonalized(matrix * 1e4), orthogonalized(matrix), rtol=1e-3, atol=1e-4)


def test_a_step_descends_and_decays() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(weight, torch.ones(3, 4))  # no gradient, no step
    optimizer = Muon([weight], lr=0.1, weight_decay=0.5)
    loss = (weight**2).sum()
    loss.backward()
    optimizer.step()
    # 0.95 is left by the decay; the gradient is of rank one, its step has size 1 and falls evenly on twelve entries.
    expected = 0.95 - 0.1 * 0.2 * 2 / 12**0.5
    torch.testing.assert_close(weight.detach(), torch.full((3, 4), expected), rtol=0, atol=8e-3)
    assert float((weight**2).sum()) < float(loss.detach())


def test_embeddings_heads_and_vectors_are_left_to_others(make_model: Any) -> None:
    for tied in (True, False):
        model = make_model("qwen3", tie_word_embeddings=tied)
        names = {id(p): name for name, p in model.named_parameters()}
        chosen = [names[id(p)] for p in hidden_matrices(model)]
        assert chosen and all(".layers." in name and "norm" not in name for name in chosen)
        assert not any("embed" in name or "lm_head" in name for name in chosen)
