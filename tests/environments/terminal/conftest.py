"""Tasks and environments for the tests of Terminal. Tests that run commands skip where nothing can isolate them."""

import pytest

from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.terminal.env import TerminalEnv
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.tasks import Task

FILES = {
    "a.md": "one\n",
    "b.md": "two\n",
    "sub/c.md": "three\n",
    "keep.txt": "stay\n",
    "run.sh": {"text": "x\n", "mode": 493},
}
CHANGES = {
    "answer.txt": {"number": 3},
    "a.md": {"gone": True},
    "a.txt": "one\n",
}


def build_task(changes=None, files=None, statement="count the .md files, then rename a.md to a.txt"):
    """A small job of two steps."""
    return Task(
        id="job",
        public={"statement": statement, "files": files or FILES},
        private={"changes": changes or CHANGES, "solution": ["true"], "slips": []},
    )


@pytest.fixture(scope="session")
def make_task():
    """`build_task`, for tests."""
    return build_task


@pytest.fixture(scope="session")
def sandboxed():
    """Skips where commands cannot be isolated."""
    try:
        LocalSandbox().close()
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {str(error).splitlines()[0]}")


@pytest.fixture
def env(sandboxed):
    """An environment for tasks of one's own."""
    made = TerminalEnv()
    yield made
    made.close()


@pytest.fixture(scope="session")
def sh():
    """Returns a command as an action."""
    return lambda command: f"````sh\n{command}\n````"
