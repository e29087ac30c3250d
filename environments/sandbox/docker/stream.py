"""One connection to a running command or container: frames in, bytes out, never waiting longer than asked."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

STDOUT, STDERR = 1, 2
_CHUNK = 1 << 16
_HEADER = struct.Struct(">BxxxL")

Feed = Callable[[int, bytes], None]
"""Takes a stream's number and the next bytes of it."""


class Stream:
    """Splits what comes into the streams it belongs to, and sends what is to be sent as the other side takes it."""

    def __init__(self, connection: socket.socket, early: bytes, feed: Feed, stdin: bytes | None) -> None:
        """`early`: what has come already. `stdin`: sent, then the sending side is closed; None leaves it alone."""
        self._socket = connection
        self._feed = feed
        self._unread = bytearray()
        self._kind, self._left = 0, 0
        self._stdin = memoryview(stdin or b"")
        self._to_close = stdin is not None
        self.ended = False
        """Whether the other side has closed: nothing will come any more."""
        connection.setblocking(False)
        self._split(early)

    def move(self, until: float) -> None:
        """See the function `move`, for this one."""
        move((self,), until)

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._socket.fileno()

    def waits_for(self) -> int:
        """What it can go on with, as of `select.poll`."""
        return select.POLLIN | (select.POLLOUT if self._to_close else 0)

    def go_on(self, events: int) -> None:
        """Do what can be done without waiting. Raises OSError when the connection breaks."""
        if events & select.POLLOUT and self._to_close:
            self._send()
        if events & ~select.POLLOUT:
            self._receive()

    def _receive(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._split(chunk)
        else:
            self.ended = True

    def _send(self) -> None:
        try:
            self._stdin = self._stdin[self._socket.send(self._stdin[:_CHUNK]) :] if self._stdin else self._stdin
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._stdin, self._to_close = memoryview(b""), False  # whoever should read it has ended
            return
        if not self._stdin:
            self._to_close = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _split(self, chunk: bytes) -> None:
        """Hand on what belongs to a frame; a frame's header may come in pieces."""
        self._unread += chunk
        while self._unread:
            if not self._left:
                if len(self._unread) < _HEADER.size:
                    return
                self._kind, self._left = _HEADER.unpack_from(self._unread)
                del self._unread[: _HEADER.size]
                continue
            part = bytes(self._unread[: self._left])
            del self._unread[: self._left]
            self._left -= len(part)
            self._feed(self._kind, part)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def move(streams: Sequence[Stream], until: float) -> None:
    """Move bytes of any stream as soon as that is possible; wait for it until `until` at most (`time.monotonic()`).

    Raises OSError when a connection breaks.
    """
    poll = select.poll()
    numbered = {stream.fileno(): stream for stream in streams if not stream.ended}
    for number, stream in numbered.items():
        poll.register(number, stream.waits_for())
    for number, events in poll.poll(max(0.0, until - time.monotonic()) * 1000):
        numbered[number].go_on(events)
