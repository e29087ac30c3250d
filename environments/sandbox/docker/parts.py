"""What a sandbox in a container is put together from, for each of the three ways of keeping files."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from agentgym_rtmc.environments.sandbox import folders, workspace
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import archive, images, labels, layer, memory, options, outside, ways
from agentgym_rtmc.environments.sandbox.docker.command import Commands
from agentgym_rtmc.environments.sandbox.docker.container import Container
from agentgym_rtmc.environments.sandbox.docker.files import Files, HostFiles, How, InsideFiles
from agentgym_rtmc.environments.sandbox.docker.images import Image
from agentgym_rtmc.environments.sandbox.docker.layer import LayerMeter
from agentgym_rtmc.environments.sandbox.docker.warm import Room, Shelf
from agentgym_rtmc.environments.sandbox.folders import machine_failures
from agentgym_rtmc.errors import SandboxError

FORK_PATIENCE = 300.0
"""Seconds a fork may wait for a container."""


@dataclass
class Parts:
    """A started container with everything that serves it."""

    spec: SandboxSpec
    image: Image
    how: How
    room: Room
    commands: Commands
    files: Files
    memory: memory.Memory
    shelf: Shelf | None = None
    """Where forks get their containers; None where each needs an image of its own."""
    meter: LayerMeter | None = None
    """Measures what was written where nothing limits it."""
    own_image: str | None = None
    """An image that was made for this container alone."""

    @property
    def container(self) -> Container:
        """The container."""
        return self.room.container

    def fork(self) -> Parts:
        """Parts of a child with a copy of the files."""
        if self.shelf is None:
            return _committed(self)
        room = self.shelf.take(FORK_PATIENCE)
        try:
            if isinstance(self.files, HostFiles):
                assert room.slot is not None
                with machine_failures("fork a workspace"):
                    shown = self.files.workspace.fork(room.slot)
                return _around(self.spec, self.image, "overlay", room, shown)
            assert isinstance(self.files, InsideFiles)
            packed = self.files.pack()
            child = _around(self.spec, self.image, "copy", room)
            assert isinstance(child.files, InsideFiles)
            child.files.unpack(packed)
            return child
        except BaseException:
            with contextlib.suppress(SandboxError):
                room.close()
            raise

    def close(self) -> None:
        """Remove everything. An engine that is not there removes the container when it is back."""
        self.memory.close()
        try:
            self.files.close()
        finally:
            with contextlib.suppress(SandboxError):
                self.room.close()
            if self.own_image is not None:
                layer.discard(self.image.engine, self.own_image)
            if self.shelf is not None:
                self.shelf.leave()


def assemble(spec: SandboxSpec, image: Image, how: How) -> Parts:
    """Start a container and put what the image holds at the working directory into its workspace."""
    if how == "commit":
        return _written(spec, image)
    base = images.base_folder(image, spec.workdir) if how == "overlay" else None
    packed = images.base_archive(image, spec.workdir) if how == "copy" else None
    room = _room(spec, image, how, packed)
    try:
        if how == "overlay":
            assert room.slot is not None
            with machine_failures("make a workspace"):
                return _around(spec, image, how, room, workspace.OverlayWorkspace.new(spec, room.slot, base))
        parts = _around(spec, image, how, room)
        if packed is not None:
            assert isinstance(parts.files, InsideFiles)
            parts.files.unpack(packed.read_bytes())
        return parts
    except BaseException:
        with contextlib.suppress(SandboxError):
            room.close()
        raise


def _room(spec: SandboxSpec, image: Image, how: How, packed: Path | None) -> Room:
    """A container without a workspace, or with an empty one of its own that has room for what `packed` holds."""
    if how == "copy":
        size = packed.stat().st_size if packed is not None else 0
        return Room(Container(image.engine, options.create_arguments(spec, image, None, size, size // 512)), None)
    with machine_failures("make a folder"):
        slot = folders.new_folder("slot")
    try:
        return Room(Container(image.engine, options.create_arguments(spec, image, str(slot))), slot)
    except BaseException:
        folders.remove_tree(slot)
        raise


def _around(spec: SandboxSpec, image: Image, how: How, room: Room, shown: workspace.Workspace | None = None) -> Parts:
    """Parts with the container of `room`, with the workspace `shown` or one of its own."""
    try:
        counts, processes = _seen_from_here(spec, room.container, image)
    except BaseException:
        if shown is not None:
            shown.close()
        raise

    commands = Commands(room.container, spec, look_for_room=shown is None, outside=processes)
    files: Files = HostFiles(spec, shown) if shown is not None else InsideFiles(spec, commands)

    def make() -> Room:
        return _room(spec, image, how, images.base_archive(image, spec.workdir) if how == "copy" else None)

    shelf = Shelf.join((image.engine, image.id, spec.digest, how), make)
    return Parts(spec, image, how, room, commands, files, counts, shelf)


def _seen_from_here(
    spec: SandboxSpec, container: Container, image: Image
) -> tuple[memory.Memory, outside.Processes | None]:
    """What tells the container's memory, and its processes, where the engine runs on this machine and we may look."""
    engine = container.engine
    if ways.why_no_overlay(image):
        return memory.EventMemory(engine, container.id), None
    with engine.failures("inspect a container"):
        pid = engine.quick.inspect_container(container.id)["State"]["Pid"]
    processes: outside.Processes | None = None
    try:
        processes = outside.Processes(pid)
        if not spec.writable_root:
            return memory.KernelMemory(pid, spec.workdir, spec.memory_bytes), processes
    except OSError:
        pass  # its control groups are not where we look
    return memory.EventMemory(engine, container.id), processes


