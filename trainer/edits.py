"""What episodes tell of edits: how often the first one is right, and how many lead nowhere.

An environment may say in a turn's `info` that it was meant to change files (`edit`), that it then changed nothing or
led to a state that was there before (`idle`), and how the tests ended that ran in it (`tests`: passed and total).
Where no turn says `edit`, there is nothing to measure.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentgym_rtmc.episodes import Episode, Turn


def edit_figures(episodes: Iterable[Episode]) -> dict[str, float]:
    """Figures of the valid episodes; empty without edits.

    `first_edit_hit`: share of episodes after whose first edit, in the same turn, all tests passed (an episode without
    edits is a miss). `edits_per_episode`, and `idle_edit_share`: the share of edits that led nowhere.
    """
    valid = [episode for episode in episodes if episode.valid]
    edits = [[turn for turn in episode.turns if turn.info.get("edit") is True] for episode in valid]
    count = sum(map(len, edits))
    if not count:
        return {}
    idle = sum(turn.info.get("idle") is True for turns in edits for turn in turns)
    return {
        "first_edit_hit": sum(map(first_edit_hit, valid)) / len(valid),
        "edits_per_episode": count / len(valid),
        "idle_edit_share": idle / count,
    }


def first_edit_hit(episode: Episode) -> bool:
    """Whether all tests passed in the turn of an episode's first edit; not so without an edit."""
    first = next((turn for turn in episode.turns if turn.info.get("edit") is True), None)
    return first is not None and all_passed(first)


def all_passed(turn: Turn) -> bool:
    """Whether tests ran in a turn and all of them passed."""
    tests = turn.info.get("tests")
    return isinstance(tests, dict) and tests.get("passed") == tests.get("total") and bool(tests.get("total"))
