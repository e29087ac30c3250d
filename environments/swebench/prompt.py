"""What an agent is told: the system prompt of each interface, and the issue as the first observation.

Invariants: the texts are files with a version (`prompts/system-shell-v1.txt`), so that results can name what was said.
Only a task's public part is read; hints are told only where the task has them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template

from agentgym_rtmc.environments.swebench.tasks import has_hints
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.tasks import Task


@cache
def _template(name: str, version: str) -> Template:
    folder = files("agentgym_rtmc.environments.swebench").joinpath("prompts")
    try:
        return Template(folder.joinpath(f"{name}-{version}.txt").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = sorted(path.name.removesuffix(".txt") for path in folder.iterdir() if path.name.startswith(name))
        raise ConfigError(f"there is no prompt {name}-{version}; known: {', '.join(known) or 'none'}") from error


def system_prompt(
    interface: str,
    version: str,
    *,
    instructions: str,
    seconds: float,
    turns: int,
    tools: str = "",
    workdir: str = "/testbed",
) -> str:
    """The system prompt of the interface `shell` or `tools`.

    `instructions` are the protocol's, `tools` describes them, `seconds` limit a command, `turns` are the agent's
    budget. Raises ConfigError for an interface or version without a text.
    """
    values = {"instructions": instructions, "tools": tools, "workdir": workdir}
    text = _template(f"system-{interface}", version).substitute(values, seconds=f"{seconds:g}", turns=str(turns))
    return text.strip()


def first_observation(task: Task, version: str, workdir: str = "/testbed") -> str:
    """The issue, as the agent meets it. Raises TaskError naming what the task's public part lacks."""
    values = {"workdir": workdir, **{name: str(value) for name, value in task.public.items()}}
    try:
        text = _template("task", version).substitute(values)
        if has_hints(task):
            text += _template("hints", version).substitute(values)
    except KeyError as error:
        raise TaskError(f"task {task.id!r} has no public {error.args[0]!r}; make it with swebench's task_of") from error
    return text.strip()
