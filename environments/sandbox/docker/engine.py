"""A container engine: reaching it, saying in typed errors what it refuses, and streams in both directions.

Invariants:
- The engine is the one of DOCKER_HOST (else the usual socket); nothing is ever pulled here.
- No call waits for ever: what lasts longer than its limit is a SandboxError.
- A process has one client per engine, shared by its threads; a forked child makes its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import docker
import docker.errors
import docker.utils
import requests
import urllib3

from agentgym_rtmc.errors import ImageMissingError, SandboxError, SandboxUnavailableError

QUICK = 10.0
"""Seconds that the engine may take to answer what costs it milliseconds."""
STEADY = 60.0
"""Seconds that it may take to start or remove a container."""
SLOW = 300.0
"""Seconds that it may take to commit, copy, or fetch the next piece of something."""
REMOVE_PATIENCE = 60.0
"""Seconds that a removal which is under way may take."""
_FAILURES = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)

_lock = threading.Lock()
_engines: dict[tuple[int, str], Engine] = {}


class ContainerGoneError(SandboxError):
    """A container was removed or has ended: from outside, by its time to live, or with its engine."""


class Engine:
    """A connection to one engine; all methods may be called from any thread."""

    def __init__(self, address: str) -> None:
        """`address`: `unix:///path` or `http://host:port`. Raises SandboxUnavailableError when nothing answers."""
        self.address = address
        plain = address.startswith("http://") and not os.environ.get("DOCKER_TLS_VERIFY")
        if not address.startswith("unix://") and not plain:
            raise SandboxUnavailableError(
                f"the engine at {address} cannot be used: only unix sockets and plain tcp are supported; forward a "
                "remote engine's socket, e.g. ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST, and set "
                "DOCKER_HOST=unix:///tmp/docker.sock"
            )
        try:
            self.slow = docker.APIClient(address, version="auto", timeout=SLOW)
        except _FAILURES as error:
            raise SandboxUnavailableError(
                f"no container engine answers at {address} ({_told(error)}); start Docker or podman's service, or set "
                "DOCKER_HOST to the engine's socket; see `agentgym-rtmc doctor`"
            ) from error
        version = self.slow.api_version
        self.quick = docker.APIClient(address, version=version, timeout=QUICK)
        self.steady = docker.APIClient(address, version=version, timeout=STEADY)
        self.endless = docker.APIClient(address, version=version, timeout=None)
        for client in (self.quick, self.steady, self.slow):
            # The client keeps idle connections by URL, and hardly ever asks for the same twice.
            client.headers["Connection"] = "close"

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the engine says about itself and its machine; asked once."""
        with self.failures("ask the engine about itself"):
            return dict(self.quick.info())

    @cached_property
    def is_podman(self) -> bool:
        """Whether it is podman's service, which does not know all options."""
        with self.failures("tell its version"):
            return any("podman" in part["Name"].lower() for part in self.quick.version().get("Components") or ())

    @contextlib.contextmanager
    def failures(self, doing: str) -> Iterator[None]:
        """Turn what the client raises into typed errors. `doing` completes "the engine could not ...".

        ImageMissingError where an image is not there, ContainerGoneError where a container is not, or not any more;
        SandboxError for everything else.
        """
        try:
            yield
        except docker.errors.ImageNotFound as error:
            raise ImageMissingError(f"the engine could not {doing}: {_told(error)}") from error
        except docker.errors.APIError as error:
            kind = ContainerGoneError if _is_gone(error) else SandboxError
            raise kind(f"the engine at {self.address} could not {doing}: {_told(error)}") from error
        except _FAILURES as error:
            raise SandboxError(
                f"the engine at {self.address} could not {doing}: {_told(error)}; "
                "is it running? `agentgym-rtmc doctor` looks"
            ) from error

    def image_id(self, image: str) -> str:
        """The id of an image that is there. Raises ImageMissingError with the command that fetches it."""
        try:
            with self.failures(f"find the image {image}"):
                return str(self.quick.inspect_image(image)["Id"])
        except ImageMissingError as error:
            raise ImageMissingError(
                f"the image {image} is not in the engine at {self.address}; fetch it: agentgym-rtmc prefetch {image}"
            ) from error

    def remove_container(self, container_id: str) -> None:
        """Kill and remove a container, and wait until it is gone. Raises SandboxError where it stays."""
        give_up = time.monotonic() + REMOVE_PATIENCE
        while True:
            try:
                with self.failures("remove a container"):
                    self.steady.remove_container(container_id, force=True, v=True)
                return
            except ContainerGoneError:
                return
            except SandboxError as error:
                # Its first process ended, or another process removes it: the engine is at it already.
                if "in progress" not in str(error) or time.monotonic() >= give_up:
                    raise
            time.sleep(0.02)

    def limit_processes(self, container_id: str, limit: int) -> None:
        """Change how many processes and threads a running container may have; the client does not know of it."""
        with self.failures("change a container's limits"):
            url = f"{self.quick.base_url}/v{self.quick.api_version}/containers/{container_id}/update"
            try:
                self.quick.post(url, json={"PidsLimit": limit}, timeout=QUICK).raise_for_status()
            except requests.HTTPError as error:
                docker.errors.create_api_error_from_http_exception(error)

    def open(self) -> socket.socket:
        """A connection of its own, to be closed by the caller. Raises OSError."""
        if self.address.startswith("unix://"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(QUICK)
            try:
                connection.connect(self.address.removeprefix("unix://"))
            except BaseException:
                connection.close()
                raise
            return connection
        host, _, port = self.address.partition("://")[2].partition("/")[0].rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=QUICK)

    def take_over(self, connection: socket.socket, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Post to `path` and make a stream of the connection; return what came on it already.

        Closes the connection when it fails: raises OSError when it breaks, SandboxError or ContainerGoneError when the
        engine refuses.
        """
        try:
            data = json.dumps(body or {}).encode()
            head = f"POST /v{self.slow.api_version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
            head += f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            answer = b""
            while b"\r\n\r\n" not in answer:
                part = connection.recv(1 << 16)
                if not part:
                    raise ConnectionResetError("the engine closed the connection")
                answer += part
            head_bytes, _, rest = answer.partition(b"\r\n\r\n")
            status = int(head_bytes.split()[1])
            if status not in (101, 200):
                kind = ContainerGoneError if status in (404, 409) else SandboxError
                raise kind(f"the engine at {self.address} refuses a stream: {rest.decode(errors='replace').strip()}")
            return rest
        except BaseException:
            connection.close()
            raise


def connect() -> Engine:
    """The engine of DOCKER_HOST. Raises SandboxUnavailableError when there is none; the next call tries again."""
    wanted = os.environ.get("DOCKER_HOST", "").strip()
    try:
        address = docker.utils.parse_host(wanted or None).replace("http+unix://", "unix://")
        urllib3.util.parse_url(address)
    except (docker.errors.DockerException, urllib3.exceptions.HTTPError, ValueError) as error:
        raise SandboxUnavailableError(
            f"DOCKER_HOST={wanted!r} names no engine: {error}; set it to the engine's socket, such as "
            "unix:///var/run/docker.sock"
        ) from error
    key = (os.getpid(), address)
    with _lock:
        if key not in _engines:
            _engines[key] = Engine(address)
        return _engines[key]


def _is_gone(error: docker.errors.APIError) -> bool:
    told = (error.explanation or "").lower()
    return error.status_code == 404 or "is not running" in told or "container state improper" in told


def _told(error: BaseException) -> str:
    """The engine's own words, or what the system says, without the client's around it."""
    if isinstance(error, docker.errors.APIError) and error.explanation:
        return str(error.explanation).strip()
    if isinstance(error, requests.Timeout):
        return "it did not answer in time"
    inner = [error.__cause__, *error.args, *(part for whole in error.args for part in getattr(whole, "args", ()))]
    for cause in inner:
        if isinstance(cause, OSError | urllib3.exceptions.HTTPError):
            return _told(cause)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
