"""Folders of the user that the project writes to.

Invariants: nothing is made here; what lies in the cache folder can be deleted at any time and is made again.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/agentgym-rtmc`, or `~/.cache/agentgym-rtmc` where that is not set to a full path."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "agentgym-rtmc"
