"""Results of commands that were run before on the very same files, shared by all sandboxes of a process.

In a group of episodes from one state most first commands are the same, and so is what they do. A command is taken to
be a function of its files, words, input and limits; clocks and random numbers make it none, and then a memo answers
with what came the first time. That is a feature where equal runs have to look equal, and can be switched off.

Invariants: thread-safe; bounded in entries and bytes, forgetting what was not asked for longest; what was killed or
refused is never kept, since that depends on the machine's speed; nothing here refers to a file on disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym_rtmc.environments.sandbox.base import ExecResult

if TYPE_CHECKING:
    from agentgym_rtmc.environments.sandbox.snapshot import Snapshot

_OVERHEAD = 1000
"""Bytes that an entry costs beside its contents, roughly."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a command did."""

    result: ExecResult
    after: Snapshot
    cost: int
    """Bytes that this entry alone keeps in memory, roughly."""


class Memo:
    """A bounded, thread-safe mapping from commands on snapshots to what they did."""

    def __init__(self, max_entries: int = 100_000, max_bytes: int = 256 << 20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[Hashable, Remembered] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        """Commands answered from memory so far."""
        self.misses = 0
        """Commands that had to be run."""

    def get(self, key: Hashable) -> Remembered | None:
        """What is remembered under `key`, counting a hit or a miss."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._entries.move_to_end(key)
            return found

    def put(self, key: Hashable, result: ExecResult, before: Snapshot, after: Snapshot) -> None:
        """Remember a command that turned `before` into `after`."""
        cost = _OVERHEAD + len(result.stdout) + len(result.stderr) + after.bytes_beside(before)
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._bytes += cost - (replaced.cost if replaced else 0)
            self._entries[key] = Remembered(result, after, cost)
            while self._entries and (len(self._entries) > self._max_entries or self._bytes > self._max_bytes):
                self._bytes -= self._entries.popitem(last=False)[1].cost

    def clear(self) -> None:
        """Forget everything, the counts too."""
        with self._lock:
            self._entries.clear()
            self._bytes = self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)


SHARED = Memo()
"""The memo that sandboxes of this process use unless told otherwise."""
