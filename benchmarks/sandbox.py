"""What a sandboxed command costs beyond the command itself, on every back end that works here.

Each command runs in turn as a bare process and through a sandbox, in the same run and on equal files, so that a busy
machine hurts both alike. Printed are medians of wall time, CPU seconds of this process and all its children, and the
ratio of wall times. `python benchmarks/sandbox.py [--rounds 40] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentgym_rtmc.environments.sandbox import local, root, tree
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for isolation in ("bubblewrap", "unshare"):
            reason = local.why_not(isolation, root.ensure_root())
            if reason:
                print(f"{isolation} does not work here: {reason}")
            else:
                rows += compare(isolation, options.rounds, Path(scratch))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
