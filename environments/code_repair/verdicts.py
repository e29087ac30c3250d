"""Verdicts on programs, and a memory of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """How many of the cases or tests a program gets right. `late`: a clock stopped it, maybe for the machine's load."""

    right: int
    total: int
    late: bool = False

    @property
    def solved(self) -> bool:
        """Whether all are right."""
        return self.right == self.total > 0


class VerdictMemo:
    """The newest verdicts by digest of program and cases; shared by all environments of the process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> Verdict | None:
        """Return a verdict and mark it as used."""
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is None:
                self.misses += 1
            else:
                self.hits += 1
                self._verdicts.move_to_end(key)
            return verdict

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict, dropping the one unused for longest."""
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > self._size:
                self._verdicts.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._verdicts.clear()
