"""A run's folder: what it holds, who may write in it, and how it is continued.

    config.toml         the effective configuration
    metrics.jsonl       one line per update
    episodes.jsonl      every training episode
    evaluations.jsonl   one line per evaluation of held-out tasks
    checkpoints/        atomic checkpoints; each holds the model as an ordinary transformers folder
    curve.png           the learning curve
    result.json         the final table

Invariants: one process writes in a folder (a lock held until it ends, released by the kernel when it is killed). What a
killed run wrote after its last checkpoint is done again; the episodes it had collected are moved aside, not lost. A
fresh folder in which no training began is removed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any, Self

from agentgym_rtmc.durable import append_line, refusals, replace_text, write_all
from agentgym_rtmc.errors import ConfigError, RunFolderError, nearest


class RunFolder:
    """An open run folder. Use as a context manager; raises RunFolderError when another process has it.

    `begun`: this process has something on disk to continue from; whoever trains sets it.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.superseded = path / "episodes-superseded.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.tensorboard = path / "tensorboard"
        self.curve = path / "curve.png"
        self.result = path / "result.json"
        self.begun = False
        self._fresh = fresh
        with refusals(path):
            self._lock = (path / ".lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._lock.close()
                raise RunFolderError(
                    f"{path}: another process is training in this folder; wait for it, or stop it first"
                ) from error

    @classmethod
    def create(cls, parent: Path, name: str) -> Self:
        """Make a fresh folder `<parent>/<date>-<time>-<name>`."""
        return cls(fresh_folder(parent, name), fresh=True)

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open the folder of an earlier run to continue it."""
        if not path.is_dir():
            beside = [config.parent.name for config in path.parent.glob("*/config.toml")]
            raise RunFolderError(f"there is no run folder {path}{nearest(path.name, beside) if beside else ''}")
        if not (path / "config.toml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fresh and not self.begun:
            (self.path / ".lock").unlink()
            if not any(self.path.iterdir()):
                self.path.rmdir()
        self._lock.close()

    @property
    def resumable(self) -> bool:
        """Whether there is something to continue."""
        return self.begun or not self._fresh

    # -- evaluations and the result -----------------------------------------------------------------------------

    def append_evaluation(self, update: int, row: dict[str, Any]) -> None:
        """Record an evaluation."""
        append_line(self.evaluations, _line({"update": update, **row}))

    def read_evaluations(self) -> list[dict[str, Any]]:
        """All recorded evaluations in order; a line cut by a crash is left out."""
        if not self.evaluations.exists():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.evaluations.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    # -- going back to a checkpoint -----------------------------------------------------------------------------

    def rewind(self, update: int, episodes_bytes: int) -> None:
        """Forget the evaluations after `update` and set aside the episodes behind `episodes_bytes`: done again."""
        if self.evaluations.exists():
            rows = [row for row in self.read_evaluations() if row["update"] <= update]
            replace_text(self.evaluations, "".join(_line(row) + "\n" for row in rows))
        self.result.unlink(missing_ok=True)
        if self.episodes.exists():
            with refusals(self.episodes):
                self._set_aside(episodes_bytes)

    def _set_aside(self, keep: int) -> None:
        with self.episodes.open("r+b") as file:
            header = file.readline()
            file.seek(keep := max(keep, len(header)))
            tail = file.read()
            if not tail:
                return
            whole = tail[: tail.rfind(b"\n") + 1]  # a line cut by a kill is no episode yet
            with self.superseded.open("a+b", buffering=0) as aside:
                aside.seek(0)
                known = aside.read()
                # A kill may have cut what was set aside before; it still stood in episodes.jsonl then.
                aside.truncate(known.rfind(b"\n") + 1)
                write_all(aside.fileno(), (b"" if known.startswith(header) else header) + whole)
                os.fsync(aside.fileno())
            file.truncate(keep)
            os.fsync(file.fileno())

    def episodes_bytes(self) -> int:
        """Size of episodes.jsonl, for `rewind`."""
        return self.episodes.stat().st_size if self.episodes.exists() else 0


def fresh_folder(parent: Path, name: str) -> Path:
    """Make a folder `<parent>/<date>-<time>-<name>` that was not there before. Raises ConfigError."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        path = parent / (f"{stamp}-{name}" + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if parent.exists() and not parent.is_dir():
                raise ConfigError(f"{parent} is a file; set run.folder elsewhere") from None
            continue
        except OSError as error:
            raise ConfigError(f"{path}: cannot be made: {error.strerror}; set run.folder elsewhere") from error
        return path
    raise ConfigError(f"{parent}: no free name for a run; set run.folder or run.name")


def _line(row: dict[str, Any]) -> str:
    """JSON of a row; numbers that JSON cannot say become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(plain, allow_nan=False)
