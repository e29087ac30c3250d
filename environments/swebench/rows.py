"""One row of a SWE-bench dataset in the schema of swebench 5, checked when it is read.

Invariants: a row that was made can be graded: it names its image, evaluation script, log parser and evaluation type.
Columns this file does not know are ignored. What an agent may know of a row is decided in `tasks.py`, not here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentgym_rtmc.environments.swebench.diff import parse_diff
from agentgym_rtmc.errors import TaskError

V5_COLUMNS = ("image", "eval_script", "log_parser", "eval_type")
"""What releases before swebench 5 lack, and what no grading can do without."""
V5_DATASETS = ("SWE-bench/SWE-bench_Lite", "SWE-bench/SWE-bench_Verified", "SWE-bench/SWE-bench")
"""Hub ids whose present releases have these columns."""


def read_names(value: object) -> object:
    """Return a list of test names, which the hub stores as a JSON string, as it is if it is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"is neither a list nor the JSON of one ({error})") from error


def _text(value: object) -> object:
    return "" if value is None else value


def _diff(text: str) -> str:
    parse_diff(text)
    return text


TestNames = Annotated[tuple[str, ...], BeforeValidator(read_names)]
OptionalText = Annotated[str, BeforeValidator(_text)]
OptionalDiff = Annotated[str, BeforeValidator(_text), AfterValidator(_diff)]


class SWEBenchRow(BaseModel):
    """One instance. `bug_patch` is ours: applied before the task begins (rows whose problem is a planted bug)."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, coerce_numbers_to_str=True)

    # The id becomes a folder's name and part of a container's, the commit an argument of git.
    instance_id: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}$")
    repo: str = Field(min_length=1)
    base_commit: str = Field(pattern=r"^([0-9a-f]{7,64}|HEAD)$")
    problem_statement: str = Field(min_length=1)
    patch: str
    test_patch: OptionalDiff = ""
    fail_to_pass: TestNames = Field(alias="FAIL_TO_PASS", min_length=1)
    pass_to_pass: TestNames = Field(alias="PASS_TO_PASS")
    image: str = Field(min_length=1)
    eval_script: str = Field(min_length=1)
    log_parser: str = Field(pattern=r"^parse_log_\w+$")
    eval_type: Literal["pass_and_fail", "fail_only"]
    version: OptionalText = ""
    hints_text: OptionalText = ""
    environment_setup_commit: OptionalText = ""
    difficulty: str | None = None
    bug_patch: OptionalDiff = ""

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> SWEBenchRow:
        """Make a row of a mapping; `where` (file and row number) goes into the TaskError of a bad one."""
        name = values.get("instance_id")
        place = f"{where} ({name})" if isinstance(name, str) and name else where
        missing = [column for column in V5_COLUMNS if not values.get(column)]
        if missing:
            raise TaskError(
                f"{place}: no {', '.join(missing)}: this is a row of an older release or of another dataset. The "
                f"present releases of {', '.join(V5_DATASETS)} have these columns; for rows of "
                "SWE-smith or SWE-Gym pass a recipe"
            )
        if values.get("image_assets") not in (None, "", "{}", {}):
            raise TaskError(f"{place}: image_assets: binary files beside the patch are not supported; leave it out")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            column = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            raise TaskError(f"{place}: column {column}: {message}") from error

    def instance(self) -> dict[str, Any]:
        """The row as swebench's functions take it."""
        return self.model_dump(by_alias=True, exclude={"bug_patch"}, exclude_none=True)
