"""The bar that commands show in a terminal while they go through tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def counting_bar(verb: str, *, transient: bool = False) -> Progress:
    """A bar on standard error: `verb`, how many of how many, the time left, and its task's `description` at the end.

    Shown in a terminal only; `transient` takes it away when it is done. Use as a context manager.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)
