"""What dead runs left in an engine: containers and images with our labels whose owner is gone.

Invariant: what belongs to a living process of this machine, or to another machine and is within its time, is never
touched, whoever asks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_rtmc.environments.sandbox.docker import owner
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError, Engine
from agentgym_rtmc.errors import ImageMissingError, SandboxError

_lock = threading.Lock()
_cleaned: set[Engine] = set()


@dataclass(frozen=True, slots=True)
class EngineLeftover:
    """Something that nobody owns any more."""

    kind: Literal["container", "image"]
    id: str
    detail: str

    def remove(self, engine: Engine) -> None:
        """Remove it; what is gone already is fine. Raises SandboxError when the engine refuses."""
        with contextlib.suppress(ContainerGoneError, ImageMissingError), engine.failures(f"remove a {self.kind}"):
            if self.kind == "container":
                engine.slow.remove_container(self.id, force=True, v=True)
            else:
                engine.slow.remove_image(self.id, force=True)


def engine_leftovers(engine: Engine) -> list[EngineLeftover]:
    """What is there for the taking, in the order in which it can be removed."""
    wanted = {"label": [owner.OWNER]}
    with engine.failures("list containers and images"):
        containers = engine.slow.containers(all=True, filters=wanted)
        images = engine.slow.images(filters=wanted, all=True)
    found = [
        EngineLeftover("container", row["Id"], f"of image {row['Image']}, {row['Status'].lower()}{_whose(row)}")
        for row in containers
        if owner.abandoned(row["Labels"])
    ]
    newest_first = sorted(images, key=lambda row: -row["Created"])
    found += [
        EngineLeftover("image", row["Id"], f"made by a fork, {row['Size'] >> 20} MiB{_whose(row)}")
        for row in newest_first
        if owner.abandoned(row["Labels"] or {})
    ]
    return found


def _whose(row: Mapping[str, Any]) -> str:
    _, _, process = row["Labels"].get(owner.OWNER, "").partition("/")
    return f", made by process {process.partition('/')[0]}" if process else ""


def remove_once(engine: Engine) -> None:
    """What every process does before its first container: take away what dead runs left."""
    with _lock:
        if engine in _cleaned:
            return
        _cleaned.add(engine)
    for leftover in engine_leftovers(engine):
        with contextlib.suppress(SandboxError):  # another process may be at it, too
            leftover.remove(engine)
