"""Fetching images from a real registry on this machine's loopback: from a mirror, again after failures, resumed."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.docker.prefetch import Fetched, Outcome, prefetch

BIG = 32 << 20
CONFIG = """
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: FOLDER}, delete: {enabled: true}}
http: {addr: "127.0.0.1:PORT"}
"""


class Registry:
    """A registry process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.name = f"127.0.0.1:{self.port}"
        self._config = folder / "config.yml"
        self._config.write_text(CONFIG.replace("FOLDER", str(folder / "data")).replace("PORT", str(self.port)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("docker-registry") or "registry"
        self._process = subprocess.Popen(
            [program, "serve", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the registry does not answer")

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def api(engine_folder: Path) -> Iterator[docker.APIClient]:
    """The bare client."""
    client = docker.APIClient(f"unix://{engine_folder}/docker.sock", version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, api: docker.APIClient) -> Iterator[Registry]:
    """A registry with `library/small:1`, `some/small:1` and `some/big:1`, none of which the engine has."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed; apt install docker-registry")
    made = Registry(tmp_path_factory.mktemp("registry"))
    made.start()
    for name, size in (("library/small", 10), ("some/small", 11), ("some/big", BIG)):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo("data")
            entry.size = size
            tar.addfile(entry, io.BytesIO(os.urandom(size)))
        full = f"{made.name}/{name}"
        api.import_image_from_data(packed.getvalue(), repository=full, tag="1")
        for line in api.push(full, tag="1", stream=True, decode=True):
            assert "error" not in line, line
        api.remove_image(f"{full}:1")
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def forgetful(api: docker.APIClient) -> Iterator[None]:
    """Afterwards the engine has the images that it had before."""
    before = {row["Id"] for row in api.images()}
    yield
    for row in api.images():
        if row["Id"] not in before:
            api.remove_image(row["Id"], force=True)


class Told:
    """Remembers what `prefetch` told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.came = threading.Event()

    def begin(self, image: str) -> None:
        self.events.append(("begin", image))

    def bytes(self, image: str, done: int, total: int) -> None:
        if done > BIG // 20:
            self.came.set()

    def again(self, image: str, attempt: int, reason: str) -> None:
        self.events.append(("again", image))

    def end(self, image: str, outcome: Outcome, detail: str) -> None:
        self.events.append((outcome, image))


def test_what_is_there_is_not_asked_for_and_the_rest_is_fetched(registry: Registry, image: str) -> None:
    wanted = [f"{registry.name}/some/small:1", image, f"{registry.name}/library/small:1", image]
    told = Told()
    results = prefetch(connect(), wanted, told, jobs=2)
    assert [(item.image, item.outcome) for item in results] == [
        (wanted[0], "fetched"),
        (image, "present"),
        (wanted[2], "fetched"),
    ]
    assert ("begin", image) not in told.events
    assert {item.outcome for item in prefetch(connect(), wanted, told)} == {"present"}


def test_a_mirror_s_images_get_their_own_names(registry: Registry, api: docker.APIClient) -> None:
    wanted = ["small:1", "ghcr.io/some/small:1"]
    results = prefetch(connect(), wanted, Told(), mirror=f"{registry.name}/")
    assert [item.outcome for item in results] == ["fetched", "fetched"], results
    assert {tag for row in api.images() for tag in row["RepoTags"] or ()} >= set(wanted)
    assert not [tag for row in api.images() for tag in row["RepoTags"] or () if registry.name in tag]


def test_what_does_not_exist_is_tried_once(registry: Registry) -> None:
    told = Told()
    (result,) = prefetch(connect(), [f"{registry.name}/no/such:1"], told, retries=5)
    assert result.outcome == "failed"
    assert "not found" in result.detail or "unknown" in result.detail
    assert [event for event, _ in told.events] == ["begin", "failed"]


def test_a_registry_that_is_away_is_tried_again(registry: Registry) -> None:
    registry.kill()
    told = Told()
    back = threading.Timer(1.0, registry.start)
    back.start()
    (result,) = prefetch(connect(), [f"{registry.name}/some/small:1"], told, retries=12, pause=0.2)
    back.join()
    assert result.outcome == "fetched", result
    assert ("again", f"{registry.name}/some/small:1") in told.events
    registry.kill()
    (result,) = prefetch(connect(), [f"{registry.name}/library/small:1"], Told(), retries=1, pause=0.01)
    registry.start()
    assert (result.outcome, "refused" in result.detail) == ("failed", True), result


def test_a_registry_that_dies_midway(registry: Registry) -> None:
    told, name = Told(), f"{registry.name}/some/big:1"
    results: list[Fetched] = []
    work = threading.Thread(target=lambda: results.extend(prefetch(connect(), [name], told, retries=12, pause=0.2)))
    work.start()
    assert told.came.wait(60)
    registry.kill()
    time.sleep(0.5)
    registry.start()
    work.join(120)
    assert [item.outcome for item in results] == ["fetched"], (results, told.events)


def test_the_command(registry: Registry, engine_folder: Path, image: str) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{engine_folder}/docker.sock"}
    argv = [sys.executable, "-m", "agentgym_rtmc", "prefetch"]
    missing = f"{registry.name}/no/such:{uuid.uuid4().hex[:6]}"
    done = subprocess.run([*argv, image, missing], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "present" in done.stdout
    assert "failed" in done.stdout
    one = subprocess.run([*argv, "-"], env=environment, input=f"{image}\n", capture_output=True, text=True, check=False)
    assert one.returncode == 0, one.stderr
