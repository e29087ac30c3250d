"""Task sets of SWE-bench: named splits that say how they were made, and no task both trained on and evaluated.

How a dataset is divided (`by`):

- `none`: everything is one split, `test`. The default: the benchmark as its authors publish it.
- `repository`: the repositories `held_out` are `heldout`, the others `train`. By default Django, half of Verified.
- `difficulty`: Verified's instances of the difficulties `held_out` are `heldout`; by default those of an hour and
  more.
- `hash`: instances whose SHA-256 of (seed, id) lies in the lowest `heldout_share` of all values are `heldout`; others
  that are added or left out change nothing about them.

`evaluate_on` names another dataset, which becomes the split `evaluation`, and all that is not held out is `train`:
then an instance of both is an error, or with `drop_shared` is not trained on (Lite and Verified share 93).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentgym_rtmc.environments.swebench.dataset import known_bad, load_rows, select
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.environments.swebench.tasks import task_of
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.tasks import Task, TaskSet

By = Literal["none", "repository", "difficulty", "hash"]
HELD_OUT = {"repository": ("django/django",), "difficulty": ("1-4 hours", ">4 hours")}


class SWEBenchTaskSet(TaskSet):
    """A task set whose `how` says of each split how it was made, in words for a report."""

    def __init__(self, name: str, splits: Mapping[str, Iterable[Task]], how: Mapping[str, str]) -> None:
        super().__init__(name, splits)
        self.how = dict(how)


def load_dataset(
    *,
    source: str | Path,
    dataset_split: str = "test",
    revision: str | None = None,
    recipe: str | Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    repositories: Sequence[str] = (),
    difficulty: Sequence[str] = (),
    ids: Sequence[str] = (),
    without: Sequence[str] = (),
    by: By = "none",
    held_out: Sequence[str] = (),
    heldout_share: float = 0.2,
    seed: int = 0,
    evaluate_on: str | Path | None = None,
    drop_shared: bool = False,
    leave_out_known_bad: Literal["trained", "all", "none"] = "trained",
    known_bad_file: str | Path | None = None,
    hints: bool = False,
) -> SWEBenchTaskSet:
    """Load any dataset in the schema of swebench 5 as a task set; the module says how it is divided.

    Instances whose reference patch fails (`known_bad`) are by default not trained on but stay in what is evaluated, so
    that results keep the benchmark's denominator. `hints` shows agents the issue's discussion, which marks reports.
    Raises TaskError for what cannot be read or shared instances, ConfigError for options that do not fit together.
    """
    rows = load_rows(source, dataset_split, revision=revision, recipe=recipe, skip_bad=skip_bad).rows
    rows = select(rows, repositories=repositories, difficulty=difficulty, ids=ids, without=without)
    splits, how = divide(rows, by, held_out, heldout_share, seed)
    if evaluate_on is not None:
        evaluated = load_rows(evaluate_on, skip_bad=skip_bad).rows
        if by == "none":
            splits, how = {"train": splits["test"]}, {"train": how["test"]}
        splits = {
            name: _apart(members, evaluated, drop_shared, str(source), str(evaluate_on))
            for name, members in splits.items()
        }
        how = {name: f"{text}, without what is in {evaluate_on}" for name, text in how.items()}
        splits["evaluation"], how["evaluation"] = evaluated, f"all of {evaluate_on}"
    barred = known_bad(Path(known_bad_file) if known_bad_file is not None else None)
    for name in splits:
        if leave_out_known_bad == "all" or (leave_out_known_bad == "trained" and name == "train"):
            kept = select(splits[name], without=barred)
            if len(kept) < len(splits[name]):
                how[name] += f", without {len(splits[name]) - len(kept)} whose reference patch is known to fail"
            splits[name] = kept
    how = {
        name: f"{text} ({len(splits[name])} instances{', with hints' if hints else ''})" for name, text in how.items()
    }
    tasks = {name: [task_of(row, hints) for row in members] for name, members in splits.items()}
    return SWEBenchTaskSet(str(source), tasks, how)


load_lite = partial(load_dataset, source="lite")
"""SWE-bench Lite: 300 instances, with `dataset_split="dev"` its 23 for development. Options of `load_dataset`."""
load_verified = partial(load_dataset, source="verified")
"""SWE-bench Verified: 500 instances. Options of `load_dataset`."""


def divide(
    rows: Sequence[SWEBenchRow], by: By, held_out: Sequence[str] = (), heldout_share: float = 0.2, seed: int = 0
) -> tuple[dict[str, tuple[SWEBenchRow, ...]], dict[str, str]]:
    """Divide rows into splits; returns them with the words on how each was made. Raises ConfigError, TaskError."""
    if held_out and by not in HELD_OUT:
        raise ConfigError(f"held_out goes with by='repository' or by='difficulty', not with by={by!r}")
    if by == "none":
        return {"test": tuple(rows)}, {"test": "all"}
    if by == "hash":
        return _by_hash(rows, heldout_share, seed)
    values: dict[str, Callable[[SWEBenchRow], str | None]] = {
        "repository": lambda row: row.repo,
        "difficulty": lambda row: row.difficulty,
    }
    if by not in values:
        raise ConfigError(f"by={by!r} is none of none, repository, difficulty, hash")
    value_of = values[by]
    if by == "difficulty" and not any(row.difficulty for row in rows):
        raise TaskError("by='difficulty' needs the column difficulty, which of the official datasets only Verified has")
    wanted = tuple(held_out) or tuple(name for name in HELD_OUT[by] if any(value_of(row) == name for row in rows))
    # A misspelt name must not hold out nothing.
    heldout = select(rows, repositories=wanted) if by == "repository" else select(rows, difficulty=wanted)
    if not wanted:
        raise TaskError(f"by={by!r}: no row has one of {', '.join(HELD_OUT[by])}; say with held_out what is held out")
    train = tuple(row for row in rows if value_of(row) not in wanted)
    names = ", ".join(wanted)
    return {"train": train, "heldout": heldout}, {"train": f"{by} not {names}", "heldout": f"{by} {names}"}


def _by_hash(
    rows: Sequence[SWEBenchRow], share: float, seed: int
) -> tuple[dict[str, tuple[SWEBenchRow, ...]], dict[str, str]]:
    if not 0 < share < 1:
        raise ConfigError(f"heldout_share lies between 0 and 1, not {share}")

    def key(row: SWEBenchRow) -> str:
        return hashlib.sha256(f"{seed}/{row.instance_id}".encode()).hexdigest()

    # By a threshold and not by rank, so that an instance stays on its side when others are added or left out.
    limit = f"{int(share * 2**256):064x}"
    heldout = tuple(row for row in rows if key(row) < limit)
    train = tuple(row for row in rows if key(row) >= limit)
    how = f"share {share:g} of SHA-256(seed {seed}, id)"
    return {"train": train, "heldout": heldout}, {"train": f"outside the {how}", "heldout": how}


def _apart(
    rows: Sequence[SWEBenchRow], evaluated: Sequence[SWEBenchRow], drop: bool, name: str, other: str
) -> tuple[SWEBenchRow, ...]:
    """Return the rows that are not evaluated. Raises TaskError for shared ones that are not to be dropped."""
    ids = {row.instance_id for row in evaluated}
    shared = [row.instance_id for row in rows if row.instance_id in ids]
    if shared and not drop:
        raise TaskError(
            f"{len(shared)} instances of {name} are also in {other} ({', '.join(shared[:3])}, …): what is evaluated "
            "must not be trained on. drop_shared=true leaves them out of training"
        )
    return tuple(row for row in rows if row.instance_id not in ids)
