"""`agentgym-rtmc clean` and `doctor`, with a container engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentgym_rtmc.doctor import Check, run_checks
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import labels, leftovers
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox

# A child of the trainer holds all its connections as well, so the containers do not notice its death.
TRAINER = """
import os, sys, time
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
parent = DockerSandbox(SandboxSpec(image=sys.argv[1], writable_root=True))
child = parent.fork()
holder = os.fork()
if holder:
    print(parent.container, child.container, holder, flush=True)
time.sleep(600)
"""
CLEAN = [sys.executable, "-m", "agentgym_rtmc", "clean"]


@pytest.fixture(scope="module")
def api(engine_folder: Path) -> Iterator[docker.APIClient]:
    """The bare client."""
    client = docker.APIClient(f"unix://{engine_folder}/docker.sock", version="auto", timeout=60)
    yield client
    client.close()


def test_what_the_dead_left_is_listed_and_removed_and_the_living_keep_theirs(
    api: docker.APIClient, image: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    images = {row["Id"] for row in api.images(all=True)}
    with DockerSandbox(SandboxSpec(image=image)) as mine:
        with subprocess.Popen(
            [sys.executable, "-c", TRAINER, image], stdout=subprocess.PIPE, text=True, env=environment
        ) as trainer:
            assert trainer.stdout
            *containers, holder = trainer.stdout.readline().split()
            trainer.kill()
        try:
            before = {row["Id"] for row in api.containers()}
            assert {*containers, mine.container} <= before
            listed = json.loads(
                subprocess.run([*CLEAN, "--list", "--json"], check=True, capture_output=True, env=environment).stdout
            )
            kinds = [row["kind"] for row in listed]
            assert (kinds.count("container"), kinds.count("image")) == (2, 1)
            assert {row["name"] for row in listed if row["kind"] == "container"} == {name[:12] for name in containers}
            assert {row["Id"] for row in api.containers()} == before
            asked = subprocess.run(
                CLEAN, check=True, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
            )
            assert "nothing was removed" in asked.stderr
            done = subprocess.run([*CLEAN, "--yes"], check=True, capture_output=True, text=True, env=environment)
            assert f"removed {len(listed)} of {len(listed)}" in done.stderr
        finally:
            os.kill(int(holder), signal.SIGKILL)
        assert not {*containers} & {row["Id"] for row in api.containers(all=True)}
        assert {row["Id"] for row in api.images(all=True)} == images
        assert mine.exec(["echo", "untouched"]).stdout == "untouched\n"
    for _ in range(2):  # the trainer's folder was its child's, too, as long as that lived
        again = subprocess.run([*CLEAN, "--yes"], check=True, capture_output=True, text=True, env=environment)
    assert again.stdout == "nothing is left of any dead run\n"
    assert list(tmp_path.glob("*/*")) == []


def test_what_other_machines_made_is_judged_by_its_deadline(api: docker.APIClient, image: str) -> None:
    def make(**changed: str) -> str:
        marks = labels.labels(60) | {labels.HOST: "another"} | {f"agentgym-rtmc.{k}": v for k, v in changed.items()}
        return str(api.create_container(image, ["true"], labels=marks)["Id"])

    kept = [make(), make(deadline=str(int(time.time()) - labels.GRACE + 60)), make(deadline="soon")]
    gone = make(deadline=str(int(time.time()) - labels.GRACE - 60))
    try:
        assert [item.name for item in leftovers.engine_leftovers(connect())] == [gone[:12]]
    finally:
        for container in (*kept, gone):
            api.remove_container(container, force=True)


def test_the_first_container_of_a_process_removes_what_the_dead_left(api: docker.APIClient, image: str) -> None:
    marks = labels.labels(60) | {labels.DEADLINE: "1", labels.HOST: "another"}
    left = api.create_container(image, ["true"], labels=marks)["Id"]
    script = (
        "import sys; from agentgym_rtmc.environments.sandbox.base import SandboxSpec\n"
        "from agentgym_rtmc.environments.sandbox.opening import open_sandbox\n"
        "open_sandbox(SandboxSpec(image=sys.argv[1])).close()"
    )
    subprocess.run([sys.executable, "-c", script, image], check=True)
    assert left not in {row["Id"] for row in api.containers(all=True)}


def found(name: str) -> Check:
    """What `doctor` says about one thing."""
    return next(check for check in run_checks()["containers"] if check.name == name)


def test_doctor_knows_the_engine(image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = {check.name: check for check in run_checks()["containers"]}
    assert checks["container engine"].status == "ok"
    assert "API" in checks["container engine"].detail
    assert checks["container limits"].status == "ok"
    assert "seccomp" in checks["container confinement"].detail
    assert ("watchdog" in checks["writable roots"].detail, checks["writable roots"].status) == (True, "note")
    assert checks["container workspaces"].status == ("ok" if os.geteuid() == 0 else "note")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    missing = found("container engine")
    assert missing.status == "note"
    assert "start Docker" in missing.fix
