"""Tasks and environments for the tests of CodeRepair. Tests that run commands skip where nothing can isolate them."""

import pytest

from agentgym_rtmc.environments.code_repair import driver
from agentgym_rtmc.environments.code_repair.cases import parse_call
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.code_repair.factory import make_task as make_tested
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


VISIBLE = "def test_1():\n    assert add(1, 2) == 3\n\n\ndef test_2():\n    assert add(0, 0) == 0\n"
HIDDEN = (
    VISIBLE
    + """

def test_negative():
    result = add(5, -3)
    expected = 2
    assert result == expected
    assert not add(-4, 4)


def test_many():
    for a in range(3):
        assert add(a, 7) == 7 + a
    assert abs(add(0.5, 1) - 1.5) < 1e-6
"""
)


def build_tested(mode, original=ADD, buggy="def add(a, b):\n    return a - b\n", hidden=HIDDEN, visible=VISIBLE):
    """A task judged by assert code."""
    return make_tested(
        f"tested/{mode}",
        files={"m.py": buggy},
        reference=original,
        visible=visible,
        hidden=hidden,
        entry=["add"],
        statement="add two numbers",
        mode=mode,
    )


@pytest.fixture(scope="session")
def task_of():
    """Returns the task of adding, graded in one of three ways."""
    return lambda kind: build_task() if kind == "cases" else build_tested(kind)


@pytest.fixture(scope="session")
def make_tested_task():
    """`build_tested`, for tests."""
    return build_tested


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
