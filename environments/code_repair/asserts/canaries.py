"""Two tests of random name, one that must pass and one that must fail: where they do not, nothing else is believed."""

from __future__ import annotations

import random
import secrets
from typing import NamedTuple

_RANDOM = random.SystemRandom()


class Canary(NamedTuple):
    """The text of a test and its name."""

    name: str
    text: str


def make_canaries() -> tuple[Canary, Canary]:
    """Return a test that must pass and one that must fail. They look alike, and like nobody could know beforehand."""
    return _canary(0), _canary(_RANDOM.randint(1, 9))


def _canary(wrong_by: int) -> Canary:
    numbers = [_RANDOM.randrange(1000) for _ in range(4)]
    expected = sorted(numbers)
    expected[_RANDOM.randrange(4)] += wrong_by
    name = f"test_{secrets.token_hex(8)}"
    return Canary(name, f"\n\ndef {name}():\n    assert sorted({numbers}) == {expected}\n")
