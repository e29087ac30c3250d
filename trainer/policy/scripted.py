"""A policy that plays a registered player: for tests, baselines and demonstrations.

Invariants: every episode has a player of its own, started by `start_episode` with the task's private part; turns are
text only. A player that ends before its episode does gives empty actions from then on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from agentgym_rtmc.errors import RegistrationError
from agentgym_rtmc.registration import Player, find_env, load
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.base import Completion, SampleKey, SamplingParams
from agentgym_rtmc.trainer.transcript import Conversation


class ScriptedPolicy:
    """Plays `player` in every conversation; `seed` goes into the players' random numbers beside the episode's own."""

    def __init__(self, player: Player, seed: int = 0) -> None:
        self.max_context: int | None = None
        self._player = player
        self._seed = seed
        self._games: dict[str, Generator[str, str, None]] = {}
        self._started: set[str] = set()

    @classmethod
    def of(cls, env_id: str, player: str = "reference", seed: int = 0) -> ScriptedPolicy:
        """The `reference` or `demonstrator` registered with an environment. Raises RegistrationError if it has none."""
        entry = find_env(env_id)
        name = {"reference": entry.reference, "demonstrator": entry.demonstrator}.get(player)
        if name is None:
            raise RegistrationError(
                f"{entry.id} has no {player!r} player; register one with register_env({player}=...)"
            )
        return cls(load(name), seed)

    def start_episode(self, session: str, task: Task, observation: str, seed: int) -> None:
        """Begin to play; called once an episode is reset, from any thread."""
        rng = np.random.default_rng([self._seed, seed])
        self._games[session] = self._player(task, observation, rng)

    def end_episode(self, session: str) -> None:
        """Stop playing."""
        self._started.discard(session)
        game = self._games.pop(session, None)
        if game is not None:
            game.close()

    def complete(
        self, conversations: Sequence[Conversation], keys: Sequence[SampleKey], params: SamplingParams
    ) -> list[Completion]:
        """Take the next action of each conversation's player."""
        return [Completion(self._next(conversation), "stop") for conversation in conversations]

    def _next(self, conversation: Conversation) -> str:
        session = conversation.session
        if session not in self._games:
            raise KeyError(f"episode {session!r} was not announced: a scripted policy needs start_episode")
        try:
            if session in self._started:
                return self._games[session].send(conversation.messages[-1]["content"])
            self._started.add(session)
            return next(self._games[session])
        except StopIteration:
            return ""

    def close(self) -> None:
        """Stop all players."""
        for session in list(self._games):
            self.end_episode(session)
