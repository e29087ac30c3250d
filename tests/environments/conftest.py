"""A container engine for tests, where somebody started one for them, and an image to run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = "AGENTGYM_RTMC_TEST_ENGINE"


@pytest.fixture(scope="session")
def engine_folder() -> Iterator[Path]:
    """Folder of an engine that is the tests' own: they may fill, kill and restart it. DOCKER_HOST points to it."""
    if ENGINE not in os.environ:
        pytest.skip(f"no container engine for tests; .ci/run starts one, or `.ci/engine.py start DIR` and {ENGINE}=DIR")
    folder = Path(os.environ[ENGINE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        yield folder


@pytest.fixture(scope="session")
def image(engine_folder: Path) -> str:
    """Name of an image with a shell, Python, pytest and git."""
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/base_image.py"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
