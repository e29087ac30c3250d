"""Rows of SWE-smith and SWE-Gym, completed to what grading needs.

Neither dataset says how its tests are run or read: SWE-smith has instance_id, patch, FAIL_TO_PASS, PASS_TO_PASS,
image_name, repo and problem_statement, SWE-Gym the columns of SWE-bench before version 5. A `Recipe` supplies the
rest.

Invariants: nothing is guessed; what neither row nor recipe says is an error that names it. A SWE-smith patch *plants*
the bug, so it becomes `bug_patch` and its reverse the reference. An absent test counts as failed, as in SWE-bench.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from agentgym_rtmc.environments.swebench.diff import DiffError, FileChange, parse_diff, write_diff
from agentgym_rtmc.environments.swebench.reverse import reverse_diff
from agentgym_rtmc.environments.swebench.rows import V5_COLUMNS, read_names
from agentgym_rtmc.errors import TaskError, nearest
from agentgym_rtmc.settings import Settings


class Recipe(Settings):
    """How rows without an evaluation script are run. `test_command` gets the graded test files appended."""

    image: str = Field("", description="image; {id} and {name} stand for the id in lower case, {name} with __ as _s_")
    test_command: str = Field("pytest -rA", description="runs the graded test files that are put behind it")
    by_repo: dict[str, str] = Field(default_factory=dict, description="test_command of single repositories")
    prepare: list[str] = Field(default_factory=list, description="shell lines before the tests, e.g. an installation")
    activate: list[str] = Field(
        default=["source /opt/miniconda3/bin/activate", "conda activate testbed"],
        description="shell lines that activate the environment",
    )
    log_parser: str = Field("parse_log_pytest", description="swebench's parser of the test output")


RECIPES = {
    "swe-smith": Recipe(
        test_command="pytest --disable-warnings --color=no --tb=no -rA", log_parser="parse_log_pytest_v2"
    ),
    "swe-gym": Recipe(image="xingyaoww/sweb.eval.x86_64.{name}:latest", test_command="pytest -n0 -rA"),
}
"""Recipes by name. The images of SWE-Gym are those its authors published; mypy's tests need a command of their own."""


def find_recipe(given: str | Recipe | Mapping[str, Any] | None) -> Recipe | None:
    """Return a recipe by name or from its fields. Raises TaskError for an unknown name or field."""
    if given is None or isinstance(given, Recipe):
        return given
    if isinstance(given, str):
        if given not in RECIPES:
            raise TaskError(f"there is no recipe {given!r}{nearest(given, RECIPES)}")
        return RECIPES[given]
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        hint = nearest(name, Recipe.model_fields) if first["type"] == "extra_forbidden" else ""
        raise TaskError(f"recipe: {name}: {first['msg']}{hint}") from error


def complete(values: Mapping[str, Any], recipe: Recipe, where: str) -> dict[str, Any]:
    """Return the columns of a row in the schema of swebench 5; complete ones are returned as they are.

    Raises TaskError where the image, the tests or the patch cannot be told.
    """
    if all(values.get(column) for column in V5_COLUMNS):
        return dict(values)
    row = _from_smith(values, where) if "image_name" in values else dict(values)
    name = str(row.get("instance_id", ""))
    if not row.get("image"):
        if not recipe.image:
            raise TaskError(f"{where} ({name}): no image; the recipe's `image` says how it is named")
        fields = {"id": name.lower(), "name": name.lower().replace("__", "_s_")}
        row["image"] = recipe.image.format(**fields)
    row.setdefault("log_parser", recipe.log_parser)
    row.setdefault("eval_type", "pass_and_fail")
    if not row.get("eval_script"):
        row["eval_script"] = _script(row, recipe, where)
    return row


def _from_smith(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    bug = values.get("patch")
    if not isinstance(bug, str) or not bug.strip():
        raise TaskError(f"{where}: column patch: SWE-smith's patch plants the bug, and there is none")
    try:
        reference = write_diff(reverse_diff(_changes(bug, "patch", where)))
    except DiffError as error:
        raise TaskError(f"{where}: column patch: {error}") from error
    return {
        **values,
        "image": values["image_name"],
        "bug_patch": bug,
        "patch": reference,
        "test_patch": "",
        # The image's own commit is the base; its dataset names none.
        "base_commit": "HEAD",
        "version": values.get("version", ""),
        "problem_statement": values.get("problem_statement") or "",
    }


def _script(row: Mapping[str, Any], recipe: Recipe, where: str) -> str:
    """An evaluation script of the official form: activate, restore the graded files, apply the test patch, run."""
    name, patch = row.get("instance_id"), str(row.get("test_patch") or "")
    changes = _changes(patch, "test_patch", f"{where} ({name})")
    restored = sorted({change.old for change in changes if change.old is not None})
    files = sorted({change.new for change in changes if change.new is not None and change.new.endswith(".py")})
    if not files:
        files = sorted({test.split("::")[0] for test in _tests(row.get("FAIL_TO_PASS"))} - {""})
        restored = files
    if not files:
        raise TaskError(f"{where} ({name}): neither test_patch nor FAIL_TO_PASS names a test file to run")
    base = str(row.get("base_commit"))
    command = recipe.by_repo.get(str(row.get("repo")), recipe.test_command)
    checkout = f"git checkout {base} {shlex.join(restored)}"
    mark = "EOF_114329324912"
    apply = [f"git apply -v - <<'{mark}'\n{patch.rstrip(chr(10))}\n{mark}"] if changes else []
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        *recipe.activate,
        "cd /testbed",
        "git config --global --add safe.directory /testbed",
        *recipe.prepare,
        *([checkout] if restored else []),
        *apply,
        ": '>>>>> Start Test Output'",
        f"{command} {shlex.join(files)}",
        ": '>>>>> End Test Output'",
        *([checkout] if restored else []),
    ]
    if re.search(rf"^{mark}$", patch, re.MULTILINE):
        raise TaskError(f"{where} ({name}): column test_patch holds the line {mark}")
    return "\n".join(lines) + "\n"


def _changes(text: str, column: str, where: str) -> tuple[FileChange, ...]:
    try:
        return parse_diff(text)
    except DiffError as error:
        raise TaskError(f"{where}: column {column}: {error}") from error


def _tests(names: object) -> Sequence[str]:
    found = read_names(names)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list | tuple) else []
