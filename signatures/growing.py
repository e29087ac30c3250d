"""An immutable set that grows cheaply, and a key of its members that does not depend on their order.

Invariants: adding n items one after the other costs O(n log n) in all, although every intermediate set stays valid;
`total` is the sum of the members' digests, so equal sets have equal totals however they came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
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

    @staticmethod
    def of(items: Iterable[tuple[str, ...]]) -> GrowingSet:
        """Make a set at once."""
        members = frozenset(items)
        return GrowingSet((members,) if members else (), sum(map(item_digest, members)) & _MASK)
