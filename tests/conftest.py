"""What all tests share: the data folder beside the repository, where there is one."""

import os
import signal
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of large public data, from AGENTGYM_RTMC_SHARED_DATA or beside the repository; skips where absent."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AGENTGYM_RTMC_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no shared data here; set AGENTGYM_RTMC_SHARED_DATA")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _interruptions_are_heard() -> None:
    """A shell's background job ignores Ctrl-C and so would all its children: the tests send it to theirs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
