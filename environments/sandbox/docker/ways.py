"""How a container's workspace can be had here: tried for real, once per engine and process.

Whether the engine runs on this machine cannot be told from its address: sockets are forwarded. So a container is
started on a folder of ours, something is mounted on the folder afterwards, and the container is asked what it sees.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

from agentgym_rtmc.environments.sandbox import folders, layers, workspace
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import options
from agentgym_rtmc.environments.sandbox.docker.command import Bytes, Commands
from agentgym_rtmc.environments.sandbox.docker.container import Container
from agentgym_rtmc.environments.sandbox.docker.engine import Engine
from agentgym_rtmc.environments.sandbox.docker.images import Image

_lock = threading.Lock()
_reasons: dict[Engine, str] = {}


def why_no_overlay(image: Image) -> str:
    """Why workspaces of this process cannot be mounted into the engine's containers; an empty string if they can.

    Tried with `image` where the engine is not known yet. Raises what starting a container raises.
    """
    with _lock:
        if image.engine not in _reasons:
            _reasons[image.engine] = _look(image)
        return _reasons[image.engine]


def _look(image: Image) -> str:
    if not image.engine.address.startswith("unix://"):
        return f"the engine at {image.engine.address} is not reached by a socket of this machine"
    reason = layers.why_not()
    if reason:
        return f"this process cannot mount: {reason}"
    spec = SandboxSpec(image=image.name, ttl=300, disk_bytes=MIB, disk_files=16)
    slot = folders.new_folder("slot")
    try:
        container = Container(image.engine, options.create_arguments(spec, image, str(slot)))
        try:
            return _try(spec, container, slot)
        except OSError as error:
            return f"a trial failed: {error}"
        finally:
            container.remove()
    finally:
        folders.remove_tree(slot)


def _try(spec: SandboxSpec, container: Container, slot: Path) -> str:
    shown = workspace.OverlayWorkspace.new(spec, slot)
    try:
        secret = secrets.token_bytes(16).hex().encode()
        folders.write_file(slot, ("secret",), secret, 0o600)
        told = Bytes(1000)
        Commands(container, spec, look_for_room=False).run([b"cat", b"secret"], 60, [told])
        return "" if told.data == secret else "the engine runs on another machine, or in other mount namespaces"
    finally:
        shown.close()
