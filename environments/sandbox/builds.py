"""A folder of the user's cache with things that are built once and used by many processes, maybe at the same time.

Invariants: one process builds at a time; a build that was killed is removed by the next one, and so is what nobody has
used for `KEEP_DAYS`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agentgym_rtmc.environments.sandbox import folders

KEEP_DAYS = 30
"""Days after which something unused is removed when something new is built."""
_UNFINISHED = "building-"


@contextlib.contextmanager
def building(parent: Path) -> Iterator[None]:
    """Keep other builders out of `parent`, and remove what they left. Raises OSError where the cache is closed."""
    parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(parent / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_leftovers(parent)
        yield
    finally:
        os.close(descriptor)


def unfinished(parent: Path) -> Path:
    """An empty folder in `parent` to build in; to be moved away or removed."""
    return Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))


def in_use(place: Path) -> None:
    """Say that something is used now, where the cache lets us."""
    with contextlib.suppress(OSError):  # one that came with a read-only image is fine
        os.utime(place)


def _remove_leftovers(parent: Path) -> None:
    """Remove unfinished builds, which nobody can be making while we hold the lock, and what was not used for long."""
    for entry in parent.iterdir():
        old = entry.stat().st_mtime < time.time() - KEEP_DAYS * 86400
        if entry.name == "lock" or not (old or entry.name.startswith(_UNFINISHED)):
            continue
        if entry.is_dir():
            folders.remove_tree(entry)
        else:
            entry.unlink()
