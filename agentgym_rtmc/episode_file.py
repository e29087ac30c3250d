"""Episodes on disk: `episodes.jsonl`, append-only and safe against crashes.

The first line is a header with the format's name and version, every other line one episode as JSON.

Invariants:
- What `append` has returned for is on the disk; a kill at any moment costs at most the batch being written.
- Nothing written is ever changed. Where a crash cut a line off, the next writer ends that line and puts a note after
  it, so that a reader can tell a cut from a corrupted file.
- Nothing is skipped silently: cut and skipped lines are counted, logged and returned.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import EpisodeFileError
from agentgym_rtmc.packed import DAMAGED, open_unpacked

FORMAT, VERSION = "agentgym-rtmc episodes", 1
_HEADER = json.dumps({"format": FORMAT, "version": VERSION}).encode() + b"\n"
_NOTE = json.dumps({"note": "the line before was cut off by a crash"}).encode() + b"\n"
_log = logging.getLogger(__name__)


class EpisodeWriter:
    """Appends episodes to a file, which is created (with its folder) where it is missing.

    Use as a context manager. Raises EpisodeFileError for a file of another format or version, and where the disk
    refuses; one writer per file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists() or self.path.stat().st_size == 0:
                self._create()
            with self.path.open("rb") as file:
                _check_header(self.path, file.readline())
                file.seek(-1, os.SEEK_END)
                self._torn = file.read(1) != b"\n"
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise EpisodeFileError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _create(self) -> None:
        # Renamed into place, so that a file with half a header cannot exist.
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        with draft.open("wb") as file:
            file.write(_HEADER)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, episodes: Iterable[Episode]) -> None:
        """Write a batch of episodes; returns when they are on the disk. Raises EpisodeFileError where it is full."""
        batch = b"".join(episode.model_dump_json().encode() + b"\n" for episode in episodes)
        if not batch:
            return
        left = memoryview(b"\n" + _NOTE + batch if self._torn else batch)
        try:
            # Until the whole batch is out, the file may end in half a line.
            self._torn = True
            while left:
                left = left[self._file.write(left) :]
            self._torn = False
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EpisodeFileError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class SkippedLine:
    """A line that gave no episode. `cut`: a crash cut it off; otherwise it is corrupt."""

    line: int
    reason: str
    cut: bool


@dataclass(frozen=True)
class ReadResult:
    """All episodes of a file and what had to be skipped."""

    episodes: list[Episode]
    skipped: list[SkippedLine]

    @property
    def report(self) -> str:
        """One sentence on what was skipped, empty if nothing was."""
        return _report(self.skipped)


class EpisodeReader:
    """Iterates over a file's episodes one at a time; after a pass, `skipped` says what gave no episode.

    A cut line (the last one, or one with a writer's note after it) is skipped. A line broken in any other way raises
    EpisodeFileError, or is skipped too with `strict=False`. Each pass reads the file anew; a gzip file is unpacked.
    """

    def __init__(self, path: str | Path, *, strict: bool = True) -> None:
        self.path = Path(path)
        self.strict = strict
        self.skipped: list[SkippedLine] = []

    def __iter__(self) -> Iterator[Episode]:
        self.skipped = []
        try:
            with open_unpacked(self.path) as file:
                _check_header(self.path, file.readline())
                yield from self._episodes(file)
        except DAMAGED as error:
            raise EpisodeFileError(f"{self.path}: the packed file is cut off or damaged: {error}") from error
        except OSError as error:
            raise EpisodeFileError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if self.skipped:
            _log.warning("%s: %s", self.path, _report(self.skipped))

    def _episodes(self, lines: Iterable[bytes]) -> Iterator[Episode]:
        # Broken lines wait here until what follows them tells whether they were cut or are corrupt.
        broken: list[SkippedLine] = []
        for number, line in enumerate(lines, 2):
            if line == _NOTE:
                self._skip(broken, cut=True)
            elif line.strip():
                try:
                    episode = Episode.model_validate_json(line)
                except ValidationError as error:
                    first = error.errors(include_url=False)[0]
                    place = ".".join(map(str, first["loc"]))
                    reason = f"{place}: {first['msg']}" if place else first["msg"]
                    broken.append(SkippedLine(number, reason, cut=not line.endswith(b"\n")))
                else:
                    self._skip(broken, cut=False)
                    yield episode
        last = [broken.pop()] if broken and broken[-1].cut else []
        self._skip(broken, cut=False)
        self._skip(last, cut=True)

    def _skip(self, broken: list[SkippedLine], cut: bool) -> None:
        if broken and not cut and self.strict:
            first = broken[0]
            raise EpisodeFileError(
                f"{self.path}, line {first.line}: not an episode: {first.reason}. "
                "Restore the file, or skip such lines with strict=False"
            )
        self.skipped += [SkippedLine(one.line, one.reason, cut) for one in broken]
        broken.clear()


def read_episodes(path: str | Path, *, strict: bool = True) -> ReadResult:
    """Read a whole file. Raises EpisodeFileError as EpisodeReader does; use that one for files larger than memory."""
    reader = EpisodeReader(path, strict=strict)
    return ReadResult(list(reader), reader.skipped)


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = json.loads(line)
        name, version = header["format"], header["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = "is empty" if not line else "does not begin with the header of one"
        raise EpisodeFileError(f"{path} is not an episode file: it {what}") from error
    if name != FORMAT:
        raise EpisodeFileError(f"{path} is not an episode file but {name!r}")
    if version != VERSION:
        raise EpisodeFileError(
            f"{path} has version {version!r} of the format, this program reads version {VERSION}; "
            "use the program that wrote it, or a newer one"
        )


def _report(skipped: list[SkippedLine]) -> str:
    parts = []
    for cut, what in ((True, "cut off by a crash"), (False, "corrupt")):
        lines = [str(one.line) for one in skipped if one.cut is cut]
        if lines:
            shown = ", ".join(lines[:10]) + (", …" if len(lines) > 10 else "")
            parts.append(f"{len(lines)} {'line' if len(lines) == 1 else 'lines'} {what} (line {shown})")
    return f"skipped {' and '.join(parts)}" if parts else ""
