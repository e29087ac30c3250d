"""An episode for people: what the agent saw, did and got, turn by turn."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agentgym_rtmc.episodes import Episode


def show_episode(episode: Episode, console: Console | None = None) -> None:
    """Print one episode. Lines are never broken, so that what is printed can be copied and piped."""
    out = console or Console()

    def show(text: str, style: str) -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    show(f"── {episode.id} · {_ending(episode)} · reward {episode.total_reward:g}", "bold green")
    show(episode.opening.observation, "dim")
    for index, turn in enumerate(episode.turns):
        reward = f"  reward {turn.reward:g}" if turn.reward else ""
        cut = "  (cut by length)" if turn.finish_reason == "length" else ""
        show(f"[{index}]{reward}{cut}", "bold")
        show(turn.text, "cyan")
        show(turn.observation, "dim")


def _ending(episode: Episode) -> str:
    if not episode.valid:
        return f"invalid: {episode.error}"
    if episode.truncated:
        return f"truncated by {episode.truncation}"
    return "terminated" if episode.terminated else "unfinished"
