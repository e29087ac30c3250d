"""What sandboxes in containers cost beyond the bare engine, and whether many at once hold.

Each step is taken in turn by a sandbox and by bare calls of the engine's client that reach the same, in the same run
and with the same limits, so that a busy machine hurts both alike. Printed are medians and 99th percentiles in
milliseconds of wall time and the ratio of medians, for each way of keeping files that works here.

Needs an engine (DOCKER_HOST) and an image: `python benchmarks/containers.py [--image NAME] [--rounds 30] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import images, options, ways
from agentgym_rtmc.environments.sandbox.docker.engine import Engine, connect
from agentgym_rtmc.environments.sandbox.docker.files import How
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
from agentgym_rtmc.environments.sandbox.pool import SandboxPool
from agentgym_rtmc.errors import SandboxUnavailableError

PREPARE = "for i in $(seq 100); do echo $i > f$i; done"
"""A workspace with 100 files, from which forks start."""
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

    def exec(self, container: str, argv: list[str], user: str = options.AGENT) -> None:
        """Run a command and learn its exit code."""
        made = self.api.exec_create(container, argv, user=user, workdir="/tmp")["Id"]
        self.api.exec_start(made, demux=True)
        assert self.api.exec_inspect(made)["ExitCode"] == 0

    def close(self, container: str) -> None:
        """Remove a container."""
        self.api.remove_container(container, force=True, v=True)


class Steps:
    """Times of each step, ours and bare."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[list[float], list[float]]] = {}

    def ours(self, step: str, run: Callable[[], object]) -> object:
        """Time a step of a sandbox."""
        return self._time(step, run, 0)

    def bare(self, step: str, run: Callable[[], object]) -> object:
        """Time the bare calls for it."""
        return self._time(step, run, 1)

    def _time(self, step: str, run: Callable[[], object], side: int) -> object:
        begun = time.perf_counter()
        result = run()
        self.times.setdefault(step, ([], []))[side].append((time.perf_counter() - begun) * 1e3)
        return result

    def rows(self, way: str) -> list[dict[str, object]]:
        """One row for each step."""
        found = []
        for step, (ours, bare) in self.times.items():
            mine, theirs = statistics.median(ours), statistics.median(bare)
            found.append(
                {
                    "files by": way,
                    "step": step,
                    "sandbox ms": round(mine, 1),
                    "p99": round(percentile(ours), 1),
                    "bare engine ms": round(theirs, 1),
                    "bare p99": round(percentile(bare), 1),
                    "ratio": round(mine / theirs, 2),
                    "rounds": len(ours),
                }
            )
        return found


def percentile(values: list[float], part: float = 0.99) -> float:
    """The value that `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def compare(engine: Engine, image: str, how: How, rounds: int) -> list[dict[str, object]]:
    """Rows for one way."""
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
        one_life(steps, bare, spec, how)
        one_fork(steps, bare, parent, bare_parent)
    parent.close()
    bare.close(bare_parent)
    return steps.rows(how)


def one_life(steps: Steps, bare: Bare, spec: SandboxSpec, how: How) -> None:
    """Start and close."""
    sandbox = steps.ours("start", lambda: DockerSandbox(spec, how=how))
    assert isinstance(sandbox, DockerSandbox)
    steps.ours("close", sandbox.close)
    container = str(steps.bare("start", bare.start))
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
    assert isinstance(child, DockerSandbox)
    child = steps.ours("reset", lambda: reset(child))
    assert isinstance(child, DockerSandbox)
    child.close()
    container, image = steps.bare("fork and first exec", bare_fork)  # type: ignore[misc]
    container = str(steps.bare("reset", lambda: bare_reset(container, image)))
    bare.close(container)
    bare.api.remove_image(image, force=True)


def many(image: str, sandboxes: int, execs: int) -> dict[str, object]:
    """So many sandboxes at once, so many commands in all; how long it took and how many failed."""
    begun = time.perf_counter()
    failures: list[str] = []
    times: list[float] = []
    ready = threading.Barrier(sandboxes)
    with SandboxPool(SandboxSpec(image=image, timeout=60), limit=sandboxes, ready=0, makers=4) as pool:

        def use(number: int) -> None:
            try:
                with pool.lease() as sandbox:
                    ready.wait()
                    for turn in range(number, execs, sandboxes):
                        start = time.perf_counter()
                        result = sandbox.exec(["sh", "-c", f"echo {turn} >> log; tail -n 1 log"])
                        times.append((time.perf_counter() - start) * 1e3)
                        if result.stdout != f"{turn}\n":
                            failures.append(repr(result))
            except Exception as error:  # noqa: BLE001 - counted, and the others go on
                failures.append(repr(error))
                ready.abort()

        threads = [threading.Thread(target=use, args=(number,)) for number in range(sandboxes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds = time.perf_counter() - begun
    return {
        "sandboxes at once": sandboxes,
        "execs": len(times),
        "errors": len(failures),
        "seconds": round(seconds, 1),
        "exec ms": round(statistics.median(times), 1) if times else None,
        "p99": round(percentile(times), 1) if times else None,
        "first error": failures[0][:200] if failures else "",
    }


def base_image() -> str:
    """The tests' image of this machine's packages."""
    script = Path(__file__).parents[1] / ".ci/base_image.py"
    return subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout.strip()


def show(rows: list[dict[str, object]]) -> None:
    """Print a table."""
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="default: one made of this machine's own packages")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--many", type=int, nargs=2, default=(64, 2000), metavar=("SANDBOXES", "EXECS"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        engine = connect()
    except SandboxUnavailableError as error:
        print(f"skipped: {error}")
        return
    image = given.image or base_image()
    reason = ways.why_no_overlay(images.find(engine, image))
    rows = [] if reason else compare(engine, image, "overlay", given.rounds)
    rows += compare(engine, image, "copy", max(1, given.rounds // 3))
    load = many(image, *given.many)
    if given.json:
        print(json.dumps({"steps": rows, "many": load}, indent=1))
        return
    if reason:
        print(f"workspaces cannot be mounted into containers here: {reason}")
    show(rows)
    show([load])


if __name__ == "__main__":
    main()
