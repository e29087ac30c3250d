"""What dead runs left in an engine: containers, and images that forks were made from.

Invariant: what belongs to a living process of this machine, or to another machine and is within its time, is never
touched, whoever asks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from agentgym_rtmc.environments.sandbox.docker import labels
from agentgym_rtmc.environments.sandbox.docker.engine import Engine
from agentgym_rtmc.environments.sandbox.leftovers import Leftover
from agentgym_rtmc.errors import ImageMissingError, SandboxError

_lock = threading.Lock()
_done: set[Engine] = set()


def engine_leftovers(engine: Engine) -> list[Leftover]:
    """What is there for the taking, in the order in which it can be removed."""
    wanted = {"label": [labels.OWNER]}
    with engine.failures("list containers and images"):
        containers = engine.steady.containers(all=True, filters=wanted)
        images = engine.steady.images(filters=wanted, all=True)
    found = [
        Leftover("container", row["Id"][:12], f"{row['Image']}, {row['Status'].lower()}", _removing(engine, row["Id"]))
        for row in containers
        if labels.abandoned(row["Labels"])
    ]
    # The newest first: an image goes only after those that were made from it.
    for row in sorted(images, key=lambda row: -row["Created"]):
        if labels.abandoned(row["Labels"] or {}):
            name = row["Id"].partition(":")[2][:12]
            found.append(Leftover("image", name, f"{row['Size'] >> 20} MiB", _discarding(engine, row["Id"])))
    return found


def _removing(engine: Engine, container_id: str) -> Callable[[], None]:
    return lambda: engine.remove_container(container_id)


def _discarding(engine: Engine, image_id: str) -> Callable[[], None]:
    def remove() -> None:
        with contextlib.suppress(ImageMissingError), engine.failures("remove an image"):
            engine.slow.remove_image(image_id, force=True)

    return remove


def remove_once(engine: Engine) -> None:
    """What every process does before its first container: take away what dead runs left."""
    with _lock:
        if engine in _done:
            return
        _done.add(engine)
    for leftover in engine_leftovers(engine):
        with contextlib.suppress(SandboxError):  # another process may be at it, too
            leftover.remove()
