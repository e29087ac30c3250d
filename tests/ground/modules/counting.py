"""A small environment of a user's own: name the number that was asked for, by a tool or by `echo N`."""

from collections.abc import Mapping

from agentgym_rtmc import Call, Task, TaskSet, register_env
from agentgym_rtmc.calls import ShellProtocol, TextProtocol, ToolCallProtocol
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply


def load_numbers() -> TaskSet:
    """Numbers up to nine, small ones to train on."""
    tasks = [Task(id=f"number-{n}", public={"ask": f"say {n}"}, private={"number": n}) for n in range(9)]
    return TaskSet("numbers", {"train": tasks[:6], "heldout": tasks[6:]})


class CountingEnv(AgentEnv):
    """Reward 1 for the number asked for; `quit` ends the task."""

    system_prompt = "Say the number."

    def __init__(self, max_turns: int = 3, tools: bool = False, render_mode: str | None = None) -> None:
        super().__init__(load_numbers(), max_turns, render_mode=render_mode)
        self.protocol: TextProtocol = ToolCallProtocol() if tools else ShellProtocol()
        self._said = ""

    def begin(self, task: Task) -> tuple[str, Info]:
        """Ask."""
        self._said, self._number = "", task.private["number"]
        return str(task.public["ask"]), {}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Repeat what was said."""
        said = str(next(iter(calls[0].arguments.values())))
        if said == "quit":
            return Reply("bye", terminated=True)
        self._said = said
        return Reply(f"you said: {said}")

    def grade(self) -> Mapping[str, float]:
        """Compare."""
        return {"right": float(self._said == f"echo {self._number}")}

    def close(self) -> None:
        """Say so, for whoever watches."""
        print("[closed]")


register_env(
    "test/Counting-v0",
    "counting:CountingEnv",
    summary="say a number",
    task_sets={"numbers": "counting:load_numbers"},
)
