"""Small files that survive a crash.

Invariants: when a function returns, the bytes are on the disk. A kill costs at most the line being appended, and leaves
a replaced file old or new, never half. What the disk refuses is a RunFolderError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgym_rtmc.errors import RunFolderError


def append_line(path: Path, line: str) -> None:
    """Append one line."""
    with refusals(path), path.open("ab", buffering=0) as file:
        write_all(file.fileno(), line.encode() + b"\n")
        os.fsync(file.fileno())


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step: readers see the old text or the new."""
    draft = path.with_name(path.name + ".new")
    with refusals(path):
        try:
            with draft.open("wb", buffering=0) as file:
                write_all(file.fileno(), text.encode())
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however few the system takes at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} could not be written: {error.strerror or error}. Make room or mend the folder, then resume the run"
        ) from error
