"""`agentgym_rtmc/CodeRepair-v0`: a small program with one planted bug, repaired by shell commands.

Invariants:
- Commands really run, each in namespaces of its own over the workspace (one that ran on the very same files before is
  answered from memory); nothing but files passes between turns.
- The reward is 1 when all hidden cases are right at the end (submitted or out of turns), else 0, less `turn_cost` a
  turn, and `idle_cost` for an edit that changed nothing or led to a state that was there before and for each turn that
  was left when the agent gave up. It is judged by `grading.py` from the text of `m.py`; nothing else counts.
- `info["files"]` has the digest of each file that differs from the start (None: deleted), `info["tests"]` what the
  visible tests printed when they ran in this turn: advisory, an agent can print what it likes; `info["edit"]` is true
  where the command was meant to change files, `info["idle"]` where it then changed nothing or led back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.environments.code_repair.grading import judge
from agentgym_rtmc.environments.code_repair.repairs import REVERT
from agentgym_rtmc.environments.code_repair.workspace import (
    PROGRAM,
    changed_files,
    reverts_to_start,
    start_snapshot,
    system_prompt,
)
from agentgym_rtmc.environments.sandbox.base import MIB, ExecResult, SandboxSpec, WorkspacePathError
from agentgym_rtmc.environments.sandbox.snapshot import EMPTY, SnapshotSandbox
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.registration import split_loader
from agentgym_rtmc.tasks import Task

ENV_ID = "agentgym_rtmc/CodeRepair-v0"
SUBMIT = "submit"
_LIMITS = {"memory_bytes": 256 * MIB, "processes": 32, "disk_bytes": 8 * MIB, "disk_files": 500}
# Commands that are meant to change files; redirections to a descriptor or of one are not.
_EDITING = re.compile(r"\bsed\b[^|;&]* -\w*i|(?<!\d)>(?!&)|\b(?:tee|patch|mv|cp|rm|ed|dd|truncate|git apply)\b")
_OWN_TESTS = re.compile(r"^(\d{1,4})/(\d{1,4}) (?:PASS|FAIL)", re.MULTILINE)
_PYTEST = re.compile(r"\b(\d{1,4}) (passed|failed|error)")


class CodeRepairEnv(AgentEnv):
    """Options, beside `render_mode`:

    task_set, split, task_options: where `reset` takes tasks from when none is given. max_turns: the agent's budget.
    output_limit: most characters of a command's output that are shown. command_seconds: a command's time limit.
    turn_cost: subtracted from the reward each turn. notes: tell when an edit changed nothing or led to a state that was
    there before. idle_cost: subtracted for each such edit and, in an episode that ends unsolved, for each turn left.
    look: a command that is run at the start, its output shown in the first observation; "" for none.
    memo: reuse results of commands that ran on the very same files before.
    """

    def __init__(
        self,
        *,
        task_set: str = "builtin",
        split: str = "train",
        task_options: Mapping[str, Any] | None = None,
        max_turns: int = 8,
        output_limit: int = 600,
        command_seconds: float = 5.0,
        turn_cost: float = 0.0,
        notes: bool = True,
        idle_cost: float = 0.0,
        look: str = "",
        memo: bool = True,
        prompt: str = "v1",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split_loader(ENV_ID, task_set, split, task_options), max_turns, turn_cost, render_mode)
        if output_limit < 40:
            raise ConfigError(f"output_limit must be at least 40 characters, not {output_limit}")
        if not 0 <= idle_cost < math.inf:
            raise ConfigError(f"idle_cost must be a number from 0 on, not {idle_cost}")
        if not 0 < command_seconds <= 600:
            raise ConfigError(f"command_seconds must lie between 0 and 600, not {command_seconds}")
        self.system_prompt = system_prompt(prompt, seconds=f"{command_seconds:g}", turns=str(max_turns))
        self.protocol: TextProtocol = ShellProtocol()
        self._output_limit = output_limit
        self._notes = notes
        self._idle_cost = idle_cost
        self._look = look
        spec = SandboxSpec(timeout=command_seconds, **_LIMITS)
        self._sandbox = SnapshotSandbox(spec, memo=memo)
        self._start = EMPTY
        self._states: dict[tuple[tuple[str, str | None], ...], int] = {}

    def begin(self, task: Task) -> tuple[str, Info]:
        """Lay out the workspace; the first observation is what `m.py` should do and the list of files."""
        self._start = start_snapshot(task)
        self._sandbox.restore(self._start)
        self._states = {(): 0}
        files = " ".join(path for path in self._start if not path.startswith(".git"))
        lines = [f"{PROGRAM}: {task.public.get('statement', '')}", f"files: {files}"]
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
            files = changed_files(self._start, self._sandbox.snapshot)
            return Reply("[submitted]", terminated=True, info={"files": dict(files)})
        before = self._sandbox.snapshot
        result = self._run(command)
        files = changed_files(self._start, self._sandbox.snapshot)
        info: Info = {"files": dict(files), "exit_code": result.code}
        tests = read_tests(command, result.stdout)
        if tests is not None:
            info["tests"] = tests
        lines = [clip(result.stdout.rstrip("\n"), self._output_limit)] if result.stdout.strip() else []
        if result.note:
            lines.append(f"[{result.note}]")
            info["killed"] = result.note
        reward: Mapping[str, float] = {}
        if _EDITING.search(command):
            info["edit"] = True
            if note := self._note(files, unchanged=self._sandbox.snapshot == before):
                info["idle"] = True
                lines += note if self._notes else ()
                reward = {"idle": -self._idle_cost} if self._idle_cost else {}
        self._states.setdefault(tuple(sorted(files.items())), self._turns)
        if not lines:
            lines = [f"[exit code {result.code}]" if result.code else "[ok]"]
        return Reply("\n".join(lines), reward, info=info)

    def grade(self) -> Mapping[str, float]:
        """Judge `m.py` as it stands."""
        assert self._task is not None
        try:
            program = self._sandbox.read(PROGRAM)
        except WorkspacePathError:  # deleted, or a link or folder in its place: the agent's doing
            program = None
        solved = judge(self._task, program).solved
        left = self.max_turns - self._turns
        # Else the cheapest way to make no idle edit would be to give up.
        unused = {"unused": -self._idle_cost * left} if self._idle_cost and left and not solved else {}
        return {"solved": float(solved), **unused}

    def close(self) -> None:
        """Free the sandbox."""
        self._sandbox.close()

    def _run(self, command: str) -> ExecResult:
        # Reverting first makes a command's effect the same as at the start, where its result is likelier to be known.
        if command.startswith(f"{REVERT} && ") and reverts_to_start(self._start, self._sandbox.snapshot):
            self._sandbox.restore(self._start)
        return self._sandbox.exec(["sh", "-c", command], merge=True)

    def _note(self, files: Mapping[str, str | None], unchanged: bool) -> Sequence[str]:
        """Tell that an edit led nowhere, or where the agent has been before."""
        turn = self._states.get(tuple(sorted(files.items())))
        if unchanged or turn == 0:
            return ["[nothing changed]"]
        return [] if turn is None else [f"[same files as after turn {turn}]"]


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


def read_tests(command: str, output: str) -> JsonValue:
    """Read the last outcome of the visible tests from a command's output; None when they did not run.

    >>> read_tests("python t.py", "4/6 FAIL f(1) got 2 want 3")
    {'passed': 4, 'total': 6}
    """
    if "t.py" not in command and "pytest" not in command:
        return None
    own = _OWN_TESTS.findall(output)
    if own:
        passed, total = map(int, own[-1])
        return {"passed": passed, "total": total}
    if "pytest" in command:
        counts = {word: int(number) for number, word in _PYTEST.findall(output)}
        if counts:
            return {"passed": counts.get("passed", 0), "total": sum(counts.values())}
    return None
