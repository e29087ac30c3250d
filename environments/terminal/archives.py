"""Tar archives in memory: written the same every time, and read within bounds.

Invariants: nothing is ever unpacked to a disk; an archive that an agent made can be anything, so it is decompressed and
walked up to limits, and whatever is wrong with it makes it no archive (None), never an error.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping

MAX_BYTES = 4 << 20
"""Most bytes that an archive may hold unpacked."""
MAX_MEMBERS = 2000


def write_archive(files: Mapping[str, str], compressed: bool = True) -> bytes:
    """Return a tar archive (by default with gzip) of plain files; equal files, equal bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            data = files[path].encode()
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(data), 0o644, 1_577_836_800
            archive.addfile(member, io.BytesIO(data))
    if not compressed:
        return made.getvalue()
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(made.getvalue()) + packer.flush()


def read_archive(data: bytes) -> dict[str, bytes] | None:
    """Return the plain files of a tar archive, compressed with gzip or not, by path without `./`; None for none.

    Folders in it do not count; links and other members are listed with the empty content of what they are.
    """
    try:
        if data[:2] == b"\x1f\x8b":
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
            data = unpacker.decompress(data, MAX_BYTES)
            if unpacker.unconsumed_tail or not unpacker.eof:
                return None
        if not data or len(data) > MAX_BYTES:
            return None
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    return None
                if member.isdir():
                    continue
                stream = archive.extractfile(member) if member.isreg() else None
                found[member.name.removeprefix("./")] = stream.read() if stream else b"(not a plain file)"
        return found
    except (tarfile.TarError, zlib.error, OSError, ValueError, EOFError, KeyError, RecursionError, OverflowError):
        return None
