"""What local sandboxes cost, on every back end that works here: commands, a sandbox's life, many at once.

Each step is taken in turn by bare processes and by a sandbox, in the same run and on equal files, so that a busy
machine hurts both alike. Printed are milliseconds of wall time, and for commands CPU time of this process and all its
children.
Commands run as the environments run them, with and without remembered results; the steps of a life are those of a
plain sandbox: start, a command, fork with the first command in it, back to the prepared state, close.
`python benchmarks/sandbox.py [--rounds 40] [--many SANDBOXES EXECS] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from agentgym_rtmc.environments.sandbox import local, root, tree
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.root_sources import interpreter
from agentgym_rtmc.environments.sandbox.snapshot import Snapshot, SnapshotSandbox

T = TypeVar("T")
FILES = {
    "m.py": "def add(a, b):\n    return a + b\n",
    "t.py": "import m\nassert m.add(1, 2) in (3, -1)\nprint('ok')\n",
    "README.md": "A small project.\n" * 20,
    "a.py": "x = 1\n" * 50,
    "b.py": "y = 2\n" * 50,
}
COMMANDS = {
    "true": "true",
    "cat": "cat m.py",
    "sed -i": "sed -i s/a/c/ README.md",
    "python t.py": "python t.py",
    "checkout, sed -zi, python": "git checkout -q . && sed -zi 's/+/-/' m.py && python t.py",
}


def cpu_seconds() -> float:
    """CPU time of this process and the children it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


