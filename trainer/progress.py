"""Progress for people: the phase, how far it is, its figures and the time left.

Invariants: in a terminal one live line per phase, with a table below it where there is one to show; elsewhere (a log,
CI) one plain line every few seconds at most, and one at the end of each phase. Nothing here is read back by a program.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

PLAIN_EVERY_SECONDS = 10.0


class _Bars(RichProgress):
    """The bar of the phase, with something below it."""

    below: RenderableType | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below is not None:
            yield self.below


class Progress:
    """Shows phases one after another. Use as a context manager."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True)
        self._quiet = quiet
        self._live = self.console.is_terminal and not quiet
        self._rich = _Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._name = ""
        self._total = 0
        self._first = 0
        self._done = 0
        self._figures = ""
        self._started = 0.0
        self._printed = 0.0
        self._last_line = ""

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

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Go to a phase of `total` units of which `done` are done. Another phase ends; the same one goes on."""
        if name == self._name:
            return
        self._end_phase()
        self._name, self._total, self._done, self._first, self._figures = name, total, done, done, ""
        self._started = self._printed = time.monotonic()
        self._last_line = ""
        if self._live and name not in self._tasks:
            self._tasks[name] = self._rich.add_task(name, total=total, completed=done, figures="")
        elif not self._live:
            self.say(f"{name}: {total - done} to do")

    def update(self, done: int, **figures: float | int | str) -> None:
        """Say how many units are done, with figures to show beside the bar."""
        self._done = done
        if figures:
            self._figures = " · ".join(f"{_text(value)} {name.replace('_', ' ')}" for name, value in figures.items())
        if self._live and self._name:
            self._rich.update(self._tasks[self._name], completed=done, figures=self._figures)
        elif time.monotonic() - self._printed >= PLAIN_EVERY_SECONDS:
            self._print_line()

    @contextmanager
    def with_below(self, shown: RenderableType) -> Iterator[None]:
        """Show something below the bar, drawn anew a few times a second; in a terminal only."""
        self._rich.below = shown
        try:
            yield
        finally:
            self._rich.below = None

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._quiet:
            # Whole lines in a pipe, and brackets as they are.
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _end_phase(self) -> None:
        if not self._name:
            return
        if self._live:
            self._rich.stop_task(self._tasks.pop(self._name))
        else:
            self._print_line()
        self._name = ""

    def _print_line(self) -> None:
        progress = " · ".join(part for part in (f"{self._name}: {self._done}/{self._total}", self._figures) if part)
        if progress == self._last_line:
            return
        self._last_line, self._printed = progress, time.monotonic()
        elapsed = self._printed - self._started
        done = self._done - self._first
        left = elapsed / done * (self._total - self._done) if done else 0.0
        self.say(f"{progress} · {elapsed:.0f} s" + (f", about {left:.0f} s left" if left else ""))


def _text(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
