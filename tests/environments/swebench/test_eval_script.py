"""Evaluation scripts in two parts: every official one splits, and both parts do what the whole did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rtmc.environments.swebench.canaries import plan_canaries
from agentgym_rtmc.environments.swebench.dataset import load_rows
from agentgym_rtmc.environments.swebench.eval_script import END, START, split_script
from agentgym_rtmc.errors import TaskError

FILES = ("SWE-bench_Lite_dev", "SWE-bench_Lite_test", "SWE-bench_Verified_test")


@pytest.fixture(scope="module")
def spec_scripts(data: Path) -> dict[str, str]:
    """The script that swebench itself makes of every row, by id."""
    script = (
        "import json, sys, pyarrow.parquet\nfrom swebench.harness.utils import make_test_spec\n"
        "rows = [row for path in sys.argv[1:] for row in pyarrow.parquet.read_table(path).to_pylist()]\n"
        "print(json.dumps({row['instance_id']: make_test_spec(row).eval_script for row in rows}))"
    )
    paths = [str(data / f"{name}.parquet") for name in FILES]
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, check=False, timeout=300
    )
    if "No module named 'swebench'" in done.stderr:
        pytest.skip("swebench is not installed")
    assert done.returncode == 0, done.stderr
    scripts: dict[str, str] = json.loads(done.stdout)
    return scripts


def test_every_official_script_splits(data: Path, spec_scripts: dict[str, str]) -> None:
    """The row's script and the one swebench makes of it (with the exit code recorded) give the same two parts."""
    kinds: dict[str, int] = {}
    for name in FILES:
        for row in load_rows(data / f"{name}.parquet").rows:
            spec = spec_scripts[row.instance_id]
            script = split_script(spec, row.instance_id)
            assert script == split_script(row.eval_script, row.instance_id)
            # Nothing is lost: the set-up is the script up to its marker, the tests what stands between the markers.
            head, _, rest = spec.partition(f": '{START}'\n")
            assert script.setup == head
            (command,) = script.commands
            assert rest.startswith(f"{command}\nSWEBENCH_TEST_EXIT_CODE=$?\n: '{END}'\n")
            assert script.tests().endswith(f"\nset -x\n{command}\n")
            assert [line for line in script.state if line.startswith("cd ")] == ["cd /testbed"] * 2
            assert "conda activate testbed" in script.state
            exports = [line for line in head.split("\n") if line.startswith("export ")]
            assert [line for line in script.state if line.startswith("export ")] == exports
            canaries = plan_canaries(row, script)
            kinds[canaries.kind] = kinds.get(canaries.kind, 0) + 1
    assert kinds == {"pytest": 326, "django": 345, "sympy": 152}


def script_of(*lines: str, tests: tuple[str, ...] = ("pytest -rA",)) -> str:
    return "\n".join(
        ["#!/bin/bash", "set -uxo pipefail", *lines, f": '{START}'", *tests, f": '{END}'", "git checkout x"]
    )


def test_state_is_told_from_work() -> None:
    script = split_script(
        script_of(
            "source a.sh && conda activate testbed",
            "cd /testbed; make all",
            "export A='x; y' B=\"c && d\"",
            "PLAIN=1",
            "PLAIN=1 pip install .",
            "make; X='a b' Y=$(pwd)",
            "sed -i 's/a/b/' f && locale-gen",
            "pip install 'pytest<7.2' \\\n  more",
            "cd over \\\n  lines",
            "cat > f <<'EOF'\ncd /nowhere\nif true; then\n" + f": '{START}'\nEOF",
            "cat <<-END | tee g\n\texport NO=1\n\tEND",
            "python -c 'import x' <<< 'cd /x'",
        ),
        "here",
    )
    assert script.state == (
        "source a.sh",
        "conda activate testbed",
        "cd /testbed",
        "export A='x; y' B=\"c && d\"",
        "PLAIN=1",
        "X='a b' Y=$(pwd)",
    )


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (script_of("if true; then cd x; fi"), "has 'if' in its set-up"),
        (script_of("cd x && for a in b; do c; done"), "has 'for' in its set-up"),
        (script_of("eval $(conda hook)"), "has 'eval' in its set-up"),
        (script_of("cd 'x"), "in which a quote is not closed"),
        (script_of(tests=()), "runs nothing between its markers"),
        (script_of(f": '{START}'"), "2 start and 1 end markers"),
        ("#!/bin/bash\npytest\n", "0 start and 0 end markers"),
        (f": '{END}'\npytest\n: '{START}'\n", "1 start and 1 end markers"),
    ],
)
def test_scripts_that_cannot_be_split(script: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=r"^own__repo-1: ") as caught:
        split_script(script, "own__repo-1")
    assert complaint in str(caught.value)


def test_the_parts_do_what_the_whole_did(sandbox) -> None:
    """State reaches the tests, work is not done twice, and the exit code is the last command's."""
    text = script_of(
        "mkdir -p deep && echo once >> deep/count",
        "cd deep",
        "export A=1",
        "B=2",
        tests=("cat count", 'echo "$A$B"; sh -c "exit 3" | cat'),
    )
    script = split_script(text, "here")
    sandbox.write("whole/run.sh", text.encode())
    whole = sandbox.exec(["sh", "-c", "cd whole && bash run.sh"])
    sandbox.write("parts/setup.sh", script.setup.encode())
    sandbox.write("parts/tests.sh", script.tests().encode())
    assert sandbox.exec(["sh", "-c", "cd parts && bash setup.sh"]).code == 0
    parts = sandbox.exec(["sh", "-c", "cd parts && bash tests.sh"])
    assert parts.stdout == whole.stdout == "once\n12\n"
    assert parts.code == 3, "pipefail reaches the tests, too"
    assert parts.stderr.splitlines()[0] == "+ cat count"
