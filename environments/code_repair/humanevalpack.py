"""The task set `humanevalpack`: functions with a planted bug, in the public format of that name.

A row has `prompt` (signature and docstring), `canonical_solution`, `buggy_solution`, `entry_point`, and `test`, the
code of the hidden tests; `example_test` are the visible ones. Rows come from a JSON lines file, or from the hub, where
the set is `bigcode/humanevalpack`. There is one split, `test`, in the order of the rows; a task's id is
`humanevalpack/TASK_ID`. The tests run unaltered, in a process apart from the program (`asserts/apart.py`): that serves
all of the set's 164 Python rows, those with loops, random inputs, tolerances and helper functions too.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.rows import collect_tasks, parse_row, read_json_lines
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.tasks import Task, TaskSet

HUB = "bigcode/humanevalpack"
_HUB_FILE = "data/python/data/humanevalpack.jsonl"
_STATEMENT = 200


class HumanEvalPackRow(BaseModel):
    """The columns that are used; others may be there."""

    model_config = ConfigDict(frozen=True)

    task_id: str = Field(min_length=1, max_length=100)
    prompt: str = Field(min_length=1)
    canonical_solution: str = Field(min_length=1)
    buggy_solution: str = Field(min_length=1)
    test: str = Field(min_length=1)
    entry_point: str = Field(pattern=r"^[A-Za-z_]\w*$")
    example_test: str = ""
    docstring: str = ""
    bug_type: str = ""


def load_humanevalpack(
    *, path: str | Path | None = None, hub: str = HUB, revision: str | None = None, skip_bad: bool = False
) -> TaskSet:
    """Load the set from a file, or, without `path`, from the hub (a data set's id there and a revision of it).

    With `skip_bad`, rows that are no task are told in a warning and left out. Raises TaskError naming file, row and
    field, or saying what to do where the hub cannot be reached; DependencyError where huggingface_hub is missing.
    """
    file = Path(path) if path is not None else fetch(hub, revision)
    rows = list(read_json_lines(file))
    tasks = collect_tasks((partial(make_row_task, where, line) for where, line in rows), skip_bad)
    if not tasks:
        raise TaskError(f"{file} holds no task; give the path of a JSON lines file in the format of HumanEvalPack")
    return TaskSet("humanevalpack", {"test": tasks})


def fetch(hub: str, revision: str | None) -> Path:
    """Return the Python part of the set from the hub's cache, fetching it the first time."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    download = partial(hf_hub_download, hub, _HUB_FILE, repo_type="dataset", revision=revision)
    try:
        try:
            return Path(download(local_files_only=True))
        except LocalEntryNotFoundError:
            return Path(download())
    except HFValidationError as error:
        raise ConfigError(f"hub = {hub!r} is not an id of the hub's: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        what = f"{_HUB_FILE} of {hub!r} cannot be fetched ({type(error).__name__})"
        raise TaskError(f"{what}; give the path of a copy: path=FILE.jsonl") from error


def make_row_task(where: str, line: str) -> Task:
    """Make the task of a row. Raises TaskError naming the place and the field."""
    row = parse_row(HumanEvalPackRow, where, line)
    for field in ("canonical_solution", "test"):
        text = row.test if field == "test" else row.prompt + row.canonical_solution
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise TaskError(f"{where}, field {field!r}: not Python: {error}") from error
    try:
        return make_task(
            f"humanevalpack/{row.task_id}",
            files={"m.py": row.prompt + row.buggy_solution},
            reference=row.prompt + row.canonical_solution,
            visible=visible_tests(row.example_test, row.entry_point),
            hidden=row.test,
            entry=[row.entry_point],
            statement=_statement(row),
            public={"family": row.entry_point, **({"bug": row.bug_type} if row.bug_type else {})},
        )
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from error


def _statement(row: HumanEvalPackRow) -> str:
    text = " ".join(row.docstring.partition(">>>")[0].split())
    return f"{row.entry_point}: {text if len(text) <= _STATEMENT else text[: _STATEMENT - 3] + '...'}"


def visible_tests(text: str, entry: str) -> str:
    """Return the examples of a row as test functions, one an assertion; nothing where the row has none to be read.

    >>> print(visible_tests("def check(f):\\n    assert f(1) == 2\\ncheck(f)", "f"))
    def test_1():
        assert f(1) == 2
    """
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return ""
    tests = [_renamed(test, argument, entry) for test, argument in _asserted(tree)]
    functions = (f"def test_{number}():\n{textwrap.indent(test, '    ')}" for number, test in enumerate(tests, 1))
    return "\n\n\n".join(functions)


def _asserted(tree: ast.Module) -> Iterator[tuple[ast.Assert, str]]:
    """The assertions of `check(candidate)`, with the argument's name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            for statement in node.body:
                if isinstance(statement, ast.Assert):
                    yield statement, node.args.args[0].arg


def _renamed(test: ast.Assert, old: str, new: str) -> str:
    for node in ast.walk(test):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new
    return ast.unparse(test)
