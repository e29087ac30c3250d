"""Tasks and environments for the tests of CodeRepair. Tests that run commands skip where nothing can isolate them."""

import pytest

from agentgym_rtmc.environments.code_repair import driver
from agentgym_rtmc.environments.code_repair.cases import parse_call
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.tasks import Task

ADD = "def add(a, b):\n    return a + b\n"
CALLS = [f"add({a}, {b})" for a, b in ((1, 2), (0, 0), (5, -3), (2, 2), (7, 1), (-4, -4), (10, 20), (3, 9))]


def build_task(original=ADD, buggy="def add(a, b):\n    return a - b\n", calls=CALLS, visible=4, name="task"):
    """A task whose expected values come from the original."""
    data = [parse_call(text) for text in calls]
    expected = driver.run_job({"source": original, "calls": data})
    shown = [[call, value] for call, value in zip(data, expected, strict=True)][:visible]
    return Task(
        id=name,
        public={"statement": "add two numbers", "source": buggy, "visible": shown},
        private={"original": original, "calls": data, "expected": expected},
    )


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
    made = CodeRepairEnv()
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_task():
    """`build_task`, for tests."""
    return build_task


@pytest.fixture(scope="session")
def sh():
    """Returns a command as an action."""
    return lambda command: f"````sh\n{command}\n````"


@pytest.fixture
def play(env, sh):
    """Runs commands on a task and submits; returns the total reward and all observations."""

    def run(*commands, task=None):
        env.reset(seed=0, options={"task": task or build_task()})
        total, seen = 0.0, []
        for command in (*commands, "submit"):
            observation, reward, terminated, _, _ = env.step(sh(command))
            total += reward
            seen.append(observation)
        assert terminated
        return total, seen

    return run
