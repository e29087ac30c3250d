"""Files that may be packed with gzip, told from their content and never from their name."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, cast

_GZIP = b"\x1f\x8b"
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading raises where a packed file is cut off or broken."""


def open_unpacked(path: Path) -> BinaryIO:
    """Open a file for reading its bytes, unpacked on the way if it is a gzip file. Raises OSError as `open` does."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    return cast("BinaryIO", gzip.open(path, "rb")) if packed else path.open("rb")
