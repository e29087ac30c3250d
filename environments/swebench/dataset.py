"""Rows of a dataset, read, checked and filtered.

Invariants: a bad row is an error that names file, row number, id and column; with `skip_bad` it is left out and
reported, never silently. Filters that match nothing are errors: a misspelt repository must not look like no data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentgym_rtmc.environments.known_bad import parse_known_bad, read_known_bad
from agentgym_rtmc.environments.swebench.other_rows import Recipe, complete, find_recipe
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.environments.swebench.sources import read_source
from agentgym_rtmc.errors import TaskError, nearest

SOURCES = {
    "lite": "SWE-bench/SWE-bench_Lite",
    "verified": "SWE-bench/SWE-bench_Verified",
    "full": "SWE-bench/SWE-bench",
}
"""Hub ids by the short names that may be used instead."""


@dataclass(frozen=True)
class LoadedRows:
    """Rows in the order of the source, and a complaint for each that was left out as bad."""

    rows: tuple[SWEBenchRow, ...]
    bad: tuple[str, ...] = ()


def load_rows(
    source: str | Path,
    split: str = "test",
    *,
    revision: str | None = None,
    recipe: str | Recipe | Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> LoadedRows:
    """Read all rows of a source (see `sources.read_source`; also a short name of SOURCES).

    `recipe` completes rows of other datasets (see `other_rows`). Raises TaskError for a source that cannot be read,
    for an id that occurs twice and, without `skip_bad`, for the first bad row.
    """
    chosen = find_recipe(recipe)
    rows: dict[str, SWEBenchRow] = {}
    bad: list[str] = []
    for where, values in read_source(SOURCES.get(str(source), source), split, revision):
        try:
            if isinstance(values, TaskError):
                raise values
            row = SWEBenchRow.read(values if chosen is None else complete(values, chosen, where), where)
            if row.instance_id in rows:
                raise TaskError(f"{where} ({row.instance_id}): this instance_id occurs twice")
        except TaskError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
        else:
            rows[row.instance_id] = row
    if bad:
        warnings.warn(f"{source}: {len(bad)} bad rows are left out; the first: {bad[0]}", stacklevel=2)
    return LoadedRows(tuple(rows.values()), tuple(bad))


def select(
    rows: Sequence[SWEBenchRow],
    *,
    repositories: Iterable[str] = (),
    difficulty: Iterable[str] = (),
    ids: Iterable[str] = (),
    without: Iterable[str] = (),
) -> tuple[SWEBenchRow, ...]:
    """Keep the rows that are in each list given (an empty one keeps all) and not in `without`.

    Raises TaskError for a name that no row has.
    """
    kept = tuple(rows)
    for what, wanted, known in (
        ("repository", frozenset(repositories), {row.repo: row.repo for row in rows}),
        ("difficulty", frozenset(difficulty), {row.difficulty: row.difficulty for row in rows if row.difficulty}),
        ("instance_id", frozenset(ids), {row.instance_id: row.instance_id for row in rows}),
    ):
        unknown = sorted(wanted - known.keys())
        if unknown:
            raise TaskError(f"no row has the {what} {unknown[0]!r}{nearest(unknown[0], map(str, known))[:300]}")
        if wanted:
            kept = tuple(row for row in kept if _value(row, what) in wanted)
    barred = frozenset(without)
    return tuple(row for row in kept if row.instance_id not in barred)


def _value(row: SWEBenchRow, what: str) -> str | None:
    return {"repository": row.repo, "difficulty": row.difficulty, "instance_id": row.instance_id}[what]


def known_bad(file: Path | None = None) -> Mapping[str, str]:
    """Instances whose reference patch is not resolved, with reasons; `file` adds to the list that comes along.

    Raises TaskError for a file that is not TOML of `"instance_id" = "reason"`.
    """
    ours = files("agentgym_rtmc.environments.swebench").joinpath("known_bad.toml").read_text(encoding="utf-8")
    listed = parse_known_bad(ours, "known_bad.toml")
    return listed if file is None else listed | read_known_bad(file)
