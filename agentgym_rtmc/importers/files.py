"""Reads episodes from any file the project knows: its own `episodes.jsonl`, or step rows of other programs.

Invariant: the kind is told from the first line, never from the name. Packed files are unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from agentgym_rtmc.episode_file import read_episodes
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import EpisodeFileError
from agentgym_rtmc.importers.step_rows import is_step_row, read_step_rows
from agentgym_rtmc.packed import open_unpacked


def load_episodes(paths: Iterable[str | Path]) -> list[Episode]:
    """Read all episodes of some files. Raises EpisodeFileError naming the file that is missing or of no known kind."""
    episodes: list[Episode] = []
    for path in map(Path, paths):
        try:
            episodes += read_step_rows(path) if is_step_row(_first_value(path)) else read_episodes(path).episodes
        except OSError as error:
            raise EpisodeFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return episodes


def _first_value(path: Path) -> object:
    with open_unpacked(path) as file:
        line = file.readline()
    try:
        return json.loads(line)
    except ValueError:
        return None
