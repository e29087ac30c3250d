"""Small decision processes whose true advantages can be computed, to judge estimators by.

Letters: S states, A actions, X = S states plus some ends. Everything is enumerated: transitions, rewards, the policy.
Invariants: state 0 starts every episode; every episode ends; `keys` may give different states one key (aliasing), and
`wander` gives an episode keys of its own from some turn on, without changing what happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from agentgym_rtmc.trainer.credit.numbering import Floats, Ints
from agentgym_rtmc.trainer.credit.tree import RolloutTree


@dataclass(frozen=True, eq=False)
class Truth:
    """Exact values of a policy. Shapes: q, advantage (S, A); v, visits (S,), expected visits per episode."""

    q: Floats
    v: Floats
    advantage: Floats
    visits: Floats

    def gradient(self, policy: Floats) -> Floats:
        """Gradient of the expected return in the logits of a tabular softmax policy. Shape: (S, A)."""
        return self.visits[:, None] * policy * self.advantage


@dataclass(frozen=True, eq=False)
class Sample:
    """Sampled groups: their tree, and the true state and action of each step. Shapes: (steps,)."""

    tree: RolloutTree
    state: Ints
    action: Ints


@dataclass(frozen=True, eq=False)
class Process:
    """transitions: (S, A, X) probabilities. rewards: (S, A, X). policy: (S, A). keys: (S,) the state keys."""

    name: str
    transitions: Floats
    rewards: Floats
    policy: Floats
    keys: Ints

    def truth(self, gamma: float = 1.0) -> Truth:
        """Solve for the policy's values exactly."""
        states = len(self.policy)
        onward = self.transitions[:, :, :states]
        reward = (self.transitions * self.rewards).sum(axis=2)
        flow = np.einsum("sa,sax->sx", self.policy, onward)
        v = np.linalg.solve(np.eye(states) - gamma * flow, (self.policy * reward).sum(axis=1))
        q = reward + gamma * onward @ v
        start = np.zeros(states)
        start[0] = 1.0
        visits = np.linalg.solve(np.eye(states) - flow.T, start)
        return Truth(q, v, q - v[:, None], visits)

    def sample(self, rng: np.random.Generator, groups: int, episodes: int, wander: float = 0.0) -> Sample:
        """Play `groups` groups of `episodes` episodes. wander: chance per turn to leave all company for good."""
        count, states = groups * episodes, len(self.policy)
        choose, move = np.cumsum(self.policy, axis=1), np.cumsum(self.transitions, axis=2)
        now, alive, private = np.zeros(count, np.int64), np.arange(count), np.zeros(count, np.bool_)
        columns: list[tuple[Ints, Ints, Ints, Floats, Ints]] = []
        fresh = int(self.keys.max()) + 1
        while len(alive):
            state = now[alive]
            action = _drawn(rng, choose[state])
            following = _drawn(rng, move[state, action])
            key = np.where(private[alive], fresh + np.arange(len(alive)), self.keys[state])
            fresh += len(alive)
            columns.append((alive, state, action, self.rewards[state, action, following], key))
            private[alive] |= rng.random(len(alive)) < wander
            now[alive] = following
            alive = alive[following < states]
        episode, state, action, reward, key = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(episode, kind="stable")
        tree = RolloutTree.from_ids(
            key[order],
            action[order],
            reward[order],
            lengths=np.bincount(episode, minlength=count),
            groups=np.repeat(np.arange(groups), episodes),
            coarser=[self.keys[state[order]]],
        )
        return Sample(tree, state[order], action[order])


def _drawn(rng: np.random.Generator, cumulative: Floats) -> Ints:
    """One column index per row of cumulative probabilities."""
    drawn = (rng.random(len(cumulative))[:, None] > cumulative).sum(axis=1, dtype=np.int64)
    return np.asarray(np.minimum(drawn, cumulative.shape[1] - 1), dtype=np.int64)


def corridor(length: int = 6) -> Process:
    """Two lanes that paths change and meet in again; from time to time the bad lane ends the episode.

    States: turn and lane. Action 0 steers into lane 0, action 1 into lane 1, both go wrong one time in ten.
    """
    states, fail, success = 2 * length, 2 * length, 2 * length + 1
    moves = np.zeros((states, 2, states + 2))
    for turn in range(length):
        for lane in range(2):
            risk = 0.4 if lane == 1 and turn % 2 == 1 else 0.0
            here = moves[2 * turn + lane]
            here[:, fail] += risk
            for action in range(2):
                for into, chance in ((action, 0.9), (1 - action, 0.1)):
                    if turn + 1 < length:
                        here[action, 2 * turn + 2 + into] += (1 - risk) * chance
                    else:
                        won = 0.8 if into == 0 else 0.3
                        here[action, success] += (1 - risk) * chance * won
                        here[action, fail] += (1 - risk) * chance * (1 - won)
    rewards = np.zeros_like(moves)
    rewards[:, :, success] = 1.0
    return Process("corridor", moves, rewards, np.tile([0.55, 0.45], (states, 1)), np.arange(states))


def tree(depth: int = 4) -> Process:
    """Binary choices that never merge; each leaf wins with a chance of its own."""
    states = 2**depth - 1
    moves = np.zeros((states, 2, states + 2))
    chances = np.random.default_rng(7).beta(0.6, 0.9, size=(states, 2))
    for state in range(states):
        for action in range(2):
            child = 2 * state + 1 + action
            if child < states:
                moves[state, action, child] = 1.0
            else:
                moves[state, action, states + 1] = chances[state, action]
                moves[state, action, states] = 1.0 - chances[state, action]
    rewards = np.zeros_like(moves)
    rewards[:, :, states + 1] = 1.0
    return Process("tree", moves, rewards, np.tile([0.6, 0.4], (states, 1)), np.arange(states))


def aliased(length: int = 6) -> Process:
    """The corridor with keys that hide the lane."""
    process = corridor(length)
    return replace(process, name="aliased", keys=process.keys // 2)


def stepwise(length: int = 6) -> Process:
    """The corridor with a reward of a quarter for each turn begun in lane 0, whatever the end."""
    process = corridor(length)
    rewards = process.rewards.copy()
    rewards[::2] += 0.25
    return replace(process, name="stepwise", rewards=rewards)


def detour() -> Process:
    """A process with loops: searching may lead back to where one was, so pairs repeat within an episode."""
    moves, rewards = np.zeros((3, 2, 5)), np.zeros((3, 2, 5))
    moves[0, 0, [0, 1]] = 0.5, 0.5
    moves[0, 1, [0, 2, 3]] = 0.2, 0.5, 0.3
    moves[1, 0, [4, 3]] = 0.8, 0.2
    moves[1, 1, [0, 2]] = 0.5, 0.5
    moves[2, 0, [0, 4, 3]] = 0.3, 0.2, 0.5
    moves[2, 1, [1, 3]] = 0.4, 0.6
    rewards[:, :, 4] = 1.0
    return Process("detour", moves, rewards, np.full((3, 2), 0.5), np.arange(3))


PROCESSES: dict[str, Callable[[], Process]] = {
    "corridor": corridor,
    "tree": tree,
    "aliased": aliased,
    "stepwise": stepwise,
    "detour": detour,
}
