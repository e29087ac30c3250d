"""Folders kept in the user's cache under the hash of everything that went into them.

Invariants: a folder appears whole or not at all (built beside, then renamed); a folder whose files do not match its own
list of digests - cut off, damaged, meddled with - is thrown away and built again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIST = "digests.json"


def content_key(*parts: Any) -> str:
    """Hash JSON-like values, or bytes, into a short name."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:32]


def cached_folder(path: Path, build: Callable[[Path], None]) -> tuple[Path, bool]:
    """Return `path` and whether it was there; else `build(empty folder)` fills it first."""
    if _whole(path):
        return path, True
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        build(draft)
        (draft / _LIST).write_text(json.dumps(_digests(draft), indent=1), encoding="utf-8")
        if path.exists() and not _whole(path):
            _discard(path)
        try:
            draft.rename(path)
        except OSError:
            if not _whole(path):  # another process was first, and with the same content: fine
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path, False


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / _LIST)
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def _whole(folder: Path) -> bool:
    try:
        listed = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(listed == _digests(folder))


def _discard(folder: Path) -> None:
    """Remove a folder in one step as others see it: renamed first, then deleted."""
    grave = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    folder.rename(grave / "old")
    shutil.rmtree(grave, ignore_errors=True)
