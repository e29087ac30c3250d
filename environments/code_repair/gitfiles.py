"""A git repository of one commit, written byte by byte, without running git.

Invariant: the same files give the same bytes, so that equal workspaces are equal down to `.git`. Formats after git's
own documentation: loose objects (gitformat-loose), index version 2 (gitformat-index).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping

_AUTHOR = "Ada Example <ada@example.org> 1577836800 +0000"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = false\n"
_FILE_MODE = 0o100644


def one_commit(files: Mapping[str, bytes], message: str) -> dict[str, bytes]:
    """Return the files of `.git`, paths relative to the workspace, for one commit of plain files without folders.

    The index carries no file times, so git compares contents the first time it looks.
    """
    out: dict[str, bytes] = {}
    blobs = {name: _add(out, "blob", data) for name, data in sorted(files.items())}
    rows = (b"100644 " + name.encode() + b"\0" + bytes.fromhex(digest) for name, digest in blobs.items())
    tree = _add(out, "tree", b"".join(rows))
    commit = _add(out, "commit", f"tree {tree}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\n{message}\n".encode())
    sizes = {name: len(data) for name, data in files.items()}
    return {
        **out,
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".git/config": _CONFIG.encode(),
        ".git/index": _index(blobs, sizes),
        ".git/refs/heads/main": f"{commit}\n".encode(),
    }


def _add(out: dict[str, bytes], kind: str, data: bytes) -> str:
    content = f"{kind} {len(data)}\0".encode() + data
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    out[f".git/objects/{digest[:2]}/{digest[2:]}"] = zlib.compress(content)
    return digest


def _index(blobs: Mapping[str, str], sizes: Mapping[str, int]) -> bytes:
    entries = b""
    for name, digest in blobs.items():
        path = name.encode()
        # Six words of times and places, mode, two of owner, size; zeros are "not known yet".
        entry = struct.pack(">6I4I", 0, 0, 0, 0, 0, 0, _FILE_MODE, 0, 0, sizes[name])
        entry += struct.pack(">20sH", bytes.fromhex(digest), len(path)) + path
        entries += entry + b"\0" * (8 - len(entry) % 8)
    body = b"DIRC" + struct.pack(">2I", 2, len(blobs)) + entries
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
