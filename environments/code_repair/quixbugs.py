"""The task set `quixbugs`: classic algorithms with a bug in one line, read from a folder in that repository's layout.

    python_programs/NAME.py, correct_python_programs/NAME.py      a program with its bug, and the right one
    json_testcases/NAME.json                                      a line per case: [input or list of inputs, output]
    python_testcases/test_NAME.py                                 tests, which use the cases or bring their own
    node.py, in any of these folders or beside them               a class for the graphs of some programs

There is one split, `test`, in the order of the names; a task's id is `quixbugs/NAME`. Every other case (or test, where
there are no cases) is visible, six cases at most. Hidden are all tests of `test_NAME.py`, run unaltered in a process
apart from the program (`asserts/apart.py`), nodes included; where that file is missing, all cases.
"""

from __future__ import annotations

import ast
import json
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.rows import collect_tasks, read_json_lines
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task, TaskSet

BUGGY, CORRECT, CASES, TESTS = "python_programs", "correct_python_programs", "json_testcases", "python_testcases"
_VISIBLE_CASES = 6
_PLAIN = '''\
def plain(value):
    """JSON has no tuples and no iterators."""
    if isinstance(value, (list, tuple)) or hasattr(value, "__next__"):
        return [plain(item) for item in value]
    return value
'''
# What `test_NAME.py` expects around it: options of the command line, and a reader of cases.
_AROUND = """\
import sys, types, pytest
from math import inf, nan
pytest.use_correct, pytest.run_slow = True, False
sys.modules["load_testdata"] = types.SimpleNamespace(load_json_testcases=lambda name: {rows})
"""


def load_quixbugs(*, path: str | Path, skip_bad: bool = False) -> TaskSet:
    """Load the set from the repository's folder.

    With `skip_bad`, programs that are no task are told in a warning and left out. Raises TaskError naming file and row.
    """
    folder = Path(path)
    if not (folder / BUGGY).is_dir():
        raise TaskError(f"{folder} has no folder {BUGGY}; path is the folder of a clone of QuixBugs")
    names = sorted(file.stem for file in (folder / BUGGY).glob("*.py"))
    programs = [name for name in names if name not in ("node", "__init__") and not name.endswith("_test")]
    tasks = collect_tasks((partial(make_program_task, folder, name) for name in programs), skip_bad)
    if not tasks:
        raise TaskError(f"{folder / BUGGY} holds no program with tests; path is the folder of a clone of QuixBugs")
    return TaskSet("quixbugs", {"test": tasks})


def make_program_task(folder: Path, name: str) -> Task:
    """Make the task of one program. Raises TaskError naming the file and the row."""
    buggy, right = (_read(folder / part / f"{name}.py") for part in (BUGGY, CORRECT))
    cases = folder / CASES / f"{name}.json"
    tests = folder / TESTS / f"test_{name}.py"
    rows = read_cases(cases) if cases.is_file() else []
    shown = rows[::2][:_VISIBLE_CASES]
    if tests.is_file():
        text = _read(tests)
        hidden = _AROUND.format(rows=repr(rows)) + text
        visible = _AROUND.format(rows=repr(shown)) + _shown_tests(tests, text)
    elif rows:
        text, hidden, visible = "", case_tests(name, rows), case_tests(name, shown)
    else:
        either = f"neither {TESTS}/test_{name}.py nor {CASES}/{name}.json is there"
        raise TaskError(f"{BUGGY}/{name}.py has no tests: {either}")
    files = {"m.py": buggy}
    if any("node" in _imported(source) for source in (buggy, right, text)):
        files["node.py"] = _read(_find_node(folder))
    try:
        return make_task(
            f"quixbugs/{name}",
            files=files,
            reference=right,
            visible=visible,
            hidden=hidden,
            entry=[name],
            statement=_statement(name, right),
            aliases=[f"{BUGGY}.{name}", f"{CORRECT}.{name}"],
            public={"family": name},
        )
    except TaskError as error:
        raise TaskError(f"{BUGGY}/{name}.py: {error}") from error


def read_cases(path: Path) -> list[list[Any]]:
    """Read [inputs, output] from each line. Raises TaskError naming the row."""
    rows = []
    for where, line in read_json_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{CASES}/{where}: not JSON: {error}") from error
        if not isinstance(row, list) or len(row) != 2:
            raise TaskError(f"{CASES}/{where}: a case is a list of input and output, not {line.strip()[:80]}")
        inputs, output = row
        rows.append([inputs if isinstance(inputs, list) else [inputs], output])
    return rows


def case_tests(name: str, rows: list[list[Any]]) -> str:
    """Return tests of cases: equal up to the kind of sequence, floats nearly."""
    tests = []
    for number, (inputs, output) in enumerate(rows, 1):
        wanted = f"pytest.approx({output!r})" if isinstance(output, float) else repr(output)
        call = f"{name}({', '.join(map(repr, inputs))})"
        tests.append(f"def test_{number}():\n    assert plain({call}) == {wanted}\n")
    return "\n\n".join(["import pytest\nfrom math import inf, nan", _PLAIN, *tests])


def _shown_tests(path: Path, text: str) -> str:
    """What an agent gets of a file of tests: those that use cases, every other one of the rest, and what is around them
    but for the import of the program."""
    kept: list[ast.stmt] = []
    number = 0
    for node in _parsed(path, text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and not node.args.args:
            number += 1
            if number % 2 == 0:
                continue
        elif isinstance(node, ast.If) and "use_correct" in ast.dump(node.test):
            continue
        kept.append(node)
    return ast.unparse(ast.Module(kept, type_ignores=[]))


def _statement(name: str, program: str) -> str:
    """The first line of the description that stands in a program as a string."""
    try:
        body = ast.parse(program).body
    except SyntaxError:
        return name
    said = [node.value.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    lines = [line.strip() for text in said if isinstance(text, str) for line in text.splitlines() if line.strip()]
    return f"{name}: {lines[0]}" if lines else name


def _imported(text: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def _find_node(folder: Path) -> Path:
    places = [folder / part / "node.py" for part in (TESTS, ".", CORRECT, BUGGY)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise TaskError(f"{folder} has no node.py, which some of its tests import; is the clone complete?")
    return found


def _parsed(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise TaskError(f"{path.parent.name}/{path.name}, line {error.lineno}: {error.msg}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
