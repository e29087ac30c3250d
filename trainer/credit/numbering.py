"""Dense numbers for keys: the only sorting that a rollout tree needs.

Invariants: numbers are dense, start at 0 and follow the order of the parent (group, or state), so the nodes of one
group are one contiguous range. Equal keys of different groups get different numbers. The result does not depend on
how the caller named the keys, beyond the order of the numbers inside a group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.errors import CreditError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

T = TypeVar("T", bound=np.generic)

MOST_KEYS = 1 << 62
"""Sort keys stay below this, well inside 64 bits."""


@dataclass(frozen=True, eq=False)
class Numbering:
    """Nodes of one kind (states of one key level, state-action pairs, observations).

    ids: (steps,) number of the node that each step visits. parent: (nodes,) group of each node, or its state for
    pairs. base: (groups + 1,) the nodes of group g are `base[g] … base[g + 1] - 1`. episode: (steps,) non-decreasing.
    known_first: `first`, where building the nodes has already told it.
    """

    ids: Ints
    parent: Ints
    base: Ints
    episode: Ints
    known_first: Bools | None = None

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.parent)

    @cached_property
    def first(self) -> Bools:
        """Whether an episode visits its node for the first time. Shape: (steps,)."""
        if self.known_first is not None:
            return self.known_first
        order = np.argsort(self.ids, kind="stable")
        return _scattered(order, _changes(self.ids[order]) | _changes(self.episode[order]))

    @cached_property
    def meeting(self) -> Ints:
        """Number of the meeting of an episode with a node, shared by all its visits there. Shape: (steps,)."""
        order = np.argsort(self.ids, kind="stable")
        return _scattered(order, np.cumsum(_changes(self.ids[order]) | _changes(self.episode[order])) - 1)

    def part(self, steps: slice, groups: slice, parent_base: int, episode: Ints) -> Numbering:
        """The same nodes seen from a range of whole groups; nodes, parents and episodes are numbered from 0 again."""
        low, high = int(self.base[groups.start]), int(self.base[groups.stop])
        return Numbering(
            ids=self.ids[steps] - low,
            parent=self.parent[low:high] - parent_base,
            base=self.base[groups.start : groups.stop + 1] - low,
            episode=episode,
            known_first=None if self.known_first is None else self.known_first[steps],
        )


@dataclass(frozen=True, eq=False)
class Level:
    """One level of state keys: its states within groups, and the pairs of its states and the actions."""

    states: Numbering
    pairs: Numbering

    def part(self, steps: slice, groups: slice, episode: Ints) -> Level:
        """The same level seen from a range of whole groups."""
        base = int(self.states.base[groups.start])
        return Level(
            self.states.part(steps, groups, groups.start, episode), self.pairs.part(steps, groups, base, episode)
        )


def intern(keys: Iterable[Hashable], length: int) -> Ints:
    """Replace arbitrary hashable keys by integers: equal keys, equal integers. Shape: (length,)."""
    table: dict[Hashable, int] = {}
    try:
        return np.fromiter(map(table.setdefault, keys, count()), dtype=np.int64, count=length)
    except TypeError as error:
        raise CreditError(f"keys must be hashable, such as strings or integers: {error}") from error


def sums(ids: Ints, weights: Floats, count: int) -> Floats:
    """Sum of the weights at each node. Shapes: (steps,), (steps,) -> (count,)."""
    return np.bincount(ids, weights, count).astype(np.float64, copy=False)


def number(major: Ints, minor: Ints) -> tuple[Ints, Ints]:
    """Number the distinct (major, minor) pairs in that order: ids (steps,) and the major part of each node (nodes,).

    major: (steps,) small non-negative integers. minor: (steps,) any integers.
    """
    minor, span = _from_zero(minor, int(major.max()) + 1)
    key = major * span + minor
    order = np.argsort(key, kind="stable")
    heads = np.flatnonzero(_changes(key[order]))
    return _scattered(order, _ranks(heads, len(key))), major[order[heads]]


def number_pairs(group: Ints, state: Ints, action: Ints, episode: Ints) -> tuple[Ints, Ints, Ints, Ints, Bools]:
    """Number states within groups and pairs within states, with one sort.

    group: (steps,) small, non-negative. state, action: (steps,) any integers. Returns the state of each step, the group
    of each state, the pair of each step, the state of each pair, and where an episode first visits a pair.
    """
    groups = int(group.max()) + 1
    state, states = _from_zero(state, groups * len(state))
    action, actions = _from_zero(action, groups * states)
    key = group * states
    key += state
    key *= actions
    key += action
    order = np.argsort(key, kind="stable")
    new_pair = _changes(key[order])
    heads = np.flatnonzero(new_pair)
    of_head = key[order[heads]] // actions
    state_heads = np.flatnonzero(_changes(of_head))
    state_of = _ranks(state_heads, len(heads))
    pair = _ranks(heads, len(key))
    return (
        _scattered(order, state_of[pair]),
        group[order[heads[state_heads]]],
        _scattered(order, pair),
        state_of,
        _scattered(order, new_pair | _changes(episode[order])),
    )


def _from_zero(keys: Ints, others: int) -> tuple[Ints, int]:
    """Keys shifted to start at 0 and their span, made dense first if `others` times the span would overflow."""
    low, high = int(keys.min()), int(keys.max())
    span = high - low + 1
    if others * span >= MOST_KEYS:  # wide keys, such as 64-bit hashes
        keys = np.unique(keys, return_inverse=True)[1]
        low, span = 0, int(keys.max()) + 1
    return keys - low if low else keys, span


def _changes(ordered: Ints) -> Bools:
    """Where a value differs from the one before; true at the start."""
    new = np.empty(len(ordered), np.bool_)
    new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new


def _ranks(heads: Ints, size: int) -> Ints:
    """How many heads lie at or before each position, less one. Shapes: (nodes,) -> (size,)."""
    return np.repeat(np.arange(len(heads)), np.diff(heads, append=size))


def _scattered(order: Ints, values: NDArray[T]) -> NDArray[T]:
    """Values given in sorted order, put back where they came from."""
    out = np.empty_like(values)
    out[order] = values
    return out
