"""Validation of estimator parameters: every refusal says which argument, which value and why.

Invariant: a check returns the value it was given, or raises CreditError; nothing is clipped or repaired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym_rtmc.errors import CreditError, nearest


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CreditError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def discount(name: str, value: float) -> float:
    """A discount per turn, in (0, 1]."""
    if not 0.0 < _number(name, value) <= 1.0:
        raise CreditError(f"{name} is a discount per turn and lies in (0, 1], got {value!r}; use 1.0 for none")
    return float(value)


def fraction(name: str, value: float) -> float:
    """A number in [0, 1]."""
    if not 0.0 <= _number(name, value) <= 1.0:
        raise CreditError(f"{name} lies in [0, 1], got {value!r}")
    return float(value)


def strength(name: str, value: float) -> float:
    """A number of pseudo-observations or a weight: not negative."""
    if _number(name, value) < 0.0:
        raise CreditError(f"{name} must not be negative, got {value!r}; use 0 to switch it off")
    return float(value)


def choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """One of a few names."""
    if value not in allowed:
        raise CreditError(f"{name}={value!r} is unknown{nearest(str(value), allowed)}")
    return value
