"""A tool-use task of one's own: find the shelf a parcel lies on, in as few looks as possible.

Try it:   agentgym-rtmc play examples.warehouse:shop/Warehouse-v0
Train it: agentgym-rtmc train examples/warehouse.toml
"""

from collections.abc import Generator, Mapping

import numpy as np

from agentgym_rtmc import Call, Task, TaskSet, register_env
from agentgym_rtmc.calls import Toolbox, ToolCallProtocol
from agentgym_rtmc.environments import AgentEnv, Info, Reply

SHELVES = 16


def load_tasks() -> TaskSet:
    """Make tasks: the parcel's shelf is private, so that neither prompts nor saved episodes can hold it."""

    def task(number: int) -> Task:
        shelf = int(np.random.default_rng(number).integers(1, SHELVES + 1))
        return Task(id=f"parcel-{number}", public={"shelves": SHELVES}, private={"shelf": shelf})

    return TaskSet("parcels", {"train": map(task, range(300)), "heldout": map(task, range(300, 400))})


class WarehouseEnv(AgentEnv):
    """`look` tells whether the parcel lies further left or right; `deliver` ends the episode, 1 for the right shelf."""

    system_prompt = (
        'Find the parcel, then deliver. Example: <tool_call>{"name": "look", "arguments": {"shelf": 3}}</tool_call>'
    )
    protocol = ToolCallProtocol()

    def __init__(self, max_turns: int = 5, render_mode: str | None = None) -> None:
        super().__init__(load_tasks, max_turns=max_turns, render_mode=render_mode)
        self._tools = Toolbox([self.look, self.deliver])

    def look(self, shelf: int) -> str:
        """Look at one shelf."""
        return "here" if shelf == self._shelf else "further right" if shelf < self._shelf else "further left"

    def deliver(self, shelf: int) -> str:
        """Take the parcel from this shelf and deliver it."""
        self._delivered = shelf
        return "delivered"

    def begin(self, task: Task) -> tuple[str, Info]:
        """Prepare an episode."""
        self._shelf, self._delivered = task.private["shelf"], None
        return f"The parcel lies on one of the shelves 1 to {task.public['shelves']}.", {}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        """Run the calls of a turn; wrong arguments come back to the agent as an observation."""
        results = self._tools.run(calls)
        return Reply("\n".join(result.text for result in results), terminated=self._delivered is not None)

    def grade(self) -> Mapping[str, float]:
        """Judge the end of the episode."""
        return {"delivered": float(self._delivered == self._shelf)}


def demonstrator(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Look about at random and deliver once the parcel was seen: an imperfect start for the policy to learn from."""
    low, high = 1, SHELVES
    while True:
        shelf = int(rng.integers(low, high + 1))
        seen = yield ToolCallProtocol().render(Call(name="look", arguments={"shelf": shelf}))
        if "here" in seen or rng.random() < 0.15:
            yield ToolCallProtocol().render(Call(name="deliver", arguments={"shelf": shelf}))
        elif rng.random() < 0.5:  # often forgets what it was told
            low, high = (shelf + 1, high) if "right" in seen else (low, shelf - 1)


register_env(
    "shop/Warehouse-v0",
    "examples.warehouse:WarehouseEnv",
    summary="find a parcel on one of sixteen shelves with two tools",
    task_sets={"parcels": "examples.warehouse:load_tasks"},
    demonstrator="examples.warehouse:demonstrator",
)
