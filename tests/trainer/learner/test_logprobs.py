from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentgym_rtmc.trainer.learner.logprobs import TokenScorer, chunked_scores, score_logits

KINDS = ["qwen3", "llama", "gpt2", "gemma2"]


def batch(rows: int = 3, length: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 48, (rows, length + 1), generator=generator)
    position = torch.tensor([0, 3, 8, 10, 17, 20, 25])
    return ids[:, :-1], position, ids[:, 1:].flatten()[position]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 48 * 3, 10**9])
def test_scores_equal_the_models_own_logits(make_model: Callable[..., Any], kind: str, chunk: int) -> None:
    model = make_model(kind, **({"final_logit_softcapping": 2.0} if kind == "gemma2" else {}))
    ids, position, target = batch()
    scorer = TokenScorer(model, chunk_logits=chunk)
    assert scorer.shortcut == (kind != "gemma2"), "soft-capping after the head rules the short cut out"

    logprob, entropy = scorer(ids, position, target)
    logprob.sum().backward()
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    logits = model(input_ids=ids).logits.flatten(0, 1)[position]
    expected = torch.log_softmax(logits, -1)
    torch.testing.assert_close(logprob, expected.gather(1, target[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1))
    expected.gather(1, target[:, None]).sum().backward()
    theirs = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_padding_on_the_right_changes_nothing(make_model: Callable[..., Any]) -> None:
    scorer = TokenScorer(make_model())
    ids = batch()[0][:1]
    position, target = torch.tensor([1, 5]), torch.tensor([3, 4])
    padded = torch.nn.functional.pad(ids, (0, 5))
    torch.testing.assert_close(scorer(ids, position, target)[0], scorer(padded, position, target)[0])


def test_forbidden_tokens_cost_no_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    logprob, entropy = score_logits(logits, torch.tensor([0]))
    assert logprob.item() == pytest.approx(-0.693147) and entropy.item() == pytest.approx(0.693147)


def test_chunks_hold_few_logits_at_a_time() -> None:
    """The largest tensor that the head ever makes, in the forward and in the backward pass, is one chunk."""
    seen: list[int] = []

    class Head(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = super().forward(input)
            seen.append(out.numel())
            return out

    head = Head(4, 100, bias=False)
    hidden = torch.randn(50, 4, requires_grad=True)
    logprob, _ = chunked_scores(hidden, head, torch.zeros(50, dtype=torch.long), chunk_logits=800)
    forward = len(seen)
    logprob.sum().backward()
    assert forward == 7 and len(seen) == 14 and max(seen) == 800


def test_dropout_and_hooks_are_left_as_found(make_model: Callable[..., Any]) -> None:
    model = make_model("gpt2").train()
    assert TokenScorer(model).shortcut
    assert model.training and not model.get_output_embeddings()._forward_hooks
