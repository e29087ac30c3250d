"""A run's folder: what it holds, who may write in it, and how it is continued.

    config.toml         the effective configuration
    metrics.jsonl       one line per update
    episodes.jsonl      every training episode
    evaluations.jsonl   one line per evaluation of held-out tasks
    checkpoints/        atomic checkpoints; each holds the model as an ordinary transformers folder
    curve.png           the learning curve
    result.json         the final table

Invariants: one process writes in a folder (a lock held until it ends, released by the kernel when it is killed). What a
killed run wrote after its last checkpoint is done again; the episodes it had collected are moved aside, not lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Self

from agentgym_rtmc.errors import ConfigError


class RunFolder:
    """An open run folder. Use as a context manager; raises ConfigError when another process has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.curve = path / "curve.png"
        self.result = path / "result.json"
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ConfigError(f"{path}: another process is training in this folder") from error

    @classmethod
    def create(cls, parent: Path, name: str) -> Self:
        """Make a fresh folder `<parent>/<date>-<time>-<name>`."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            path = parent / (f"{stamp}-{name}" + (f"-{attempt}" if attempt else ""))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"{path}: cannot be made: {error.strerror}; set run.folder elsewhere") from error
            return cls(path)
        raise ConfigError(f"{parent}: no free name for a run; set run.folder or run.name")

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open the folder of an earlier run to continue it."""
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def append_evaluation(self, update: int, row: dict[str, Any]) -> None:
        """Record an evaluation."""
        with self.evaluations.open("a") as file:
            file.write(json.dumps({"update": update, **row}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_evaluations(self) -> list[dict[str, Any]]:
        """All recorded evaluations in order; a line cut by a crash is left out."""
        if not self.evaluations.exists():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.evaluations.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    def forget_evaluations_after(self, update: int) -> None:
        """Keep the evaluations up to an update (a resumed run does the others again)."""
        rows = [row for row in self.read_evaluations() if row["update"] <= update]
        replace_text(self.evaluations, "".join(json.dumps(row) + "\n" for row in rows))

    def set_aside_episodes(self, keep_bytes: int) -> int:
        """Move what stands behind `keep_bytes` of episodes.jsonl into `episodes-superseded.jsonl`; returns its size."""
        if not self.episodes.exists():
            return 0
        with self.episodes.open("r+b") as file:
            header = file.readline()
            file.seek(keep_bytes)
            tail = file.read()
            if not tail:
                return 0
            aside = self.path / "episodes-superseded.jsonl"
            fresh = not aside.exists()
            with aside.open("ab") as kept:
                kept.write((header if fresh else b"") + tail + (b"" if tail.endswith(b"\n") else b"\n"))
                kept.flush()
                os.fsync(kept.fileno())
            file.truncate(keep_bytes)
        return len(tail)


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step: readers see the old text or the new."""
    draft = path.with_name(path.name + ".new")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
