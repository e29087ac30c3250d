"""What a git index means, without what it remembers about files on disk.

A `.git/index` holds a cache of inode numbers and times beside its real contents, so two equal workspaces hardly ever
have equal index files. Comparing workspaces needs the contents only: mode, object id, flags and path of every entry.

Format: https://git-scm.com/docs/index-format (versions 2 and 3; others and SHA-256 repositories are left as they are).
"""

from __future__ import annotations

import struct
from functools import lru_cache

_CACHES = {b"TREE", b"UNTR", b"FSMN", b"EOIE", b"IEOT"}
"""Extensions that only remember what could be worked out again."""
_ID = 20


_LARGEST_KEPT = 1 << 20
"""Bytes of the largest index whose meaning is remembered: an agent decides how large they are."""


def meaning(index: bytes) -> bytes:
    """A form of `index` that is equal for equal meaning; the bytes themselves where the format is not understood."""
    return _remembered(index) if len(index) <= _LARGEST_KEPT else _understood(index)


def _understood(index: bytes) -> bytes:
    try:
        return _meaning(index)
    except (struct.error, ValueError):
        return index


_remembered = lru_cache(maxsize=64)(_understood)


def _meaning(index: bytes) -> bytes:
    signature, version, count = struct.unpack_from(">4sII", index)
    if signature != b"DIRC" or version not in (2, 3):
        raise ValueError("not an index of version 2 or 3")
    parts = []
    at = 12
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", index, at + 24)
        object_id = index[at + 40 : at + 40 + _ID]
        (flags,) = struct.unpack_from(">H", index, at + 60)
        name_at = at + (64 if flags & 0x4000 else 62)
        name_end = index.index(b"\0", name_at)
        extended = index[at + 62 : name_at]
        parts.append(struct.pack(">IH", mode, flags) + object_id + extended + index[name_at:name_end] + b"\0")
        at += (name_end - at + 8) // 8 * 8
    while at < len(index) - _ID:
        name, size = struct.unpack_from(">4sI", index, at)
        if name not in _CACHES:
            parts.append(index[at : at + 8 + size])
        at += 8 + size
    if at != len(index) - _ID:
        raise ValueError("extensions do not end where the checksum begins")
    return b"".join(parts)