def _written(spec: SandboxSpec, image: Image) -> Parts:
    """A container with a writable root, in which the agent owns the working directory."""

    def hand_over(container_id: str) -> None:
        if image.owned == spec.workdir:
            return
        with tempfile.TemporaryFile() as packed:
            with images.content(image, spec.workdir) as source:
                if source is None:
                    archive.empty_for_agent(packed, spec.workdir[1:])
                else:
                    archive.for_agent(source, packed, spec.workdir[1:])
            packed.seek(0)
            _put(image, container_id, packed)

    with machine_failures("hand a folder to the agent"):
        container = Container(image.engine, options.create_arguments(spec, image, None), hand_over)
    return _with_layer(spec, image, container, before=0)


def _put(image: Image, container_id: str, packed: IO[bytes]) -> None:
    with image.engine.failures("fill a container"):
        image.engine.slow.put_archive(container_id, "/", packed)


def _with_layer(spec: SandboxSpec, image: Image, container: Container, before: int) -> Parts:
    try:
        meter = LayerMeter(image.engine, container.id, spec.disk_bytes, before)
        counts, processes = _seen_from_here(spec, container, image)
        commands = Commands(container, spec, look_for_room=False, outside=processes)
        files = InsideFiles(spec, commands, meter.begin)
    except BaseException:
        with contextlib.suppress(SandboxError):
            container.remove()
        raise
    return Parts(spec, image, "commit", Room(container, None), commands, files, counts, meter=meter)


def _committed(parent: Parts) -> Parts:
    """A child on an image made of the parent's container, which is removed with the child."""
    assert parent.meter is not None
    engine = parent.image.engine
    with engine.failures("make an image of a container"):
        made = engine.slow.commit(parent.container.id, changes=_label_lines(parent.spec))
    image = replace(parent.image, id=made["Id"])
    try:
        container = Container(engine, options.create_arguments(parent.spec, image, None))
        child = _with_layer(parent.spec, image, container, parent.meter.used)
    except BaseException:
        layer.discard(engine, image.id)
        raise
    child.own_image = image.id
    return child


def _label_lines(spec: SandboxSpec) -> list[str]:
    return [f"LABEL {name}={value}" for name, value in labels.labels(spec.ttl).items()]
