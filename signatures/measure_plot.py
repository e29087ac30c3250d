"""Draws what `measure` finds: the trade-off between company and mixing, and company by turn. Needs matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.signatures.measure import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def check_target(path: Path) -> None:
    """Make the folder of a plot. Raises ConfigError for a format matplotlib cannot write."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"{path}: the plot's format is told by its ending, one of {', '.join(sorted(known))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: its folder cannot be made: {error.strerror}") from error


def save_plot(rows: Sequence[Measured], path: str | Path) -> None:
    """Save the picture; its format is told by the name's ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    trade, curves = figure.subplots(1, 2)
    _draw_trade(trade, rows)
    for row in rows:
        if row.kind == "state":
            points = [(turn, value) for turn, value in enumerate(row.by_turn) if value is not None]
            curves.plot(*zip(*points, strict=True), label=row.signature) if points else None
    curves.set(xlabel="turn", ylabel="share of states with company", ylim=(0, 1.02))
    curves.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def _draw_trade(axes: Axes, rows: Sequence[Measured]) -> None:
    """One point for each kind of key; a line joins the levels of `operations`, from exact to file."""
    for kind, marker in (("action", "o"), ("state", "s")):
        chosen = [(row, row.alias_next) for row in rows if row.kind == kind and row.alias_next is not None]
        axes.scatter([row.company for row, _ in chosen], [mixed for _, mixed in chosen], marker=marker, label=kind)
        levels = [(row, mixed) for row, mixed in chosen if row.signature.partition(":")[0] == "operations"]
        levels.sort(key=lambda level: level[0].company)
        if len(levels) > 1:
            label = f"{kind}: from {_level(levels[0][0])} to {_level(levels[-1][0])}"
            axes.plot([row.company for row, _ in levels], [mixed for _, mixed in levels], lw=0.9, label=label)
        names: dict[tuple[float, float], list[str]] = defaultdict(list)
        for row, mixed in chosen:
            names[round(row.company, 2), round(mixed, 2)].append(row.signature)
        for place, here in names.items():
            more = f" and {len(here) - 2} more" if len(here) > 2 else ""
            axes.annotate(", ".join(here[:2]) + more, place, xytext=(4, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel="share of turns with company", ylabel="next observations mixed (1 = shuffled keys)")
    axes.legend(fontsize=7)


def _level(row: Measured) -> str:
    return row.signature.partition(":")[2] or "exact"
