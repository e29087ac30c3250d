"""`agentgym_rtmc/Terminal-v0`: small jobs on files and text, done by shell commands in a sandbox.

Invariants:
- Commands really run, each in namespaces of its own over the workspace (one that ran on the very same files before is
  answered from memory); nothing but files passes between turns.
- The reward is 1 in all when every change that the job asks for is there at the end and nothing else changed. Of that,
  `progress` is paid as it comes: after each turn the share of the changes that are there (less damage), minus what was
  paid for before; `solved` is the rest, at the end. What an agent prints or claims has no part in it.
- `info["files"]` has the digest of each path that differs from the start (None: gone): kind, permissions and content.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files
from string import Template
from typing import Any, Literal, get_args

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.environments.sandbox.base import MIB, ExecResult, SandboxSpec
from agentgym_rtmc.environments.sandbox.snapshot import EMPTY, SnapshotSandbox
from agentgym_rtmc.environments.terminal.files import changed_files, read_files
from agentgym_rtmc.environments.terminal.judging import judge
from agentgym_rtmc.errors import ConfigError, TaskError, nearest
from agentgym_rtmc.registration import split_loader
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/Terminal-v0"
SUBMIT = "submit"
Style = Literal["full", "compact"]
_LIMITS = {"memory_bytes": 256 * MIB, "processes": 32, "disk_bytes": 8 * MIB, "disk_files": 500}


@cache
def _prompt(style: Style) -> str:
    folder = package_files("agentgym_rtmc.environments.terminal").joinpath("prompts")
    return folder.joinpath(f"system-{style}-v1.txt").read_text(encoding="utf-8").strip()


class TerminalEnv(AgentEnv):
    """Options, beside `render_mode`:

    task_set, split, task_options: where `reset` takes tasks from when none is given. max_turns: the agent's budget.
    output_limit: most characters of a command's output that are shown. command_seconds: a command's time limit.
    turn_cost: subtracted from the reward each turn. progress: the share of the reward that is paid as work proceeds.
    look: a command that is run at the start, its output shown in the first observation; "" for none. memo: reuse
    results of commands that ran on the very same files before. style: `full`, or `compact` for small models.
    """

    def __init__(
        self,
        *,
        task_set: str = "jobs",
        split: str = "train",
        task_options: Mapping[str, Any] | None = None,
        max_turns: int = 12,
        output_limit: int = 2000,
        command_seconds: float = 5.0,
        turn_cost: float = 0.0,
        progress: float = 0.2,
        look: str = "",
        memo: bool = True,
        style: Style = "full",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split_loader(ENV_ID, task_set, split, task_options), max_turns, turn_cost, render_mode)
        if output_limit < 40:
            raise ConfigError(f"output_limit must be at least 40 characters, not {output_limit}")
        if not 0 < command_seconds <= 600:
            raise ConfigError(f"command_seconds must lie between 0 and 600, not {command_seconds}")
        if not 0 <= progress < 1:
            raise ConfigError(f"progress is a share of the reward, from 0 to below 1, not {progress}")
        if style not in get_args(Style):
            raise ConfigError(f"style {style!r} is unknown{nearest(style, get_args(Style))}")
        values = {"seconds": f"{command_seconds:g}", "turns": str(max_turns)}
        self.system_prompt = Template(_prompt(style)).substitute(values)
        self.protocol: TextProtocol = ShellProtocol()
        self._output_limit = output_limit
        self._look = look
        self._share = progress
        self._sandbox = SnapshotSandbox(SandboxSpec(timeout=command_seconds, **_LIMITS), memo=memo)
        self._start = EMPTY
        self._progress = 0.0

    def begin(self, task: Task) -> tuple[str, Info]:
        """Lay out the files; the first observation is the job."""
        statement = task.public.get("statement")
        if not isinstance(statement, str):
            raise TaskError(f"task {task.id!r} has no public 'statement' (text)")
        self._start = read_files(task.public.get("files"), task.id)
        self._sandbox.restore(self._start)
        self._progress = 0.0
        lines = [statement]
        if self._look:
            lines.append(clip(self._run(self._look).stdout.rstrip("\n"), self._output_limit))
            self._sandbox.restore(self._start)
        return "\n".join(lines), {"files": {}}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Run the one command of a turn."""
        command = calls[0].arguments.get("command") if len(calls) == 1 and calls[0].name == "shell" else None
        if not isinstance(command, str):
            return Reply("[one shell command a turn]")
        if command.strip() == SUBMIT:
            return Reply("[submitted]", terminated=True, info={"files": {**self._changed()}})
        before = self._sandbox.snapshot
        result = self._run(command)
        info: Info = {"files": {**self._changed()}, "exit_code": result.code}
        lines = [clip(result.stdout.rstrip("\n"), self._output_limit)] if result.stdout.strip() else []
        if result.note:
            lines.append(f"[{result.note}]")
            info["killed"] = result.note
        if not lines:
            lines = [f"[exit code {result.code}]" if result.code else "[ok]"]
        parts = {} if self._sandbox.snapshot is before else self._proceed()
        return Reply("\n".join(lines), parts, info=info)

    def grade(self) -> Mapping[str, float]:
        """Judge the files as they stand."""
        assert self._task is not None
        verdict = judge(self._task, self._start, self._sandbox.snapshot)
        return {"solved": (1.0 - self._share) * verdict.solved}

    def close(self) -> None:
        """Free the sandbox."""
        self._sandbox.close()

    def _proceed(self) -> dict[str, float]:
        """Pay for what is nearer to the job's end than before, or take back what no longer is."""
        assert self._task is not None
        progress = judge(self._task, self._start, self._sandbox.snapshot).progress
        gained, self._progress = progress - self._progress, progress
        return {"progress": self._share * gained} if gained and self._share else {}

    def _changed(self) -> dict[str, str | None]:
        return changed_files(self._start, self._sandbox.snapshot)

    def _run(self, command: str) -> ExecResult:
        return self._sandbox.exec(["bash", "-c", command], merge=True)


def clip(text: str, limit: int) -> str:
    """Shorten text to its head and tail with a note between; at most `limit` characters beside the note.

    >>> clip("abcdefghij", 4)
    'ab\\n[... 6 characters left out ...]\\nij'
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"
