"""Log-probabilities and entropies of trained tokens, with memory that does not grow with the vocabulary.

Invariants: the language-model head runs over trained positions only and in chunks; a chunk's logits are recomputed in
the backward pass instead of being kept. Log-probabilities are of temperature 1 without truncation, in float32. What a
model does after its head (soft-capping, scaling) is never skipped: `TokenScorer` compares its short cut with the
model's own logits once and takes the long way where they differ.

Letters: B rows, L tokens a row, n trained tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 1 << 24
"""Logits held at a time (64 MiB in float32)."""

_log = logging.getLogger(__name__)


class TokenScorer:
    """Scores tokens with any transformers causal LM.

    `shortcut` says whether the head is applied to trained positions only; without it the full logits (B, L, V) are
    made, which is correct for every model and costs the memory this class exists to save.
    """

    def __init__(self, model: Any, *, chunk_logits: int = CHUNK_LOGITS) -> None:
        self.model = model
        self.chunk_logits = chunk_logits
        self.shortcut = _head_is_last(model)
        if not self.shortcut:
            _log.warning(
                "%s works on its logits after the head: log-probabilities are taken from full logits (more memory)",
                type(model).__name__,
            )

    def __call__(self, ids: Tensor, position: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (n,) with gradient and entropies (n,) without, both float32, in nats.

        Shapes: `ids` (B, L) padded on the right; `position` (n,) into the flattened (B·L); `target` (n,).
        """
        if not self.shortcut:
            logits = self.model(input_ids=ids, use_cache=False).logits
            return score_logits(logits.flatten(0, 1)[position], target)
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return chunked_scores(
            hidden.flatten(0, 1)[position], self.model.get_output_embeddings(), target, self.chunk_logits
        )


def score_logits(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return log softmax at the target and, detached, the entropy. Shapes: (n, V), (n,) -> (n,), (n,)."""
    logits = logits.float()
    normaliser = torch.logsumexp(logits, dim=-1)
    logprob = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1) - normaliser
    with torch.no_grad():
        probability = torch.exp(logits - normaliser.unsqueeze(-1))
        # A forbidden token has logit -inf and probability 0: it adds 0, not NaN, to the mean logit.
        expected = (probability * logits.masked_fill(probability == 0, 0.0)).sum(-1)
        entropy = normaliser.detach() - expected
    return logprob, entropy


def chunked_scores(hidden: Tensor, head: Any, target: Tensor, chunk_logits: int) -> tuple[Tensor, Tensor]:
    """Apply `head` to (n, D) in chunks of at most `chunk_logits` logits and score; shapes as in `score_logits`."""

    def scores(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return score_logits(head(part), wanted)

    size = max(1, chunk_logits // int(head.weight.shape[0]))
    if len(hidden) <= size:
        return scores(hidden, target)
    parts = [
        checkpoint(scores, part, wanted, use_reentrant=False)
        for part, wanted in zip(torch.split(hidden, size), torch.split(target, size), strict=True)
    ]
    return torch.cat([logprob for logprob, _ in parts]), torch.cat([entropy for _, entropy in parts])


@torch.no_grad()
def _head_is_last(model: Any) -> bool:
    """Whether the model's logits are exactly `head(backbone(ids))`.

    Tried on a few tokens: the head must be given what the backbone returned, and large known logits put in place of
    the head's own must come out of the model unchanged (a soft-cap is the identity near 0, so size matters).
    """
    head = model.get_output_embeddings()
    if head is None or model.base_model is model or getattr(head, "weight", None) is None:
        return False
    given: list[Tensor] = []

    def replace(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given.append(args[0])
        return torch.linspace(-60, 60, output.numel(), device=output.device, dtype=output.dtype).view_as(output)

    device = next(model.parameters()).device
    ids = (torch.arange(8, device=device) * 7919 % int(head.weight.shape[0])).unsqueeze(0)
    was_training = model.training
    model.eval()
    hook = head.register_forward_hook(replace)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    finally:
        hook.remove()
        model.train(was_training)
    if hidden is None or len(given) != 1 or given[0].shape != hidden.shape:
        return False
    expected = torch.linspace(-60, 60, logits.numel(), device=device, dtype=logits.dtype).view_as(logits)
    return torch.allclose(given[0], hidden, rtol=1e-4, atol=1e-5) and torch.equal(logits, expected)
