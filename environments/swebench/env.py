"""SWE-bench as an environment: an issue, a repository in a container of its own, and a hidden grading at the end.

Invariants:
- Commands run as the agent's user in an image without history or hidden tests and without network; the project's
  environment is active.
- The reward is what `grader.py` says of the agent's patch in a container that the agent has never seen: 1 for resolved
  and not tampered, else 0. `fail_to_pass` and `pass_to_pass` are parts of the reward, of weight 0 unless set.
- `info["files"]` has the digest of each file that differs from the start (None: deleted), `info["tests"]` what a test
  runner's summary said in this turn. At the end `info["patch"]` is the agent's patch, `info["grade"]` its verdict in
  numbers. No name of a hidden test is in either.
- A budget of seconds depends on the machine; equal actions give equal answers as long as it is not used up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.calls.tools import render_results
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.environments.sandbox.base import Sandbox
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.environments.swebench.grading_store import GradingStore
from agentgym_rtmc.environments.swebench.image import prepare_image
from agentgym_rtmc.environments.swebench.limits import GRADING_SECONDS, ContainerLimits
from agentgym_rtmc.environments.swebench.observation import Limits, clip, estimate_tokens
from agentgym_rtmc.environments.swebench.outcomes import read_outcomes
from agentgym_rtmc.environments.swebench.prompt import first_observation, system_prompt
from agentgym_rtmc.environments.swebench.repository import Repository
from agentgym_rtmc.environments.swebench.tasks import row_of
from agentgym_rtmc.environments.swebench.tools import RepositoryTools, describe_result
from agentgym_rtmc.errors import ConfigError, ToolError
from agentgym_rtmc.registration import split_loader
from agentgym_rtmc.tasks import Task

Interface = Literal["shell", "tools"]
SUBMIT = "submit"


class SWEBenchEnv(AgentEnv):
    """Options, beside `render_mode`:

    env_id, task_set, split, task_options: where `reset` takes tasks from when none is given. interface: `shell` (one
    command a turn) or `tools` (bash, editor, submit). max_turns, max_tokens (of actions and observations together, as
    `observation.estimate_tokens` counts; 0: any number), max_seconds: the agent's budgets. command_seconds: a command's
    time limit. grading_seconds: that of set-up, and of the tests, apart from the agent's. observation_bytes,
    observation_tokens: what of a turn's output is shown. weights: of the reward's parts `fail_to_pass` and
    `pass_to_pass`. container, grading_container: fields of `limits.ContainerLimits`. gradings: a folder in which
    gradings are kept, so that an equal patch is not graded twice. prompt: version of the texts.
    """

    def __init__(
        self,
        *,
        env_id: str = "agentgym_rtmc/SWEBench-v0",
        task_set: str = "",
        split: str = "test",
        task_options: Mapping[str, Any] | None = None,
        interface: Interface = "shell",
        max_turns: int = 100,
        max_tokens: int = 0,
        max_seconds: float = 3600.0,
        command_seconds: float = 180.0,
        grading_seconds: float = GRADING_SECONDS,
        observation_bytes: int = 16_000,
        observation_tokens: int = 4_000,
        turn_cost: float = 0.0,
        weights: Mapping[str, float] | None = None,
        container: Mapping[str, Any] | None = None,
        grading_container: Mapping[str, Any] | None = None,
        gradings: str | Path | None = None,
        prompt: str = "v1",
        render_mode: str | None = None,
    ) -> None:
        tasks = split_loader(env_id, task_set or None, split, task_options)
        super().__init__(tasks, max_turns, turn_cost, render_mode)
        for name, value in (("max_seconds", max_seconds), ("command_seconds", command_seconds)):
            if not 0 < value <= 86_400:
                raise ConfigError(f"{name} must lie between 0 and 86400, not {value}")
        if not 0 < grading_seconds <= 86_400:
            raise ConfigError(f"grading_seconds must lie between 0 and 86400, not {grading_seconds}")
        if max_tokens < 0 or min(observation_bytes, observation_tokens) < 40:
            raise ConfigError("max_tokens must be 0 or more, observation_bytes and observation_tokens at least 40")
        if interface not in ("shell", "tools"):
            raise ConfigError(f"interface must be shell or tools, not {interface!r}")
        self._weights = {"fail_to_pass": 0.0, "pass_to_pass": 0.0, **(weights or {})}
        if len(self._weights) > 2:
            raise ConfigError(f"weights are for fail_to_pass and pass_to_pass, not for {', '.join(self._weights)}")
        self._interface = interface
        self._limits = _limits(container, "container")
        self._grading_limits = _limits(grading_container, "grading_container")
        self._max_tokens, self._max_seconds = max_tokens, max_seconds
        self._command_seconds, self._grading_seconds = command_seconds, grading_seconds
        self._shown = Limits(observation_bytes, observation_tokens)
        self._store = GradingStore(Path(gradings) if gradings is not None else None)
        self.protocol: TextProtocol = ShellProtocol() if interface == "shell" else ToolCallProtocol()
        self._prompt = prompt
        described = RepositoryTools.describe() if interface == "tools" else ""
        self.system_prompt = system_prompt(
            interface,
            prompt,
            instructions=self.protocol.instructions(),
            seconds=command_seconds,
            turns=max_turns,
            tools=described,
        )
        self._sandbox: Sandbox | None = None
        self._repository: Repository | None = None
        self._tools: RepositoryTools | None = None
        self._used_tokens = 0
        self._deadline = 0.0
        self._last: Info = {}

    def begin(self, task: Task) -> tuple[str, Info]:
        """Start a container of the agent's image; the first observation is the issue."""
        self._end_sandbox()
        first = first_observation(task, self._prompt)
        image = prepare_image(row_of(task), "agent")
        self._sandbox = open_sandbox(self._limits.agent(image.name, self._command_seconds, self._max_seconds))
        self._repository = Repository(self._sandbox)
        self._tools = RepositoryTools(self._sandbox, Repository.shell)
        self._used_tokens = estimate_tokens(self.system_prompt) + estimate_tokens(first)
        self._deadline = time.monotonic() + self._max_seconds
        self._last = {}
        return first, {"files": {}}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Carry out the calls of one turn."""
        assert self._tools is not None and self._repository is not None
        shell = self._interface == "shell"
        text = self._shell(calls) if shell else render_results(self._tools.toolbox.run(calls))
        files = self._repository.changes()
        info: Info = {"files": dict(files) if files is not None else None}
        if (last := self._tools.take_last()) is not None:
            info["exit_code"] = last.code
            if last.note:
                info["killed"] = last.note
            tests = read_outcomes(last.stdout)
            if tests is not None:
                info["tests"] = tests
        return Reply(clip(text, self._shown), terminated=self._tools.submitted, info=info)

    def _shell(self, calls: tuple[Call, ...]) -> str:
        assert self._tools is not None
        command = calls[0].arguments.get("command") if len(calls) == 1 and calls[0].name == "shell" else None
        if not isinstance(command, str):
            return "[one shell command a turn]"
        if command.strip() == SUBMIT:
            return f"[{self._tools.submit()}]"
        try:
            return describe_result(self._tools.run(command))
        except ToolError as error:
            return f"[{error}]"

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """See `AgentEnv`. Past a budget of tokens or seconds the episode ends, graded as it stands."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            return observation, reward, terminated, truncated, info
        if isinstance(action, str):
            self._used_tokens += estimate_tokens(action)
        self._used_tokens += estimate_tokens(observation)
        reason = ""
        if self._max_tokens and self._used_tokens >= self._max_tokens:
            reason = "tokens"
        elif time.monotonic() >= self._deadline:
            reason = "seconds"
        if not reason:
            return observation, reward, terminated, truncated, info
        ending, more, terminated, truncated, last = self.finish(reason)
        told: Info = {**info, **last}
        before, after = info.get("reward"), last.get("reward")
        if isinstance(before, dict) and isinstance(after, dict):
            told["reward"] = {**before, **after}
        return f"{observation}\n{ending}", reward + more, terminated, truncated, told

    def grade(self) -> Mapping[str, float]:
        """Take the patch out of the sandbox, end that, and have the patch graded elsewhere."""
        assert self._task is not None and self._repository is not None
        data = self._repository.patch()
        self._end_sandbox()
        patch = (data or b"").decode("utf-8", "surrogateescape")
        done = self._store.grade(row_of(self._task), patch, limits=self._grading_limits, seconds=self._grading_seconds)
        grade = done.run.grade
        shares = dict(zip(("fail_to_pass", "pass_to_pass"), grade.shares, strict=True))
        self._last = {
            "patch": patch.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
            "grade": {
                "resolved": grade.resolved,
                "tampered": grade.tampered,
                "applied": bool(done.run.report["patch_successfully_applied"]),
                "fail_to_pass": list(grade.fail_to_pass),
                "pass_to_pass": list(grade.pass_to_pass),
                "refused": len(done.patch.refused),
                "left_out": len(done.patch.dropped),
                "collected": data is not None,
            },
        }
        return {"solved": grade.reward, **{name: self._weights[name] * share for name, share in shares.items()}}

    def _answer(
        self, observation: str, parts: dict[str, float], terminated: bool, truncated: bool, info: Info, reason: str
    ) -> tuple[str, float, bool, bool, Info]:
        if terminated or truncated:
            info = {**info, **self._last}
        return super()._answer(observation, parts, terminated, truncated, info, reason)

    def close(self) -> None:
        """Remove the container."""
        self._over = True
        self._end_sandbox()

    def _end_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()


def _limits(given: Mapping[str, Any] | None, name: str) -> ContainerLimits:
    try:
        return ContainerLimits.model_validate(dict(given or {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
