"""Keep the head and the tail of a stream of bytes in bounded memory.

Invariant: memory stays within a small multiple of the limit however much is fed, and text of up to `limit` bytes
comes back untouched.
"""

from __future__ import annotations

from collections import deque


class HeadTail:
    """Collects bytes, keeping at most `limit` of them: the first half and the last half."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_room = limit - limit // 2
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0
        """Bytes fed so far."""

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the stream."""
        self.total += len(chunk)
        if self._head_room:
            part = chunk[: self._head_room]
            self._head.append(part)
            self._head_room -= len(part)
            chunk = chunk[len(part) :]
        if not chunk:
            return
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) > self._tail_room:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether bytes have been left out."""
        return self._tail_size > self._tail_room

    def text(self) -> str:
        """Everything kept, decoded once as UTF-8 with replacement; a line in the middle tells what was left out.

        >>> stream = HeadTail(8)
        >>> stream.feed(b"abcdefghijkl")
        >>> stream.text()
        'abcd\\n[... 4 bytes left out ...]\\nijkl'
        """
        head, tail = b"".join(self._head), b"".join(self._tail)[-self._tail_room :]
        left_out = self.total - len(head) - len(tail)
        note = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (head + note + tail).decode("utf-8", "replace")
