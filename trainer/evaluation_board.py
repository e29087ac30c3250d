"""The live table of an evaluation in a terminal: what runs, what is done, and pass@1 so far.

Invariants: it only looks, from the thread that draws; nothing waits for it. It is never higher than the screen: running
episodes come first, then the latest that are done, and a line says how many are not shown. A row is one line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.trainer.episode_run import EpisodeRun
from agentgym_rtmc.trainer.statistics import clustered_interval

Running = Callable[[], Sequence[EpisodeRun]]
_OTHER_LINES = 6
"""Of a screen: the bar, the figures, the heads of the columns, the line on what is not shown, and some air."""
_MOST_KEPT = 200
_STYLES = {"done": "green", "failed": "red", "invalid": "yellow", "waiting": "dim"}


@dataclass(frozen=True)
class _Line:
    """A row; `reward` is known at the end."""

    task: str
    episode: str
    state: str
    turn: int
    tokens: int
    cost: float
    reward: float | None = None


class EvaluationBoard:
    """A renderable for rich. `total` episodes are planned; `passed` tells of one that ended whether it has passed."""

    def __init__(self, total: int, passed: Callable[[Episode], bool]) -> None:
        self._total = total
        self._passed = passed
        self._running: Running = tuple
        self._ended: deque[_Line] = deque(maxlen=_MOST_KEPT)
        self._outcomes: dict[str, list[float]] = {}
        self.done = self._invalid = self._tokens = 0
        self._cost = 0.0

    def watch(self, running: Running) -> None:
        """Show what this function returns as running."""
        self._running = running

    @property
    def pass_rate(self) -> float:
        """Share of the valid episodes so far that passed; 0 of none."""
        outcomes = [one for cluster in self._outcomes.values() for one in cluster]
        return sum(outcomes) / max(1, len(outcomes))

    def count(self, episode: Episode) -> None:
        """Take in an episode that ended (or had ended before, when an evaluation is resumed)."""
        run = next((run for run in self._running() if run.plan.episode_id == episode.id), None)
        passed = self._passed(episode)
        self.done += 1
        self._invalid += not episode.valid
        if episode.valid:
            self._outcomes.setdefault(episode.group, []).append(float(passed))
        tokens, cost = (run.tokens, run.cost) if run is not None else (0, 0.0)
        self._tokens += tokens
        self._cost += cost
        state = "invalid" if not episode.valid else "done" if passed else "failed"
        reward = episode.total_reward if episode.valid else None
        self._ended.appendleft(
            _Line(episode.opening.task.id, _number(episode.id), state, len(episode.turns), tokens, cost, reward)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        runs = sorted(self._running(), key=lambda run: (run.state == "waiting", run.plan.number))
        lines = [
            _Line(run.plan.task.id, _number(run.plan.episode_id), run.state, len(run.turns), run.tokens, run.cost)
            for run in runs
        ]
        lines += self._ended
        room = max(1, console.size.height - _OTHER_LINES)
        yield Text(" · ".join(self._figures(runs)), no_wrap=True, overflow="ellipsis", style="bold")
        yield _table(lines[:room], costs=any(line.cost for line in lines))
        hidden = len(runs) + self.done - min(room, len(lines))
        if hidden:
            yield Text(f"… and {hidden} more", style="dim")

    def _figures(self, runs: Sequence[EpisodeRun]) -> Iterator[str]:
        yield f"{self.done} of {self._total} episodes"
        yield f"{sum(run.state != 'waiting' for run in runs)} running"
        if self._outcomes:
            yield f"pass@1 {clustered_interval(list(self._outcomes.values()))}"
        if self._invalid:
            yield f"{self._invalid} invalid"
        tokens = self._tokens + sum(run.tokens for run in runs)
        cost = self._cost + sum(run.cost for run in runs)
        if tokens:
            yield f"{_short(tokens)} tokens"
        if cost:
            yield f"cost {cost:.2f}"


def _table(lines: Sequence[_Line], *, costs: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    names = ["episode", "state", "turn", "tokens", *(["cost"] if costs else []), "reward"]
    for name in names:
        table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    for line in lines:
        table.add_row(
            Text(line.task),
            line.episode,
            Text(line.state, style=_STYLES.get(line.state, "cyan")),
            str(line.turn),
            _short(line.tokens) if line.tokens else "",
            *([f"{line.cost:.3f}" if line.cost else ""] if costs else []),
            "" if line.reward is None else f"{line.reward:g}",
        )
    return table


def _number(name: str) -> str:
    """The end of an episode's name, which tells samples of a task apart."""
    return name.rpartition("/")[2][-4:]


def _short(count: int) -> str:
    """A count in few characters.

    >>> [_short(count) for count in (7, 4321, 1_234_567)]
    ['7', '4.3k', '1.23M']
    """
    return str(count) if count < 1000 else f"{count / 1e3:.1f}k" if count < 1_000_000 else f"{count / 1e6:.2f}M"
