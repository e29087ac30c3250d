"""Times of what a sandbox and bare calls do in turn, many sandboxes at once, and tables of both."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from agentgym_rtmc.environments.sandbox.base import Sandbox

T = TypeVar("T")
Row = dict[str, object]
PREPARE = "for i in $(seq 100); do echo $i > f$i; done"
"""A workspace with 100 files, from which forks start."""
AFTER = 0.2
DEADLINE = f"deadline of {AFTER} s"
HANG = "for i in 1 2 3 4; do setsid sleep 9 & done; sleep 9"
"""What has to be ended at a deadline: several sessions of processes. Bare calls end one process."""


def percentile(values: Sequence[float], part: float = 0.99) -> float:
    """The value that `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Steps:
    """Milliseconds of wall time of each step, by a sandbox and by bare calls."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[list[float], list[float]]] = {}

    def ours(self, step: str, run: Callable[[], T]) -> T:
        """Time a step of a sandbox."""
        return self._time(step, run, 0)

    def bare(self, step: str, run: Callable[[], T]) -> T:
        """Time the bare calls for it."""
        return self._time(step, run, 1)

    def _time(self, step: str, run: Callable[[], T], side: int) -> T:
        begun = time.perf_counter()
        result = run()
        self.times.setdefault(step, ([], []))[side].append((time.perf_counter() - begun) * 1e3)
        return result

    def rows(self, back_end: str, files_by: str) -> list[Row]:
        """One row for each step: medians and 99th percentiles, next to the bare ones and to a plain exec."""
        plain = statistics.median(self.times["exec true"][0])
        found: list[Row] = []
        for step, (ours, bare) in self.times.items():
            mine, theirs = statistics.median(ours), statistics.median(bare)
            found.append(
                {
                    "back end": back_end,
                    "files by": files_by,
                    "step": step,
                    "sandbox ms": round(mine, 1),
                    "p99": round(percentile(ours), 1),
                    "bare ms": round(theirs, 1),
                    "bare p99": round(percentile(bare), 1),
                    "of bare": round(mine / theirs, 2),
                    "of an exec": round(mine / plain, 2),
                    "rounds": len(ours),
                }
            )
        return found


def many(back_end: str, opened: Sequence[Sandbox], execs: int) -> Row:
    """Use so many sandboxes at once for so many commands in all: how long it takes and how many fail."""
    failures: list[str] = []
    times: list[float] = []

    def use(number: int) -> None:
        try:
            for turn in range(number, execs, len(opened)):
                start = time.perf_counter()
                result = opened[number].exec(["sh", "-c", f"echo {turn} >> log; tail -n 1 log"])
                times.append((time.perf_counter() - start) * 1e3)
                if result.stdout != f"{turn}\n":
                    failures.append(repr(result))
        except Exception as error:  # noqa: BLE001 - counted, and the others go on
            failures.append(repr(error))

    begun = time.perf_counter()
    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(opened))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "back end": back_end,
        "sandboxes at once": len(opened),
        "execs": len(times),
        "errors": len(failures),
        "seconds": round(time.perf_counter() - begun, 1),
        "exec ms": round(statistics.median(times), 1) if times else None,
        "p99": round(percentile(times), 1) if times else None,
        "first error": failures[0][:200] if failures else "",
    }


def show(rows: list[Row]) -> None:
    """Print a table."""
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
