"""An immutable set and map that grow cheaply, and keys of them that do not depend on order.

Invariants: adding n items one after the other costs O(n log n) in all, although every intermediate set stays valid;
`total` is the sum of the members' digests, so equal sets (and maps) have equal totals however they came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MASK = (1 << 64) - 1


def item_digest(item: tuple[str, ...]) -> int:
    """A 64-bit digest of a tuple of strings."""
    text = "\0".join(item).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


@dataclass(frozen=True)
class GrowingSet:
    """Members in layers whose sizes fall at least by half from one to the next."""

    layers: tuple[frozenset[tuple[str, ...]], ...] = ()
    total: int = 0

    def __contains__(self, item: object) -> bool:
        return any(item in layer for layer in self.layers)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (item for layer in self.layers for item in layer)

    def __bool__(self) -> bool:
        return bool(self.layers)

    def with_item(self, item: tuple[str, ...]) -> GrowingSet:
        """The set with one more member; itself where it is one already."""
        if item in self:
            return self
        layers = list(self.layers)
        newest = frozenset((item,))
        while layers and len(layers[-1]) <= 2 * len(newest):
            newest |= layers.pop()
        return GrowingSet((*layers, newest), (self.total + item_digest(item)) & _MASK)


@dataclass(frozen=True)
class GrowingMap:
    """Sets of marks by key, in layers; a newer layer hides what older ones say of a key. No marks: no entry."""

    layers: tuple[Mapping[str, frozenset[str]], ...] = ()
    total: int = 0

    def marks(self, key: str) -> frozenset[str]:
        """The marks of a key, empty where it has none."""
        return next((layer[key] for layer in reversed(self.layers) if key in layer), frozenset())

    def __iter__(self) -> Iterator[str]:
        """Keys that have marks."""
        return iter([key for key in {k for layer in self.layers for k in layer} if self.marks(key)])

    def with_marks(self, key: str, marks: frozenset[str]) -> GrowingMap:
        """The map with other marks for a key; itself where they are the same."""
        before = self.marks(key)
        if marks == before:
            return self
        layers = list(self.layers)
        newest: dict[str, frozenset[str]] = {key: marks}
        while layers and len(layers[-1]) <= 2 * len(newest):
            newest = {**layers.pop(), **newest}
        total = (self.total - _entry(key, before) + _entry(key, marks)) & _MASK
        return GrowingMap((*layers, newest), total)


def _entry(key: str, marks: frozenset[str]) -> int:
    return item_digest((key, *sorted(marks))) if marks else 0
