"""The learning curve as a picture.

Invariants: draws what was recorded and nothing else; a series that is not there has no panel, a value that is null a
gap. matplotlib is imported here only, with a backend that needs no display.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym_rtmc.extras import missing_extra

INK, BLUE, ORANGE = "#24292f", "#2f6fb0", "#c2571a"
STYLE = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8c959f",
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#eaeef2",
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

Row = Mapping[str, Any]


def learning_curve(
    rows: Sequence[Row], evaluations: Sequence[Row], path: str | Path, *, title: str = "", success: str = "pass_rate"
) -> None:
    """Draw a run to a PNG.

    `rows` are updates as `metrics.read_metrics` returns them: `update` and any of `pass_rate` (or the metric named by
    `success`), `reward`, `entropy`, `company_share`. `evaluations` are held-out results: `update`, `pass_at_1`, `low`,
    `high`, `tasks`, and `split` where there are several. Raises DependencyError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.style import context
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error

    panels: list[tuple[str, Callable[[Any], None]]] = []
    if _known(rows, success) or _known(rows, "reward"):
        panels.append(("Training episodes", lambda axes: _training(axes, rows, success)))
    if evaluations:
        panels.append(("Held-out tasks", lambda axes: _heldout(axes, evaluations)))
    for name, heading, label, as_share in (
        ("entropy", "Entropy of the policy", "nats per sampled token", False),
        ("company_share", "Turns with company", "turns whose state\nanother episode met", True),
    ):
        if _known(rows, name):
            panels.append((heading, _single(rows, name, label, as_share)))

    with context(STYLE):
        lines = max(1, math.ceil(len(panels) / 2))
        figure = Figure(
            figsize=(9, 2.9 * lines + (0.3 if title else 0)), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        )
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        for number, (heading, draw) in enumerate(panels, 1):
            axes = figure.add_subplot(lines, 2, number)
            axes.set_title(heading)
            axes.set_xlabel("update")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            draw(axes)
        figure.savefig(str(path), dpi=150)


def moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean over a centred window that shrinks at the ends; gaps (NaN) are left out. Shape: (n,) -> (n,)."""
    half = window // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    total = (counts[high] - counts[low]).astype(np.float64)
    means = np.full(len(values), np.nan)
    np.divide(sums[high] - sums[low], total, out=means, where=total > 0)
    return means


def _training(axes: Any, rows: Sequence[Row], success: str) -> None:
    """Pass rate and mean reward by update; one line where they are the same."""
    passed, reward = _series(rows, success), _series(rows, "reward")
    same = _known(rows, success) and np.allclose(passed, reward, equal_nan=True)
    if _known(rows, success):
        _trend(axes, rows, passed, BLUE, "pass rate")
    if _known(rows, "reward") and not same:
        _trend(axes, rows, reward, ORANGE, "mean reward")
    values = np.concatenate([passed, reward])
    if np.nanmin(values) >= 0 and np.nanmax(values) <= 1:
        _share(axes)
    axes.set_ylabel("pass rate" if same or not _known(rows, "reward") else "mean over an update's episodes")
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, loc="best")


def _single(rows: Sequence[Row], name: str, label: str, as_share: bool) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        _trend(axes, rows, _series(rows, name), BLUE, label)
        axes.set_ylabel(label)
        if as_share:
            _share(axes)
        else:
            axes.set_ylim(bottom=0)

    return draw


def _heldout(axes: Any, evaluations: Sequence[Row]) -> None:
    """pass@1 with its interval by update, a line for each split."""
    splits = list(dict.fromkeys(row.get("split", "") for row in evaluations))
    reach = max(float(row["update"]) for row in evaluations) or 1.0
    for number, split in enumerate(splits):
        own = [row for row in evaluations if row.get("split", "") == split]
        x = np.asarray([float(row["update"]) for row in own]) + reach * 0.02 * (number - (len(splits) - 1) / 2)
        mean, low, high = (_series(own, name) for name in ("pass_at_1", "low", "high"))
        axes.errorbar(
            x,
            mean,
            yerr=[np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
            color=(BLUE, ORANGE, "#3a7d44", "#8250df")[number % 4],
            marker="o",
            markersize=5,
            linewidth=1.2,
            elinewidth=1.6,
            capsize=4,
            label=split,
            zorder=3,
        )
        if len(splits) == 1:
            for place, value, following in zip(x, mean, [*mean[1:], np.nan], strict=True):
                # beside the point, on the side the line does not take
                height = 0 if np.isnan(following) else math.copysign(8, value - following)
                axes.annotate(f"{value:.0%}", (place, value), (7, height), textcoords="offset points", va="center")
    updates = sorted({int(row["update"]) for row in evaluations})
    if len(updates) <= 6:
        axes.set_xticks(updates)
    axes.set_xlim(-0.08 * reach, 1.14 * reach)
    axes.set_ylabel("pass@1, 95 % interval")
    tasks = {row["tasks"] for row in evaluations if row.get("tasks")}
    if len(tasks) == 1:
        axes.set_title(f"Held-out tasks ({tasks.pop()})")
    _share(axes)
    if len(splits) > 1:
        axes.legend(frameon=False, loc="best")


def _trend(axes: Any, rows: Sequence[Row], values: NDArray[np.float64], colour: str, label: str) -> None:
    """The raw series, faint, and its moving mean."""
    updates = _series(rows, "update")
    window = max(1, len(updates) // 12) | 1
    if window > 1:
        axes.plot(updates, values, color=colour, alpha=0.3, linewidth=1)
    axes.set_xlim(updates.min() - 0.5, updates.max() + 0.5)
    dot = "o" if len(updates) < 4 else None
    axes.plot(updates, moving_mean(values, window), color=colour, linewidth=1.8, marker=dot, markersize=4, label=label)


def _share(axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _known(rows: Sequence[Row], name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def _series(rows: Sequence[Row], name: str) -> NDArray[np.float64]:
    """A metric by row, NaN where it is null or absent. Shape: (rows,)."""
    return np.asarray([np.nan if row.get(name) is None else float(row[name]) for row in rows], np.float64)
