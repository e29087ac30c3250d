"""One way to make a task that is graded by tests: from files, visible tests, hidden tests and the right program.

    make_task("stats/mean", files={"m.py": buggy}, reference=right, visible=examples, hidden=tests, entry=["mean"])

Tests are plain Python: `assert` statements in functions `test*`, in methods of classes `Test*`, or at the top. The
names of the program are simply there; `import m` and `from m import mean` work as well. Of pytest, `approx`, `raises`,
`skip` and `mark.parametrize` are known.

Invariants: the task is a function of the arguments. Nothing of `reference` and `hidden` is in its public part.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from pydantic import JsonValue, ValidationError

from agentgym_rtmc.environments.code_repair.asserts.tests import HiddenTests, Mode
from agentgym_rtmc.environments.code_repair.workspace import HARNESS, PROGRAM, TESTS
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task


def make_task(
    id: str,
    *,
    files: Mapping[str, str],
    reference: str,
    visible: str,
    hidden: str,
    entry: Sequence[str],
    statement: str = "",
    aliases: Sequence[str] = (),
    mode: Mode = "apart",
    public: Mapping[str, JsonValue] | None = None,
) -> Task:
    """Make a task of a program that has a bug, `files["m.py"]`, and of modules beside it, which stay as they are.

    `reference` is the right `m.py`. `visible` are tests that the agent gets as `t.py`, `hidden` those that decide.
    `entry` names the functions under test. `aliases` are names under which the tests import the program beside `m`.
    `mode`: "apart" runs program and hidden tests in different processes, which holds against any program, and is right
    wherever arguments and results are plain data or objects of classes in `files`; "together" is for all other tests
    (`asserts/together.py` says what it holds against). `public` is more that agents may know.

    Raises TaskError naming the argument that is wrong.
    """

    def demand(holds: bool, what: str) -> None:
        if not holds:
            raise TaskError(f"task {id!r}: {what}")

    demand(PROGRAM in files, f"files lack {PROGRAM}, the program with the bug")
    modules = {name.removesuffix(".py"): text for name, text in files.items() if name != PROGRAM}
    for name in modules:
        plain = name.isidentifier() and f"{name}.py" in files and f"{name}.py" not in (TESTS, HARNESS)
        demand(plain, f"files: {name!r} cannot stand beside {PROGRAM}; a module is named like names.py")
    for what, text in (("reference", reference), ("visible", visible), ("hidden", hidden), *files.items()):
        if what != PROGRAM:
            _check_syntax(id, what, text)
    defined = {node.name for node in ast.parse(reference).body if isinstance(node, ast.FunctionDef)}
    missing = sorted(set(entry) - defined) if mode == "apart" else []
    demand(bool(entry) and not missing, f"entry: the reference has no function {', '.join(missing) or '(none named)'}")
    shown: dict[str, JsonValue] = {"statement": statement, "source": files[PROGRAM], "tests": visible}
    if modules:
        shown["files"] = {f"{name}.py": text for name, text in modules.items()}
    try:
        tests = HiddenTests(
            original=reference, tests=hidden, entry=tuple(entry), aliases=tuple(aliases), modules=modules, mode=mode
        )
        return Task(id=id, public={**(public or {}), **shown}, private=tests.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(f"task {id!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _check_syntax(task_id: str, what: str, text: str) -> None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{what}, line {line}" if line else what
        raise TaskError(f"task {task_id!r}: {where}: {getattr(error, 'msg', error)}") from error
