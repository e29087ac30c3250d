"""Sandboxes in containers next to bare calls of the engine's client, with the same limits: a sandbox's life."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from sandboxes.measuring import AFTER, DEADLINE, HANG, PREPARE, Row, Steps, many

from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import images, options
from agentgym_rtmc.environments.sandbox.docker.engine import Engine
from agentgym_rtmc.environments.sandbox.docker.files import How
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
from agentgym_rtmc.environments.sandbox.pool import SandboxPool

SLEEP = ["sleep", "3600"]


class Bare:
    """The same steps by bare calls of the client."""

    def __init__(self, engine: Engine, spec: SandboxSpec) -> None:
        self.api = engine.slow
        self.spec = spec
        self.image = images.find(engine, spec.image or "")

    def start(self, image: str | None = None) -> str:
        """Create and start a container with a sandbox's limits; its files are in the image's own folder."""
        arguments = options.create_arguments(self.spec.model_copy(update={"writable_root": True}), self.image, None)
        arguments |= {"image": image or self.image.id, "entrypoint": SLEEP, "stdin_open": False}
        made = str(self.api.create_container(**arguments)["Id"])
        self.api.start(made)
        return made

    def exec(self, container: str, argv: list[str], user: str = options.AGENT, codes: tuple[int, ...] = (0,)) -> None:
        """Run a command and learn its exit code."""
        made = self.api.exec_create(container, argv, user=user, workdir="/tmp")["Id"]
        self.api.exec_start(made, demux=True)
        assert self.api.exec_inspect(made)["ExitCode"] in codes

    def close(self, container: str) -> None:
        """Remove a container."""
        self.api.remove_container(container, force=True, v=True)


def life(engine: Engine, image: str, how: How, rounds: int) -> list[Row]:
    """The steps of a sandbox's life, its files kept in one way."""
    spec = SandboxSpec(image=image)
    steps, bare = Steps(), Bare(engine, spec)
    parent = DockerSandbox(spec, how=how)
    bare_parent = bare.start()
    parent.exec(["sh", "-c", PREPARE])
    bare.exec(bare_parent, ["sh", "-c", PREPARE.replace("> f", "> /var/tmp/f")])
    parent.fork().close()  # from the first fork on, containers are kept ready
    for _ in range(3 * rounds):
        steps.ours("exec true", lambda: parent.exec(["true"]))
        steps.bare("exec true", lambda: bare.exec(bare_parent, ["true"]))
    for _ in range(rounds):
        steps.ours("exec python", lambda: parent.exec(["python", "-c", "pass"]))
        steps.bare("exec python", lambda: bare.exec(bare_parent, ["python", "-c", "pass"]))
    for _ in range(rounds):
        steps.ours(DEADLINE, lambda: parent.exec(["sh", "-c", HANG], timeout=AFTER))
        steps.bare(DEADLINE, lambda: bare.exec(bare_parent, ["timeout", str(AFTER), "sleep", "9"], codes=(0, 124)))
    for _ in range(rounds):
        one_life(steps, bare, spec, how)
        one_fork(steps, bare, parent, bare_parent)
    parent.close()
    bare.close(bare_parent)
    return steps.rows("docker", how)


def one_life(steps: Steps, bare: Bare, spec: SandboxSpec, how: How) -> None:
    """Start and close."""
    sandbox = steps.ours("start", lambda: DockerSandbox(spec, how=how))
    steps.ours("close", sandbox.close)
    container = steps.bare("start", bare.start)
    steps.bare("close", lambda: bare.close(container))


def one_fork(steps: Steps, bare: Bare, parent: DockerSandbox, bare_parent: str) -> None:
    """A fork with its first command, and back to the prepared state: away with it and a new one."""

    def fork() -> DockerSandbox:
        child = parent.fork()
        assert child.exec(["cat", "f100"]).stdout == "100\n"
        return child

    def reset(child: DockerSandbox) -> DockerSandbox:
        child.close()
        return parent.fork()

    def bare_fork() -> tuple[str, str]:
        image = bare.api.commit(bare_parent)["Id"]
        child = bare.start(image)
        bare.exec(child, ["cat", "/var/tmp/f100"])
        return child, image

    def bare_reset(child: str, image: str) -> str:
        bare.close(child)
        return bare.start(image)

    child = steps.ours("fork and first exec", fork)
    child = steps.ours("reset", lambda: reset(child))
    child.close()
    container, image = steps.bare("fork and first exec", bare_fork)
    container = steps.bare("reset", lambda: bare_reset(container, image))
    bare.close(container)
    bare.api.remove_image(image, force=True)


def load(image: str, sandboxes: int, execs: int) -> Row:
    """Many at once, out of a pool."""
    spec = SandboxSpec(image=image, timeout=60)
    with SandboxPool(spec, limit=sandboxes, ready=0, makers=4) as pool, ExitStack() as stack:
        with ThreadPoolExecutor(sandboxes) as threads:
            leases = list(threads.map(lambda _: stack.enter_context(pool.lease()), range(sandboxes)))
        return many("docker", leases, execs)


def base_image() -> str:
    """The tests' image of this machine's packages."""
    script = Path(__file__).parents[2] / ".ci/base_image.py"
    return subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout.strip()
