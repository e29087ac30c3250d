"""The trainer's small environment (`modules/echo_env.py`), and command lines as processes that start fast."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MODULES = str(Path(__file__).parent / "modules")
if MODULES not in sys.path:
    sys.path.append(MODULES)

from command_line import CommandLine, run  # noqa: E402

CONFIG = """
[run]
deterministic = true
threads = 1
[env]
id = "echo_env:tests/Echo-v0"
[policy]
max_tokens = 6
[policy.tiny]
hidden_size = 32
layers = 1
heads = 2
key_value_heads = 1
intermediate_size = 64
context = 64
vocabulary = 288
phrases = 4
[policy.warm_start]
episodes = 200
epochs = 6
batch_tokens = 256
learning_rate = 1e-2
workers = 2
[rollout]
group_size = 4
env_workers = 2
[loop]
updates = 6
groups = 4
checkpoint_every = 2
[evaluation]
tasks = 6
every = 3
"""


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration of a very small run, `tiny.toml`; the cache of warm starts lies beside it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.toml").write_text(CONFIG, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def command_line(workplace: Path) -> Iterator[Callable[..., CommandLine]]:
    """Start `agentgym-rtmc ARGUMENTS` as a process of its own, forked from one that has torch loaded already."""
    pytest.importorskip("transformers")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["agentgym_rtmc.trainer.loop", "agentgym_rtmc.cli", "echo_env", "command_line"])
    started: list[CommandLine] = []

    def start(*arguments: str, file_limit: int | None = None) -> CommandLine:
        output = workplace / f"output-{len(started)}"
        process = context.Process(target=run, args=(arguments, str(workplace), str(output), file_limit))
        process.start()
        started.append(CommandLine(process, output))
        return started[-1]

    yield start
    for one in started:
        if one.process.is_alive():
            one.process.kill()
        one.process.join()
