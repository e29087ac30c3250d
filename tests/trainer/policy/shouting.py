"""A small environment for these tests: say the letters of the task in capitals. Registered as `tests/Shouting-v0`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.errors import ProtocolError
from agentgym_rtmc.tasks import Task, TaskSet

WORDS = [f"{a} {b}" for a in "abcdefgh" for b in "abcdefgh"]


class OneWord:
    """The whole text is what is said."""

    name = "one-word"
    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> tuple[Call, ...]:
        if not text.strip():
            raise ProtocolError("say something")
        return (Call(name="say", arguments={"word": text.strip()}),)

    def render(self, call: Call) -> str:
        return str(call.arguments["word"])

    def instructions(self) -> str:
        return "Say it."


class Shouting(AgentEnv):
    def __init__(self, max_turns: int = 4, render_mode: str | None = None) -> None:
        super().__init__(load_tasks(), max_turns, render_mode=render_mode)
        self.system_prompt = "Say the letters in capitals, nothing else."
        self.protocol = OneWord()
        self._right = False

    def begin(self, task: Task) -> tuple[str, Info]:
        self._right = False
        return f"now: {task.public['word']}", {}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        assert self._task is not None
        said = str(calls[0].arguments["word"])
        self._right = said == self._task.private["answer"]
        return Reply("right" if self._right else f"not {said}", terminated=self._right)

    def grade(self) -> Mapping[str, float]:
        return {"right": float(self._right)}


def load_tasks(**options: Any) -> TaskSet:
    return TaskSet("words", {"train": [Task(id=w, public={"word": w}, private={"answer": w.upper()}) for w in WORDS]})


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    yield str(task.private["answer"])


def demonstrator(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    while rng.random() < 0.4:
        yield str(task.public["word"])
    yield str(task.private["answer"])
