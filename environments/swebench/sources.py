"""Raw rows of a dataset from wherever it lies: a hub id, a folder, Parquet, Arrow, JSON or JSON lines.

Invariants: every row comes with the place it was read from ("file: row 12"), counted from 1. Nothing is downloaded for
a path. A hub id is answered from the hub's cache where it is there, so a machine without network works once that was
filled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_rtmc.errors import TaskError, nearest
from agentgym_rtmc.extras import missing_extra

RawRow = tuple[str, dict[str, Any] | TaskError]
"""Where a row stands, and its columns, or what is wrong with it as it stands in the file."""

_KINDS = (".parquet", ".arrow", ".jsonl", ".json")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SPLIT = re.compile(r"(?P<split>[A-Za-z_]+)(-\d+-of-\d+)?(-[0-9a-f]+)?")


def read_source(source: str | Path, split: str = "test", revision: str | None = None) -> Iterator[RawRow]:
    """Yield the rows of `split` (a single file has all of its own). Raises TaskError for what is not there or broken.

    A folder may be a hub snapshot (`data/test-00000-of-00001.parquet`), hold `test.parquet` or `test.jsonl`, or be
    what `datasets` saves (`test/data-00000-of-00001.arrow`). `revision` is a hub dataset's commit, branch or tag.
    """
    path = Path(source).expanduser()
    if path.is_file():
        yield from _read_file(path)
    elif path.is_dir():
        yield from _read_folder(path, split)
    elif _HUB_ID.fullmatch(str(source)) and not str(source).startswith("."):
        yield from _read_folder(_snapshot(str(source), revision), split)
    else:
        raise TaskError(f"there is no file or folder {str(source)!r}, and it is no dataset id like owner/name")


def _read_folder(folder: Path, split: str) -> Iterator[RawRow]:
    found: dict[str, list[Path]] = {}
    for path in sorted(path for kind in _KINDS for path in folder.glob(f"**/*{kind}")):
        name = _split_of(path)
        if name and path.name != "dataset_info.json":
            found.setdefault(name, []).append(path)
    if split not in found:
        hint = nearest(split, found) if found else f"; a folder of {', '.join(_KINDS)} files is expected"
        raise TaskError(f"{folder} has no split {split!r}{hint}")
    # The same rows may lie there in two formats: the first kind in the list is read.
    kind = min((path.suffix for path in found[split]), key=_KINDS.index)
    for path in found[split]:
        if path.suffix == kind:
            yield from _read_file(path)


def _split_of(path: Path) -> str | None:
    """The split a file belongs to: by its own name, or by its folder's where it is called `data-…`."""
    match = _SPLIT.fullmatch(path.stem)
    if match is None:
        return None
    return path.parent.name if match["split"] == "data" else match["split"]


def _read_file(path: Path) -> Iterator[RawRow]:
    reader = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _json_lines, ".json": _json}.get(path.suffix)
    if reader is None:
        raise TaskError(f"{path}: rows are read from {', '.join(_KINDS)} files")
    try:
        for number, row in enumerate(reader(path), 1):
            where = f"{path.name}: row {number}"
            if isinstance(row, dict):
                yield where, row
            else:
                what = row if isinstance(row, ValueError) else f"a row is an object, not a {type(row).__name__}"
                yield where, TaskError(f"{where}: {what}")
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error


def _parquet(path: Path) -> Iterator[object]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(256):
            yield from batch.to_pylist()


def _arrow(path: Path) -> Iterator[object]:
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        for batch in pyarrow.ipc.open_stream(file):
            yield from batch.to_pylist()


def _json(path: Path) -> Sequence[object]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(rows, dict):  # by id
        rows = list(rows.values())
    if not isinstance(rows, list):
        raise ValueError("a list of rows is expected")
    return rows


def _json_lines(path: Path) -> Iterator[object]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                yield error


def _snapshot(dataset: str, revision: str | None) -> Path:
    """The folder of a hub dataset's data files, from the cache or, where the machine can reach the hub, from there."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    patterns = [f"*{kind}" for kind in _KINDS]
    try:
        folder = snapshot_download(dataset, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except LocalEntryNotFoundError as error:
        raise TaskError(
            f"the dataset {dataset} is not in the hub's cache and the hub cannot be reached. On a machine that can: "
            f"hf download --repo-type dataset {dataset}; or pass the path of its Parquet file"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TaskError(f"the dataset {dataset} cannot be fetched: {reason}; check the id, or pass a file") from error
    return Path(folder)
