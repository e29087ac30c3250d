"""Muon: gradient steps of matrices made orthogonal, everything else by AdamW.

A matrix moves along the momentum's nearest (semi-)orthogonal matrix, found by Newton-Schulz iterations in float32
(half precision is far slower on a CPU). Source: K. Jordan et al., Muon (2024); the scale 0.2·√max(rows, columns) of
J. Liu et al., arXiv 2502.16982, gives updates the size of AdamW's, so one learning rate serves both.

Invariants: embeddings, heads and vectors never get an orthogonal step. Equal gradients give equal steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # the published coefficients: fast, and within a third of orthogonal


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return about U·Vᵀ of the matrix's singular value decomposition. Shape: (rows, columns), as given.

    >>> round(float(torch.linalg.matrix_norm(orthogonalized(torch.eye(4) * 7), 2)), 1) in (0.7, 0.8, 0.9, 1.0, 1.1)
    True
    """
    x: Tensor = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Takes orthogonal steps with Nesterov momentum; for matrices only."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum: Tensor = state["momentum"]
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                step = orthogonalized(parameter.grad.lerp(momentum, group["momentum"]))
                scale = 0.2 * max(parameter.shape) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step, alpha=-group["lr"] * scale)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The weights of linear layers between embedding and head: what Muon is for."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    outside = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    outside |= {id(p) for p in head.parameters()} if head is not None else set()
    return [p for p in model.parameters() if p.ndim == 2 and id(p) not in outside and p.requires_grad]
