"""A small environment for the trainer's tests: say the word that is asked for. Registered as `tests/Echo-v0`.

A task's `trouble` makes the environment misbehave in a chosen way; `ENDED` and `OPEN` count what happens to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.base import AgentEnv, Info, Reply
from agentgym_rtmc.episodes import EpisodeGroup
from agentgym_rtmc.errors import ProtocolError, SandboxError, SandboxUnavailableError
from agentgym_rtmc.registration import register_env
from agentgym_rtmc.tasks import Task, TaskSet

FIRST, SECOND, OTHERS = "abcdefghijklmnop", "ab", "abcdefgh"
HANGS = 30.0
OPEN: set[int] = set()
FAILURES: dict[str, int] = {}


class Word:
    """The whole text is the action."""

    name = "word"
    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> tuple[Call, ...]:
        if not text.strip():
            raise ProtocolError("say something")
        return (Call(name="say", arguments={"word": text.strip()}),)

    def render(self, call: Call) -> str:
        return str(call.arguments["word"])

    def instructions(self) -> str:
        return "Say it."


class EchoEnv(AgentEnv):
    """Half a point for every letter that is right in the last answer."""

    system_prompt = "Say it."
    protocol = Word()

    def __init__(self, max_turns: int = 3, seconds: float = 0.0, render_mode: str | None = None) -> None:
        super().__init__(load_tasks, max_turns, render_mode=render_mode)
        self._seconds = seconds
        self._said = ""
        OPEN.add(id(self))

    def begin(self, task: Task) -> tuple[str, Info]:
        self._said = ""
        self._misbehave("reset")
        return f"say {task.public['word']}", {}

    def act(self, calls: tuple[Call, ...]) -> Reply:
        assert self.task is not None
        time.sleep(self._seconds)
        self._misbehave("step")
        self._said = str(calls[0].arguments["word"])
        right = self._said == self.task.private["answer"]
        return Reply("yes" if right else f"not {self._said}", terminated=right)

    def grade(self) -> Mapping[str, float]:
        assert self.task is not None
        answer = str(self.task.private["answer"])
        return {"letters": sum(a == b for a, b in zip(self._said, answer, strict=False)) / len(answer)}

    def close(self) -> None:
        OPEN.discard(id(self))
        assert self.task is None or self.task.public.get("trouble") != "close", "cannot be closed"

    def _misbehave(self, where: str) -> None:
        assert self.task is not None
        trouble = self.task.public.get("trouble")
        if trouble == f"hang in {where}":
            time.sleep(HANGS)
        elif trouble == f"machine in {where}":
            raise SandboxError("the sandbox died")
        elif trouble == f"once in {where}" and not FAILURES.setdefault(self.task.id, 0):
            FAILURES[self.task.id] += 1
            raise SandboxError("the sandbox died once")
        elif trouble == f"bug in {where}":
            raise ValueError("nobody thought of this")
        elif trouble == "nan" and where == "step":
            self.turn_cost = float("nan")
        elif trouble == "no sandbox":
            raise SandboxUnavailableError("there are no namespaces here")


def make_task(word: str, **public: Any) -> Task:
    return Task(
        id=word + "".join(f"-{value}" for value in public.values()),
        public={"word": word, **public},
        private={"answer": word},
    )


def load_tasks(empty: bool = False) -> TaskSet:
    words = [f"{a}{b}" for a in FIRST for b in SECOND]
    heldout = words[::5]
    return TaskSet(
        "words",
        {
            "train": [make_task(word) for word in words if word not in heldout],
            "heldout": [] if empty else [make_task(word) for word in heldout],
        },
    )


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    yield str(task.private["answer"])


def demonstrator(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Right in a third of the turns, else another word, most often one that no task asks for."""
    while True:
        yield str(task.private["answer"]) if rng.random() < 0.3 else rng.choice(list(FIRST)) + rng.choice(list(OTHERS))


def write_report(
    groups: Sequence[EpisodeGroup], tasks: Sequence[Task], folder: Path, agent: str, options: Mapping[str, Any]
) -> list[Path]:
    path = folder / "report.json"
    path.write_text(json.dumps({"agent": agent, "episodes": sum(len(group.episodes) for group in groups)}))
    return [path]


register_env(
    "tests/Echo-v0",
    "echo_env:EchoEnv",
    task_sets={"words": "echo_env:load_tasks"},
    reference="echo_env:reference",
    demonstrator="echo_env:demonstrator",
    reporter="echo_env:write_report",
    default_signature="observation",
)
