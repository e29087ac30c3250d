"""The commands signature: actions are canonical commands and calls, states what commands have been given.

Invariants: linear, whatever the history; keys of long commands are cut and digested, so keys are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.errors import SignatureError
from agentgym_rtmc.signatures.digests import bounded, text_digest
from agentgym_rtmc.signatures.growing import GrowingSet
from agentgym_rtmc.signatures.shell_commands import DEFAULT_ROOT
from agentgym_rtmc.signatures.tools import canonical_call

History = Literal["set", "order", "last"]


@dataclass(frozen=True)
class Given:
    """Commands given so far: their set, or a digest of their order, or the last one."""

    commands: GrowingSet = field(default_factory=GrowingSet)
    digest: str = "start"


class CommandsSignature:
    """State: the canonical commands so far. Action: the turn's canonical command.

    `history`: `set` forgets order and repetition, `order` keeps both, `last` keeps the last command only.
    """

    def __init__(self, history: History = "set", root: str = DEFAULT_ROOT) -> None:
        if history not in ("set", "order", "last"):
            raise SignatureError(f"history {history!r} is none of 'set', 'order', 'last'")
        self._history = history
        self._root = root

    def start(self, opening: Opening) -> Given:
        """Return the state before any command."""
        return Given()

    def action_key(self, turn: Turn) -> str:
        """The canonical command, `unparsed` where no call could be read."""
        if not turn.calls:
            return "unparsed"
        return bounded("; ".join(canonical_call(call, self._root) for call in turn.calls))

    def advance(self, state: Given, turn: Turn) -> Given:
        """Add the turn's command."""
        key = self.action_key(turn)
        if self._history == "set":
            commands = state.commands.with_item((key,))
            return state if commands is state.commands else Given(commands, f"{commands.total:016x}")
        if self._history == "last":
            return Given(digest=text_digest(key))
        return Given(digest=text_digest(f"{state.digest}\n{key}"))

    def state_key(self, state: Given) -> str:
        """Return the digest of the history."""
        return state.digest
