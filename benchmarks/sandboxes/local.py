"""Local sandboxes next to bare processes on equal files: commands and a sandbox's life, on one back end."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from sandboxes.measuring import AFTER, DEADLINE, HANG, PREPARE, Row, Steps, many

from agentgym_rtmc.environments.sandbox import tree
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.root_sources import interpreter
from agentgym_rtmc.environments.sandbox.snapshot import Snapshot, SnapshotSandbox

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


def commands(isolation: str, rounds: int, scratch: Path) -> list[Row]:
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
    rows: list[Row] = []
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


def life(isolation: str, rounds: int, scratch: Path) -> list[Row]:
    """The steps of a sandbox's life, next to bare processes on folders that are made, copied and removed."""

    def run(folder: Path, argv: list[str]) -> None:
        subprocess.run(argv, cwd=folder, capture_output=True, check=True)

    def copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", source, target], check=True)

    def overdue(folder: Path) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "9"], cwd=folder, capture_output=True, timeout=AFTER, check=False)

    steps = Steps()
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

        def reset(used: LocalSandbox) -> LocalSandbox:
            used.close()
            return prepared.fork()

        for number in range(rounds):
            sandbox = steps.ours("start", lambda: LocalSandbox(spec))
            steps.bare("start", empty.mkdir)
            steps.ours("close", sandbox.close)
            steps.bare("close", lambda: shutil.rmtree(empty))
            steps.ours("exec true", lambda: prepared.exec(["true"]))
            steps.bare("exec true", lambda: run(plain, ["true"]))
            steps.ours(DEADLINE, lambda: prepared.exec(["sh", "-c", HANG], timeout=AFTER))
            steps.bare(DEADLINE, lambda: overdue(plain))
            prepared.write("f1", b"%d" % number)  # so that there is something to freeze
            child = steps.ours("fork and first exec", fork)
            steps.bare("fork and first exec", lambda: (copy(plain, copied), run(copied, ["cat", "f100"])))
            steps.ours("reset", lambda used=child: reset(used)).close()
            steps.bare("reset", lambda: shutil.rmtree(copied))
        return steps.rows(isolation, prepared.forks_by)


def load(isolation: str, sandboxes: int, execs: int) -> Row:
    """Many at once."""
    spec = SandboxSpec(isolation=isolation, timeout=120)
    with ExitStack() as stack:
        return many(isolation, [stack.enter_context(LocalSandbox(spec)) for _ in range(sandboxes)], execs)
