"""The task set `builtin`: mutants of our own programs, read from the proven manifest.

How the splits are made (a *family* is one program of `programs/*.toml` with all its forms and names):

- `train`: mutants of the training families in several forms (constants, shape); half of them with drawn names.
- `instances_validation`, `instances_test`: other mutants of the same families, in names of their own. None equals a
  training task or another one of them up to renaming. For most the same bug was trained on in another form or the same
  line with another bug; that is the point. Which of the two a task is in depends on its family alone.
- `heldout`: families never trained on, for validation. `families`: other ones, like `heldout`, for the test.
- `handwritten_validation`, `handwritten_test`: programs as a person wrote them, no drawn names or shapes, of families
  never trained on; again parted by family.

Settings are chosen on what is for validation; the test splits are for reporting, and nothing is chosen by them. No
family of one kind of test split is among the validation families of the same kind. Selections: `validation` and `test`
are all there is of each; `instances` and `handwritten` are both parts together.

Every mutant was proven to fail a visible test and a hidden case (`build.py`). A task is public in its statement, its
buggy source and its visible tests; private are the original, the calls and their expected values, and the edit.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import JsonValue

from agentgym_rtmc.environments.code_repair.build import manifest_path
from agentgym_rtmc.environments.code_repair.cases import CallData
from agentgym_rtmc.environments.code_repair.corpus import corpus_digest
from agentgym_rtmc.environments.code_repair.mutations import OPERATORS, Edit
from agentgym_rtmc.environments.code_repair.variants import draw_names, rename
from agentgym_rtmc.errors import ConfigError, TaskError, nearest
from agentgym_rtmc.tasks import Task, TaskSet

VALIDATION = ("instances_validation", "heldout", "handwritten_validation")
TEST = ("instances_test", "families", "handwritten_test")
SPLITS = ("train", *VALIDATION, *TEST)
SELECTIONS = {
    "validation": VALIDATION,
    "test": TEST,
    "instances": ("instances_validation", "instances_test"),
    "handwritten": ("handwritten_validation", "handwritten_test"),
}
"""Name of a selection -> the splits it joins."""
_INSTANCE_SHARE = 0.12
"""Share of the training families' mutants that is kept for `instances`."""
_VALIDATION_SHARE = 0.4
"""Share of the families whose instances, or handwritten programs, are for validation."""


def load_builtin(
    *,
    limit: int | None = None,
    renamed: float = 0.5,
    families: int | None = None,
    forms: int | None = None,
    operators: Sequence[str] = (),
) -> TaskSet:
    """Load the set. `limit` is the most tasks of a split or selection (spread evenly over the families), `renamed` the
    share of tasks with drawn names (handwritten ones have none), `families` the number of training families (spread
    evenly; `train` and `instances` shrink, the other splits stay), `forms` the most forms of one, `operators` the kinds
    of bugs (default: all). Same options, same tasks.

    Raises TaskError when the manifest does not belong to the programs.
    """
    for name, number in (("limit", limit), ("families", families), ("forms", forms)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, not {number}")
    for operator in operators:
        if operator not in OPERATORS:
            raise ConfigError(f"there is no mutation operator {operator!r}{nearest(operator, OPERATORS)}")
    if not 0 <= renamed <= 1:
        raise ConfigError(f"renamed is a share between 0 and 1, not {renamed}")
    splits: dict[str, list[Task]] = {split: [] for split in SPLITS}
    known: set[str] = set()
    trained = _trained_families(families)
    for form, edit in _mutants():
        if form["use"] == "train" and (form["program"] not in trained or form["form"] >= (forms or math.inf)):
            continue
        if operators and edit.operator not in operators:
            continue
        mutant = edit.apply(form["source"])
        split = _split(form, edit)
        if form["use"] == "train" and mutant in known:
            continue
        known.add(mutant)
        splits[split].append(_task(split, form, edit, mutant, renamed, list(operators)))
    kept = {split: _even(tasks, limit) for split, tasks in splits.items()}
    joined = {name: _even([task for part in parts for task in kept[part]], limit) for name, parts in SELECTIONS.items()}
    return TaskSet("builtin", kept, joined)


@cache
def read_manifest() -> list[dict[str, Any]]:
    """Return the rows of the manifest, one per form. Raises TaskError when it is stale."""
    manifest = json.loads(manifest_path().read_text(encoding="utf-8"))
    if manifest["programs"] != corpus_digest():
        raise TaskError(
            "the manifest does not belong to the programs; run python -m agentgym_rtmc.environments.code_repair.build"
        )
    forms: list[dict[str, Any]] = manifest["forms"]
    return forms


def _mutants() -> Iterator[tuple[dict[str, Any], Edit]]:
    for form in read_manifest():
        for start, end, new, operator in form["edits"]:
            yield form, Edit(start, end, new, operator)


def _trained_families(count: int | None) -> set[str]:
    names = list(dict.fromkeys(form["program"] for form in read_manifest() if form["use"] == "train"))
    return set(
        names if count is None or count >= len(names) else (names[i * len(names) // count] for i in range(count))
    )


def _split(form: dict[str, Any], edit: Edit) -> str:
    use: str = form["use"]
    if use == "train":
        name = f"{form['program']}/{form['form']}/{edit.start}/{edit.new}"
        if _share(name) >= _INSTANCE_SHARE:
            return use
        use = "instances"
    if use in SELECTIONS:
        return f"{use}_validation" if _share(form["program"]) < _VALIDATION_SHARE else f"{use}_test"
    return use


def _share(name: str) -> float:
    """A stable number from 0 to 1 for a name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32


def _task(split: str, form: dict[str, Any], edit: Edit, mutant: str, renamed: float, kinds: list[str]) -> Task:
    # The name must not tell the bug.
    name = hashlib.sha256(f"{form['program']}/{form['form']}/{edit}".encode()).hexdigest()[:8]
    rng = random.Random(name)
    names = draw_names(form["source"], rng) if form["use"] != "handwritten" and rng.random() < renamed else {}
    calls: list[JsonValue] = [_renamed_call(call, names) for call in form["calls"]]
    visible: JsonValue = [[calls[number], form["answers"][number]] for number in form["visible"]]
    # Made of our own manifest, which is plain JSON: checking four thousand tasks again would take seconds.
    return Task.model_construct(
        id=f"{split.partition('_')[0]}/{form['program']}/{form['form']}/{name}",
        public={
            "family": form["program"],
            "statement": form["about"],
            "source": rename(mutant, names),
            "visible": visible,
            **({"operators": list[JsonValue](kinds)} if kinds else {}),
        },
        private={
            "original": rename(form["source"], names),
            "operator": edit.operator,
            "calls": calls,
            "expected": form["answers"],
        },
    )


def _renamed_call(call: CallData, names: dict[str, str]) -> CallData:
    first, arguments, *methods = call
    return [names.get(first, first), arguments, *methods]


def _even(tasks: list[Task], limit: int | None) -> list[Task]:
    """Take `limit` tasks at even distances, which spreads them over the families."""
    if limit is None or len(tasks) <= limit:
        return tasks
    return [tasks[index * len(tasks) // limit] for index in range(limit)]
