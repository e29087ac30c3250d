"""Dense numbers for keys: the only sorting that a rollout tree needs.

Invariants: numbers are dense, start at 0 and follow the order of the major part (group, or state), so the nodes of one
group are one contiguous range. Equal keys of different groups get different numbers. The result does not depend on
how the caller named the keys, beyond the order of the numbers inside a group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.errors import CreditError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_WORD = 63  # usable bits of a signed 64-bit sort key


@dataclass(frozen=True, eq=False)
class Numbering:
    """Nodes of one kind (states of one key level, state-action pairs, observations).

    ids: (steps,) number of the node that each step visits. first: (steps,) true where an episode visits its node for
    the first time. parent: (nodes,) the major part of each node, its group or its state. base: (groups + 1,) the
    nodes of group g are `base[g] … base[g + 1] - 1`.
    """

    ids: Ints
    first: Bools
    parent: Ints
    base: Ints

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.parent)

    def part(self, steps: slice, groups: slice, parent_base: int) -> Numbering:
        """The same nodes seen from a range of whole groups, numbered from 0 again; `parent_base` likewise."""
        low, high = int(self.base[groups.start]), int(self.base[groups.stop])
        return Numbering(
            ids=self.ids[steps] - low,
            first=self.first[steps],
            parent=self.parent[low:high] - parent_base,
            base=self.base[groups.start : groups.stop + 1] - low,
        )


@dataclass(frozen=True, eq=False)
class Level:
    """One level of state keys: its states within groups, and the pairs of its states and the actions."""

    states: Numbering
    pairs: Numbering

    def part(self, steps: slice, groups: slice) -> Level:
        """The same level seen from a range of whole groups."""
        base = int(self.states.base[groups.start])
        return Level(self.states.part(steps, groups, groups.start), self.pairs.part(steps, groups, base))


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


def number(major: Ints, minor: Ints, episode: Ints) -> tuple[Ints, Bools, Ints]:
    """Number the distinct (major, minor) pairs in order of (major, minor).

    major: (steps,) non-negative and dense. minor: (steps,) any integers. episode: (steps,) non-decreasing.
    Returns ids (steps,), first visits of an episode to its node (steps,), and the major part of each node (nodes,).
    The step's own position is packed below the key, so that one plain sort yields a stable order.
    """
    steps = len(minor)
    low, high = int(minor.min()), int(minor.max())
    majors, span = int(major.max()) + 1, high - low + 1
    position_bits = steps.bit_length()
    if span > steps and (majors * span) << position_bits >= 1 << _WORD:  # wide keys, such as 64-bit hashes
        minor = np.unique(minor, return_inverse=True)[1]
        low, span = 0, int(minor.max()) + 1
    key = major * span
    key += minor
    key -= low
    if (majors * span) << position_bits < 1 << _WORD:
        key <<= position_bits
        key |= np.arange(steps)
        key.sort()
        order = key & ((1 << position_bits) - 1)
        key >>= position_bits
    else:  # one huge group with as many keys
        order = np.argsort(key, kind="stable")
        key = key[order]
    new = np.empty(steps, dtype=np.bool_)
    new[0] = True
    np.not_equal(key[1:], key[:-1], out=new[1:])
    key = np.cumsum(new)
    key -= 1
    ids = np.empty(steps, dtype=np.int64)
    ids[order] = key
    heads = order[new]
    by_node = episode[order]
    new[1:] |= by_node[1:] != by_node[:-1]
    first = np.empty(steps, dtype=np.bool_)
    first[order] = new
    return ids, first, major[heads]
