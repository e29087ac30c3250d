"""An episode for people: what the agent saw, did and got, turn by turn."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agentgym_rtmc.episodes import Episode


def show_episode(episode: Episode, console: Console | None = None) -> None:
    """Print one episode."""
    out = console or Console()
    out.rule(f"{episode.id} · {_ending(episode)} · reward {episode.total_reward:g}", align="left")
    out.print(Text(episode.opening.observation, style="dim"))
    for index, turn in enumerate(episode.turns):
        reward = f"  reward {turn.reward:g}" if turn.reward else ""
        cut = "  (cut by length)" if turn.finish_reason == "length" else ""
        out.print(Text(f"[{index}]{reward}{cut}", style="bold"))
        out.print(Text(turn.text, style="cyan"))
        out.print(Text(turn.observation, style="dim"))


def _ending(episode: Episode) -> str:
    if not episode.valid:
        return f"invalid: {episode.error}"
    if episode.truncated:
        return f"truncated by {episode.truncation}"
    return "terminated" if episode.terminated else "unfinished"
