"""Progress for people: the phase, how far it is, its figures and the time left.

Invariants: in a terminal one live line per phase; elsewhere (a log, CI) one plain line every few seconds and one at the
end of each phase. Nothing here is read back by the program.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

PLAIN_EVERY_SECONDS = 10.0


class Progress:
    """Shows phases one after another. Use as a context manager."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True)
        self._quiet = quiet
        self._live = self.console.is_terminal and not quiet
        self._rich = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._name = ""
        self._total = 0
        self._done = 0
        self._figures = ""
        self._started = 0.0
        self._printed = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_phase()
        if self._live:
            self._rich.stop()

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units; the one before ends."""
        self._end_phase()
        self._name, self._total, self._done, self._figures = name, total, 0, ""
        self._started = self._printed = time.monotonic()
        if self._live:
            self._task = self._rich.add_task(name, total=total, figures="")
        elif not self._quiet:
            self.console.print(f"{name}: {total} to do", highlight=False)

    def update(self, done: int, **figures: float | int | str) -> None:
        """Say how many units are done, with figures to show beside the bar."""
        self._done = done
        if figures:
            self._figures = " · ".join(f"{_text(value)} {name.replace('_', ' ')}" for name, value in figures.items())
        if self._live and self._task is not None:
            self._rich.update(self._task, completed=done, figures=self._figures)
        elif time.monotonic() - self._printed >= PLAIN_EVERY_SECONDS:
            self._print_line()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._quiet:
            self.console.print(line, highlight=False)

    def _end_phase(self) -> None:
        if not self._name:
            return
        if self._live and self._task is not None:
            self._rich.stop_task(self._task)
        else:
            self._print_line()
        self._name, self._task = "", None

    def _print_line(self) -> None:
        self._printed = time.monotonic()
        if self._quiet:
            return
        elapsed = self._printed - self._started
        left = elapsed / self._done * (self._total - self._done) if self._done else None
        ending = f"{elapsed:.0f} s" + (f", about {left:.0f} s left" if left else "")
        parts = [f"{self._name}: {self._done}/{self._total}", self._figures, ending]
        self.console.print(" · ".join(part for part in parts if part), highlight=False)


def _text(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
