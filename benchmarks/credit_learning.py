"""A family of tasks in which credit decides how fast a small shared policy learns; used by `credit_quality.py`.

Letters: T turns, D decisive ones, K kinds of turns of each sort, 3 actions. A task draws a kind for every turn; at a
decisive turn one action, fixed for its kind, is right. The policy is a linear softmax on random features of the kind,
fewer than there are kinds, shared by all turns and tasks: credit given to turns that decide nothing does harm.
Outcome: 1 with probability 0.95 without a mistake, else 0.05; with step rewards 1/D at once for each right decision.
State key: turn, whether a mistake was made (hidden if aliased), what neutral turns left on record, and a name of the
episode's own once chance has led it astray. Coarser keys: turn and whether a mistake was made that shows (at kinds of
even number; never if aliased), which nobody strays from; then the turn alone.
Learning: Adam, so that the scale of the advantages does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.trainer.credit import RolloutTree, estimate

KINDS, ACTIONS, DIMENSIONS = 16, 3, 12
TASKS, EPISODES, UPDATES = 4, 8, 60
GOOD, BAD = 0.95, 0.05
BETAS = 0.9, 0.95


@dataclass(frozen=True)
class Cell:
    """turns, decisive: T and D. stray: chance per turn to leave all company. record: chance that a neutral turn's
    action stays on record. aliased: keys hide mistakes. steps: step rewards."""

    turns: int
    decisive: int
    stray: float
    record: float = 0.0
    aliased: bool = False
    steps: bool = False

    @property
    def label(self) -> str:
        """Short name for tables."""
        marks = [f"T{self.turns} D{self.decisive} stray {self.stray:g}"]
        marks += [f"record {self.record:g}"] if self.record else []
        marks += ["aliased"] if self.aliased else []
        marks += ["steps"] if self.steps else []
        return " ".join(marks)


@dataclass(frozen=True)
class Curve:
    """Exact expected return after each update, mean share of turns without company, mean RMS of the advantages."""

    returns: list[float]
    lonely: float
    rms: float

    @property
    def area(self) -> float:
        """Mean height of the curve above its start."""
        return float(np.mean(self.returns) - self.returns[0])


def play(cell: Cell, logits: NDArray[Any], rng: np.random.Generator) -> tuple[RolloutTree, NDArray[Any], NDArray[Any]]:
    """One batch under a policy. Returns the tree, and kind and action of each step; shapes (steps,)."""
    count = TASKS * EPISODES
    cumulative = np.cumsum(softmax(logits), axis=1)
    decides = rng.permuted(np.tile(np.arange(cell.turns) < cell.decisive, (TASKS, 1)), axis=1)
    kinds = rng.integers(0, KINDS, (TASKS, cell.turns)) + np.where(decides, 0, KINDS)
    recorded = rng.random((TASKS, cell.turns)) < cell.record
    kind = np.repeat(kinds, EPISODES, axis=0)
    action = (rng.random((count, cell.turns))[:, :, None] > cumulative[kind]).sum(axis=2)
    wrong = np.repeat(decides, EPISODES, axis=0) & (action != kind % ACTIONS)
    rewards = np.zeros((count, cell.turns))
    if cell.steps:
        rewards += (np.repeat(decides, EPISODES, axis=0) & ~wrong) / cell.decisive
    else:
        rewards[:, -1] = rng.random(count) < np.where(wrong.any(axis=1), BAD, GOOD)
    keeps = np.repeat(recorded & ~decides, EPISODES, axis=0)
    history = before(np.cumsum(keeps * (1 + action) * rng.integers(1, 1 << 40, cell.turns), axis=1))
    mistaken = before(np.cumsum(wrong, axis=1)) > 0
    astray = before(np.cumsum(rng.random((count, cell.turns)) < cell.stray, axis=1)) > 0
    shown = before(np.cumsum(wrong & (np.repeat(kinds, EPISODES, axis=0) % 2 == 0), axis=1)) > 0
    own = astray * (1 + np.arange(count))[:, None]
    turn = np.broadcast_to(np.arange(cell.turns), (count, cell.turns))
    key = ((history % (1 << 40)) * 2 + (0 if cell.aliased else mistaken)) * (count + 1) + own
    key = key * cell.turns + turn
    tree = RolloutTree.from_ids(
        np.unique(key, return_inverse=True)[1].ravel(),
        action.ravel(),
        rewards.ravel(),
        lengths=np.full(count, cell.turns),
        groups=np.repeat(np.arange(TASKS), EPISODES),
        coarser=[(turn * 2 + (0 if cell.aliased else shown)).ravel(), turn.ravel()],
    )
    return tree, kind.ravel(), action.ravel()


def before(after: NDArray[Any]) -> NDArray[Any]:
    """Shift a running quantity so that each turn sees what held before it."""
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Rows of probabilities."""
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exps / exps.sum(axis=1, keepdims=True))


def expected_return(cell: Cell, logits: NDArray[Any]) -> float:
    """Exact mean over tasks."""
    right = float(softmax(logits)[np.arange(KINDS), np.arange(KINDS) % ACTIONS].mean())
    return right if cell.steps else BAD + (GOOD - BAD) * right**cell.decisive


def learn(cell: Cell, name: str, parameters: dict[str, Any], rate: float, seed: int) -> Curve:
    """Train with Adam at a rate.

    The start gives right actions a probability at which about one episode in five succeeds.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(2 * KINDS, DIMENSIONS)) / DIMENSIONS**0.5
    start = 1 / ACTIONS if cell.steps else max(1 / ACTIONS, 0.2 ** (1 / cell.decisive))
    offset = np.zeros((2 * KINDS, ACTIONS))
    offset[np.arange(KINDS), np.arange(KINDS) % ACTIONS] = np.log(start * (ACTIONS - 1) / (1 - start))
    weights, mean, square = (np.zeros((DIMENSIONS, ACTIONS)) for _ in range(3))
    returns, lonely, scale, memory = [expected_return(cell, offset)], [], [], None
    for update in range(1, UPDATES + 1):
        logits = offset + features @ weights
        tree, kind, action = play(cell, logits, rng)
        found = estimate(name, tree, memory=memory, **parameters)
        memory = found.memory
        by_logit = np.zeros_like(logits)
        np.add.at(by_logit, (kind, action), found.flat)
        by_logit -= softmax(logits) * np.bincount(kind, found.flat, 2 * KINDS)[:, None]
        gradient = features.T @ by_logit / tree.step_count
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        size = np.sqrt(square / (1 - BETAS[1] ** update)) + 1e-8
        weights += rate * mean / (1 - BETAS[0] ** update) / size
        returns.append(expected_return(cell, offset + features @ weights))
        lonely.append(1 - tree.company_share())
        scale.append(found.rms)
    return Curve(returns, float(np.mean(lonely)), float(np.mean(scale)))
