"""What the tests of SWE-bench share: the public datasets and logs, where they lie, and a real git in a sandbox."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import SandboxUnavailableError

GIT_CASES = Path(__file__).parent / "git_cases.py"
GitCases = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def data(shared_data: Path) -> Path:
    """The folder of SWE-bench's public datasets and of recorded evaluation logs."""
    folder = shared_data / "swebench"
    if not folder.is_dir():
        pytest.skip("no SWE-bench data here")
    return folder


def read_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def recorded(data: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Real evaluations: (row, log with its verdict); half of them of the reference patch, half of an empty one."""
    rows = {row["instance_id"]: row for row in read_lines(data / "eval_rows.jsonl.gz")}
    return [(rows[log["instance_id"]], log) for log in read_lines(data / "eval_logs.jsonl.gz")]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[LocalSandbox]:
    """A sandbox with git and Python; tests use folders of their own in it."""
    try:
        made = LocalSandbox(SandboxSpec(timeout=60.0, disk_bytes=256 * MIB, output_bytes=8 * MIB))
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {str(error).splitlines()[0]}")
    with made:
        yield made


@pytest.fixture(scope="session")
def git_cases(sandbox: LocalSandbox) -> GitCases:
    """Run `git_cases.py` in the sandbox: cases in, what git said and left out."""
    sandbox.write("git_cases.py", GIT_CASES.read_bytes())

    def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        result = sandbox.exec(["python3", "git_cases.py"], stdin=json.dumps(cases).encode("utf-8", "surrogatepass"))
        assert result.code == 0, result.stderr
        answers: list[dict[str, Any]] = json.loads(result.stdout)
        return answers

    return run


@pytest.fixture(scope="session")
def small() -> ModuleType:
    """`instance.py`: the small instance's patches, and how its image is made."""
    name = "small_instance"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("instance.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def instance(engine_folder: Path, image: str, small: ModuleType) -> dict[str, Any]:
    """The row of the small instance, whose image is in the tests' engine."""
    import docker

    with_engine = docker.APIClient(os.environ["DOCKER_HOST"], version="auto", timeout=300)
    try:
        row: dict[str, Any] = small.build(with_engine, image)
        return row
    finally:
        with_engine.close()


@pytest.fixture(scope="session")
def small_row(instance: dict[str, Any]) -> SWEBenchRow:
    """The small instance, read."""
    return SWEBenchRow.read(instance, "the small instance")
