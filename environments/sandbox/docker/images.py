"""What an image holds at the place of the workspace, fetched once per image and kept in the user's cache.

A workspace is mounted over that place, so its content would be hidden: it becomes the workspace's base instead.

Invariants: a folder or archive in the cache is whole, never altered, and named after the image's content; a killed
build leaves what the next one removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentgym_rtmc.environments.sandbox import builds, folders
from agentgym_rtmc.environments.sandbox.docker import archive, labels
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError, Engine
from agentgym_rtmc.errors import ConfigError, SandboxError
from agentgym_rtmc.folders import cache_folder

_GO_FOLDER = 1 << 31
"""What engines say of a folder's mode, which are not the kernel's words."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is there."""

    engine: Engine
    id: str
    name: str
    env: tuple[str, ...]
    volumes: tuple[str, ...]
    """Places for which the engine would make volumes of any size."""
    owned: str = ""
    """A folder that was the agent's, with all in it, when the image was made: it need not be handed over."""


def find(engine: Engine, name: str) -> Image:
    """The image of that name. Raises ImageMissingError with the command that fetches it."""
    return _inspect(engine, engine.image_id(name), name)


@cache
def _inspect(engine: Engine, image_id: str, name: str) -> Image:
    with engine.failures(f"find the image {name}"):
        found = engine.quick.inspect_image(image_id)
    config = found.get("Config") or {}
    owned = (config.get("Labels") or {}).get(labels.OWNED, "")
    return Image(engine, image_id, name, tuple(config.get("Env") or ()), tuple(config.get("Volumes") or ()), owned)


def base_folder(image: Image, workdir: str) -> Path | None:
    """A folder with what the image holds at `workdir`, all of it the agent's; None where that is nothing."""

    def build(source: io.BufferedReader, target: Path) -> int:
        target.mkdir(mode=0o755)
        return archive.unpack(source, target)

    return _cached(image, workdir, "", build)


def base_archive(image: Image, workdir: str) -> Path | None:
    """The same as a tar archive of `.`."""

    def build(source: io.BufferedReader, target: Path) -> int:
        with target.open("wb") as file:
            return archive.for_agent(source, file, ".")

    return _cached(image, workdir, ".tar", build)


def _cached(image: Image, workdir: str, ending: str, build: Callable[[io.BufferedReader, Path], int]) -> Path | None:
    parent = cache_folder() / "images"
    digest = image.id.partition(":")[2][:24]
    place = parent / f"{digest}-{hashlib.sha256(workdir.encode()).hexdigest()[:8]}{ending}"
    nothing = place.with_name(f"{place.name}.nothing")
    try:
        if not place.exists() and not nothing.exists():
            with builds.building(parent):
                if not place.exists() and not nothing.exists():  # another process may have done it while we waited
                    _build(image, workdir, place, nothing, build)
        used = place if place.exists() else nothing
        builds.in_use(used)
        return place if used is place else None
    except (OSError, tarfile.TarError) as error:
        raise SandboxError(
            f"cannot keep what the image {image.name} holds at {workdir} in {parent}: {error}; "
            "free some space, or point XDG_CACHE_HOME to another disk"
        ) from error


def _build(
    image: Image, workdir: str, place: Path, nothing: Path, build: Callable[[io.BufferedReader, Path], int]
) -> None:
    scratch = builds.unfinished(place.parent)
    try:
        with content(image, workdir) as source:
            if source is None or build(source, scratch / "new") == 0:
                nothing.touch()
            else:
                (scratch / "new").rename(place)
    finally:
        folders.remove_tree(scratch)


@contextlib.contextmanager
def content(image: Image, workdir: str) -> Iterator[io.BufferedReader | None]:
    """An archive of what the image holds at `workdir`; None where that is nothing.

    Raises ConfigError when there is something else than a folder.
    """
    engine = image.engine
    reading = f"read the image {image.name}"
    with engine.failures(reading):
        marks = labels.labels(3600)
        made = engine.steady.create_container(image.id, ["true"], labels=marks, network_disabled=True)["Id"]
    try:
        try:
            with engine.failures(reading):
                pieces, found = engine.slow.get_archive(made, workdir)
        except ContainerGoneError:  # no such place
            yield None
            return
        if not found.get("mode", 0) & _GO_FOLDER:
            raise ConfigError(f"{workdir} is no folder in the image {image.name}; choose another workdir")
        try:
            yield io.BufferedReader(archive.Chunks(_told(engine, pieces, reading)), 1 << 20)
        finally:
            pieces.close()  # the engine does not remove what it still sends
    finally:
        engine.remove_container(made)


def _told(engine: Engine, pieces: Iterable[bytes], doing: str) -> Iterator[bytes]:
    with engine.failures(doing):
        yield from pieces
