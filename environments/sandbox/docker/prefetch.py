"""Fetching images, the only place where anything is: some at a time, again where a registry fails, from a mirror.

Invariants: an image that is there is not asked for again; an interrupted run continues where it stopped, as the engine
keeps the layers it has; what no repetition mends (an image that does not exist, a refused login) is tried once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from agentgym_rtmc.environments.sandbox.docker.engine import Engine
from agentgym_rtmc.errors import ImageMissingError, SandboxError

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts: at random up to a bound that doubles from the first of these to the second."""
_HOPELESS = re.compile(
    r"not found|manifest unknown|does not exist|denied|unauthorized|no basic auth|invalid reference"
    r"|no matching manifest|repository name",
    re.IGNORECASE,
)
_PASSING = re.compile(r"too\s?many\s?requests|timeout|timed out|temporar|connection|unavailable|\bEOF\b", re.IGNORECASE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")

Outcome = Literal["present", "fetched", "failed"]


class Progress(Protocol):
    """Is told how things go; from several threads."""

    def begin(self, image: str) -> None:
        """An attempt begins."""
        ...

    def bytes(self, image: str, done: int, total: int) -> None:
        """Bytes of its layers that have come, and that are known of."""
        ...

    def again(self, image: str, attempt: int, reason: str) -> None:
        """An attempt has failed and another one comes."""
        ...

    def end(self, image: str, outcome: Outcome, detail: str) -> None:
        """It is there, or will not come."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of one image."""

    image: str
    outcome: Outcome
    detail: str = ""


class _PullError(SandboxError):
    """The engine could not fetch an image."""


def prefetch(
    engine: Engine,
    images: Iterable[str],
    progress: Progress,
    *,
    mirror: str = "",
    jobs: int = 2,
    retries: int = 5,
    pause: float = FIRST_PAUSE,
) -> list[Fetched]:
    """Fetch every image that is not there, `jobs` at a time, each with up to `retries` more attempts.

    `mirror`: where to fetch from instead, see `at_mirror`; the image gets its own name here. `pause` in seconds, see
    `FIRST_PAUSE`. Returns what became of each, in their order, and raises nothing for one that fails.
    """
    names = list(dict.fromkeys(images))
    stopping = threading.Event()

    def one(image: str) -> Fetched:
        if stopping.is_set():
            return Fetched(image, "failed", "interrupted")
        result = _fetch(engine, image, progress, mirror, retries, pause, stopping)
        progress.end(image, result.outcome, result.detail)
        return result

    with ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="prefetch") as workers:
        try:
            return list(workers.map(one, names))
        except BaseException:  # such as KeyboardInterrupt: what has come stays with the engine
            stopping.set()
            raise


def _fetch(
    engine: Engine,
    image: str,
    progress: Progress,
    mirror: str,
    retries: int,
    pause: float,
    stopping: threading.Event,
) -> Fetched:
    source = at_mirror(image, mirror) if mirror else image
    try:
        if _is_there(engine, image) or (mirror and _DIGEST.search(image) and _is_there(engine, source)):
            return Fetched(image, "present")
        attempts = Retrying(
            stop=stop_after_attempt(retries + 1),
            wait=wait_random_exponential(multiplier=pause, max=LONGEST_PAUSE),
            retry=retry_if_exception(
                lambda error: isinstance(error, SandboxError) and not _hopeless(str(error), source)
            ),
            sleep=lambda seconds: _sleep(seconds, stopping),
            before_sleep=lambda state: progress.again(image, state.attempt_number, _reason(state)),
            reraise=True,
        )
        attempts(_pull, engine, image, source, progress)
    except SandboxError as error:
        return Fetched(image, "failed", str(error))
    if source == image:
        return Fetched(image, "fetched")
    if _DIGEST.search(image):
        return Fetched(image, "fetched", f"use it by the mirror's name, as a digest cannot be given a name: {source}")
    try:
        with engine.failures(f"name the image {image}"):
            repository, tag = _split(image)
            engine.quick.tag(source, repository, tag)
            engine.quick.remove_image(source)
    except SandboxError as error:
        return Fetched(image, "failed", str(error))
    return Fetched(image, "fetched", f"from {source}")


def _is_there(engine: Engine, image: str) -> bool:
    try:
        engine.image_id(image)
    except ImageMissingError:
        return False
    return True


def _pull(engine: Engine, image: str, source: str, progress: Progress) -> None:
    """One attempt. Raises _PullError."""
    progress.begin(image)
    repository, tag = _split(source)
    layers: dict[str, tuple[int, int]] = {}
    try:
        with engine.failures(f"fetch {source}"):
            for line in engine.slow.pull(repository, tag=tag, stream=True, decode=True):
                if "error" in line:
                    raise _PullError(f"{source}: {line['error']}")
                if _note(line, layers):
                    progress.bytes(
                        image, sum(done for done, _ in layers.values()), sum(all_ for _, all_ in layers.values())
                    )
    except ImageMissingError as error:  # "not found" of a registry
        raise _PullError(str(error)) from error
    engine.image_id(source)


def _note(line: dict[str, Any], layers: dict[str, tuple[int, int]]) -> bool:
    """Take what the engine says about a layer into account; return whether that changes the sums."""
    layer, state = line.get("id", ""), line.get("status", "")
    if state == "Downloading":
        detail = line.get("progressDetail") or {}
        layers[layer] = (detail.get("current") or 0, detail.get("total") or 0)
    elif state in ("Download complete", "Already exists", "Pull complete") and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])
    else:
        return False
    return True


def _hopeless(told: str, image: str) -> bool:
    """Whether trying again is in vain, by what was told apart from the image's name, which may say anything.

    >>> _hopeless("timeout/eof:1: manifest unknown", "timeout/eof:1"), _hopeless("a:1: connection reset", "a:1")
    (True, False)
    """
    told = told.replace(image, "")
    return bool(_HOPELESS.search(told)) and not _PASSING.search(told)


def _reason(state: RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome is not None else ""


def _sleep(seconds: float, stopping: threading.Event) -> None:
    if stopping.wait(seconds):
        raise _PullError("interrupted")


def _split(image: str) -> tuple[str, str]:
    """Repository, and tag or digest.

    >>> _split("localhost:5000/a/b"), _split("a:1")
    (('localhost:5000/a/b', 'latest'), ('a', '1'))
    """
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")


def at_mirror(image: str, mirror: str) -> str:
    """The name of an image at a mirror: its registry's name gives way to the mirror's.

    >>> at_mirror("python:3.12", "mirror.example/hub")
    'mirror.example/hub/library/python:3.12'
    >>> at_mirror("ghcr.io/some/thing:1", "localhost:5000")
    'localhost:5000/some/thing:1'
    """
    first, slash, rest = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        path = rest
    else:
        path = image if slash else f"library/{image}"
    return f"{mirror.rstrip('/')}/{path}"