def measure(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one call."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    run()
    return (time.perf_counter() - wall) * 1e3, (cpu_seconds() - cpu) * 1e3


def bare_environment(folder: Path) -> dict[str, str]:
    """The host's programs, with a `python` that starts as bare as the sandbox's own."""
    (folder / "python").write_text(f'#!/bin/sh\nexec {interpreter()} -S -E "$@"\n')
    (folder / "python").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def compare(isolation: str, rounds: int, scratch: Path) -> list[dict[str, object]]:
    """Rows for one back end."""
    spec = SandboxSpec(isolation=isolation)
    sandbox = SnapshotSandbox(spec, Snapshot.of(FILES), memo=False)
    sandbox.exec(["sh", "-c", "git init -q . && git add -A && git commit -q -m start"])
    start = sandbox.snapshot
    remembering = SnapshotSandbox(spec, start)
    bare_folder = scratch / isolation
    bare_folder.mkdir()
    tree.write(bare_folder, {}, start.entries)
    if os.geteuid() == 0:  # git refuses the repository of another user
        subprocess.run(["chown", "-R", "0:0", bare_folder], check=True)
    environment = bare_environment(scratch)
    rows = []
    for name, command in COMMANDS.items():
        argv = ["sh", "-c", command]

        def bare(argv: list[str] = argv) -> None:
            subprocess.run(argv, cwd=bare_folder, env=environment, capture_output=True, check=True)

        def sandboxed(argv: list[str] = argv) -> None:
            sandbox.restore(start)
            assert sandbox.exec(argv).code == 0

        def remembered(argv: list[str] = argv) -> None:
            remembering.restore(start)
            assert remembering.exec(argv).code == 0

        samples = [(measure(bare), measure(sandboxed), measure(remembered)) for _ in range(rounds + 1)][1:]
        medians = [
            [statistics.median(column) for column in zip(*kind, strict=True)] for kind in zip(*samples, strict=True)
        ]
        (bare_wall, bare_cpu), (wall, cpu), (memo_wall, _) = medians
        rows.append(
            {
                "back end": isolation,
                "command": name,
                "bare ms": round(bare_wall, 2),
                "sandbox ms": round(wall, 2),
                "ratio": round(wall / bare_wall, 2),
                "bare CPU ms": round(bare_cpu, 2),
                "sandbox CPU ms": round(cpu, 2),
                "CPU beyond": round(cpu - bare_cpu, 2),
                "known before ms": round(memo_wall, 3),
            }
        )
    return rows


PREPARE = "for i in $(seq 100); do echo $i > f$i; done"
"""A workspace with 100 files, from which forks start."""


def life(isolation: str, rounds: int, scratch: Path) -> list[dict[str, object]]:
    """The steps of a sandbox's life, next to bare processes on folders that are made, copied and removed."""
    times: dict[str, tuple[list[float], list[float]]] = {}

    def step(name: str, ours: Callable[[], T], bare: Callable[[], object]) -> T:
        begun = time.perf_counter()
        result = ours()
        between = time.perf_counter()
        bare()
        mine, theirs = times.setdefault(name, ([], []))
        mine.append((between - begun) * 1e3)
        theirs.append((time.perf_counter() - between) * 1e3)
        return result

    def run(folder: Path, argv: list[str]) -> None:
        subprocess.run(argv, cwd=folder, capture_output=True, check=True)

    def copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", source, target], check=True)

    spec = SandboxSpec(isolation=isolation)
    plain, copied, empty = (scratch / f"{isolation}-{name}" for name in ("plain", "copied", "empty"))
    plain.mkdir()
    run(plain, ["sh", "-c", PREPARE])
    with LocalSandbox(spec) as prepared:
        prepared.exec(["sh", "-c", PREPARE])

        def fork() -> LocalSandbox:
            child = prepared.fork()
            assert child.exec(["cat", "f100"]).stdout == "100\n"
            return child

        def anew(used: LocalSandbox) -> LocalSandbox:
            used.close()
            return prepared.fork()

        for number in range(rounds):
            sandbox = step("start", lambda: LocalSandbox(spec), empty.mkdir)
            step("close", sandbox.close, lambda: shutil.rmtree(empty))
            step("exec true", lambda: prepared.exec(["true"]), lambda: run(plain, ["true"]))
            prepared.write("f1", b"%d" % number)  # so that there is something to freeze

            child = step("fork, first exec", fork, lambda: (copy(plain, copied), run(copied, ["cat", "f100"])))
            step("reset", lambda used=child: anew(used), lambda: shutil.rmtree(copied)).close()
    exec_median = statistics.median(times["exec true"][0])
    return [
        {
            "back end": isolation,
            "step": name,
            "sandbox ms": round(statistics.median(ours), 1),
            "p99": round(percentile(ours), 1),
            "of an exec": round(statistics.median(ours) / exec_median, 2),
            "bare ms": round(statistics.median(bare), 1),
            "bare p99": round(percentile(bare), 1),
            "rounds": len(ours),
            "forks by": prepared.forks_by,
        }
        for name, (ours, bare) in times.items()
    ]


def percentile(values: list[float], part: float = 0.99) -> float:
    """The value that `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def many(isolation: str, sandboxes: int, execs: int) -> dict[str, object]:
    """So many sandboxes at once, so many commands in all; how long it took and how many failed."""
    failures: list[str] = []
    times: list[float] = []
    spec = SandboxSpec(isolation=isolation, timeout=120)
    begun = time.perf_counter()
    with ExitStack() as stack:
        opened = [stack.enter_context(LocalSandbox(spec)) for _ in range(sandboxes)]

        def use(number: int) -> None:
            try:
                for turn in range(number, execs, sandboxes):
                    start = time.perf_counter()
                    result = opened[number].exec(["sh", "-c", f"echo {turn} >> log; tail -n 1 log"])
                    times.append((time.perf_counter() - start) * 1e3)
                    if result.stdout != f"{turn}\n":
                        failures.append(repr(result))
            except Exception as error:  # noqa: BLE001 - counted, and the others go on
                failures.append(repr(error))

        threads = [threading.Thread(target=use, args=(number,)) for number in range(sandboxes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {
        "back end": isolation,
        "sandboxes at once": sandboxes,
        "execs": len(times),
        "errors": len(failures),
        "seconds": round(time.perf_counter() - begun, 1),
        "exec ms": round(statistics.median(times), 1),
        "p99": round(percentile(times), 1),
        "first error": failures[0][:200] if failures else "",
    }


def show(rows: list[dict[str, object]]) -> None:
    """Print a table."""
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--many", type=int, nargs=2, default=(64, 2000), metavar=("SANDBOXES", "EXECS"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands: list[dict[str, object]] = []
    lives: list[dict[str, object]] = []
    load: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for isolation in local.ISOLATING:
            reason = local.why_not(isolation, root.ensure_root())
            if reason:
                print(f"{isolation} does not work here: {reason}")
                continue
            commands += compare(isolation, options.rounds, scratch)
            lives += life(isolation, options.rounds, scratch)
            load.append(many(isolation, *options.many))
    if options.json:
        print(json.dumps({"commands": commands, "steps": lives, "many": load}, indent=1))
        return
    for rows in (commands, lives, load):
        show(rows)


if __name__ == "__main__":
    main()
