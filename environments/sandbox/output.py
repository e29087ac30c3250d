"""Keep the head and the tail of a stream of bytes in bounded memory, and the whole of it on disk where that cuts it.

Invariants:
- Memory stays within a small multiple of the limit however much is fed, and text of up to `limit` bytes comes back
  untouched and costs no file.
- What a sandbox's commands leave on disk is bounded, per stream and altogether: the oldest gives way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from agentgym_rtmc.environments.sandbox import folders

MOST_KEPT = 8
"""A sandbox keeps at most so many times the limit of one stream on disk."""


class HeadTail:
    """Collects bytes, keeping at most `limit` of them: the first half and the last half."""

    def __init__(self, limit: int, spill: Callable[[bytes], None] | None = None) -> None:
        """`spill` is given the whole stream, piece by piece, as soon as something has to be left out."""
        self._limit = limit
        self._spill = spill
        self._spilling = False
        self._head_room = limit // 2
        self._tail_room = limit - limit // 2
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0
        """Bytes fed so far."""

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the stream."""
        if self.total + len(chunk) > self._limit:
            self.spill_all()
        self.total += len(chunk)
        if self._spilling and self._spill is not None:
            self._spill(chunk)
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

    def spill_all(self) -> None:
        """Hand over what has been fed so far, once, and whatever follows."""
        if self._spill is not None and not self._spilling:
            self._spilling = True
            self._spill(b"".join([*self._head, *self._tail]))

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


class Kept:
    """The whole output of one command: a folder with a file for each stream, made when there is something to keep."""

    def __init__(self, make_folder: Callable[[], Path], limit: int) -> None:
        """`limit`: most bytes of each stream."""
        self._make_folder = make_folder
        self._limit = limit
        self._files: dict[str, BinaryIO] = {}
        self.folder: Path | None = None
        """Where the files are; None while there are none."""
        self.written = 0
        """Bytes on disk."""

    def stream(self, name: str) -> Callable[[bytes], None] | None:
        """What `HeadTail` spills into; None where nothing is to be kept. Raises OSError when the disk is full."""
        return (lambda data: self._write(name, data)) if self._limit else None

    def _write(self, name: str, data: bytes) -> None:
        if self.folder is None:
            self.folder = self._make_folder()
        if name not in self._files:
            self._files[name] = (self.folder / name).open("wb", buffering=0)
        file = self._files[name]
        part = memoryview(data)[: max(0, self._limit - file.tell())]
        while part:
            written = file.write(part) or 0
            self.written += written
            part = part[written:]

    def close(self) -> None:
        """Close the files, which stay."""
        for file in self._files.values():
            file.close()

    def remove(self) -> None:
        """Remove the files."""
        self.close()
        if self.folder is not None:
            folders.remove_tree(self.folder)


class KeptOutputs:
    """What one sandbox keeps of its commands' outputs, until it is closed or newer ones need the room."""

    def __init__(self, limit: int) -> None:
        """`limit`: most bytes of each stream; 0 keeps nothing."""
        self._limit = limit
        self._kept: deque[Kept] = deque()

    def begin(self) -> Kept:
        """Room for the output of one more command; one command at a time."""
        while self._kept and self._kept[-1].folder is None:
            self._kept.pop()
        while sum(kept.written for kept in self._kept) > (MOST_KEPT - 2) * self._limit:
            self._kept.popleft().remove()
        self._kept.append(Kept(lambda: folders.new_folder("output"), self._limit))
        return self._kept[-1]

    def close(self) -> None:
        """Remove everything that is kept."""
        while self._kept:
            self._kept.popleft().remove()
