"""Observations within limits of tokens and bytes: the head and the tail of a text, and a note of what is left out.

Invariants: text within the limits is untouched; a cut never splits a character; the note says how much is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

CountTokens = Callable[[str], int]
_PIECE = re.compile(r"[^\W_]{1,4}|\s+|[\W_]")


def estimate_tokens(text: str) -> int:
    """A tokenizer's count within about a third, without one: runs of four letters, single signs, runs of blanks.

    >>> estimate_tokens("def double(x):\\n    return 2 * x\\n")
    18
    """
    return sum(1 for _ in _PIECE.finditer(text))


@dataclass(frozen=True)
class Limits:
    """The most that one observation may hold."""

    bytes: int = 16_000
    tokens: int = 4_000


def clip(text: str, limits: Limits, count_tokens: CountTokens = estimate_tokens) -> str:
    """Shorten a text to its first and last halves, with a line between them; the line comes on top of the limits.

    >>> clip("abcdefghijklmnop", Limits(bytes=8, tokens=99))
    'abcd\\n[... 8 bytes left out ...]\\nmnop'
    """
    data = text.encode("utf-8", "surrogatepass")
    # A token has a byte or more, and the count of a text that is far too long need not be known.
    room = min(len(data), limits.bytes)
    head, tail = _ends(data, room)
    while (tokens := count_tokens(head + tail)) > limits.tokens and room:
        room = min(room - 1, room * limits.tokens // tokens)
        head, tail = _ends(data, room)
    missing = len(data) - len((head + tail).encode("utf-8", "surrogatepass"))
    if not missing:
        return text
    parts = (head.removesuffix("\n"), f"[... {missing} bytes left out ...]", tail.removeprefix("\n"))
    return "\n".join(part for part in parts if part)


def _ends(data: bytes, room: int) -> tuple[str, str]:
    """The first and last halves of `room` bytes, without what a cut leaves of a character."""
    if room >= len(data):
        return data.decode("utf-8", "surrogatepass"), ""
    head = room - room // 2
    tail = len(data) - room // 2
    while head and data[head] & 0xC0 == 0x80:
        head -= 1
    while tail < len(data) and data[tail] & 0xC0 == 0x80:
        tail += 1
    return data[:head].decode("utf-8", "surrogatepass"), data[tail:].decode("utf-8", "surrogatepass")
