"""Scripted agents for Terminal: one that knows the commands, one that often slips, one that types at random.

Invariant: all are functions of (task, observations, rng). Actions are in the environment's own protocol.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.terminal.env import SUBMIT
from agentgym_rtmc.environments.terminal.jobs import ANSWER
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

_PROTOCOL = ShellProtocol()
_LOOKS = ("ls -a", "ls -la", "find .", "head -n 3 *")
_ANYTHING = (
    *_LOOKS,
    f"ls | wc -l > {ANSWER}",
    f"ls | head -n 1 > {ANSWER}",
    f"find . -type f > {ANSWER}",
    "chmod -R 755 .",
    "rm *",
    "mv * /tmp",
    "cat *",
    "sort *",
    "tar czf backup.tar.gz *",
    SUBMIT,
)


def write_action(command: str) -> str:
    """Return a command as the text of an action."""
    return _PROTOCOL.render(Call(name="shell", arguments={"command": command}))


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Run the commands that do the job, then submit."""
    for command in commands_of(task, "solution"):
        yield write_action(command)
    yield write_action(SUBMIT)


def demonstrator(
    task: Task,
    observation: str,
    rng: np.random.Generator,
    *,
    look: float = 0.6,
    slip: float = 0.35,
    mend: float = 0.4,
    give_up: float = 0.05,
) -> Generator[str, str, None]:
    """Look around, then do the job step by step, not always well.

    `look` is the probability of a look first, `slip` that a step is done by a command that does it wrong, `mend` that
    the right one follows it (which does not undo damage), `give_up` that nothing more is done after a step.
    """
    slips = commands_of(task, "slips")
    if rng.random() < look:
        yield write_action(_LOOKS[int(rng.integers(len(_LOOKS)))])
    solution = commands_of(task, "solution")
    for number, command in enumerate(solution):
        if slips and rng.random() < slip:
            # Slips stand in the order of the steps, equally many for each or nearly so.
            near = number * len(slips) // len(solution)
            yield write_action(slips[min(near + int(rng.integers(2)), len(slips) - 1)])
            if rng.random() >= mend:
                continue
        yield write_action(command)
        if rng.random() < give_up:
            break
    yield write_action(SUBMIT)


def random_player(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Run commands that have nothing to do with the job; one in fourteen is to submit."""
    while True:
        yield write_action(_ANYTHING[int(rng.integers(len(_ANYTHING)))])


def commands_of(task: Task, name: str) -> list[str]:
    """The private `solution` or `slips` of a task. Raises TaskError for a task without them."""
    commands = task.private.get(name)
    if not isinstance(commands, list):
        raise TaskError(f"task {task.id!r} has no private {name!r} (a list of commands); players need it")
    return [str(command) for command in commands]
