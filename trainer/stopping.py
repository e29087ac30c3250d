"""Ending on request: a polite kill is an interruption like Ctrl-C.

Invariant: what was set for the process before is set again afterwards.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def polite_kills() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that environments are closed; outside the main thread change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
