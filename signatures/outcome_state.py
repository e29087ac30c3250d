"""The last test outcome as the state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.signatures.operations import Level, OperationsSignature
from agentgym_rtmc.signatures.test_outcomes import outcome_key


@dataclass(frozen=True)
class OutcomeState:
    """The last outcome's key; "" before any test ran."""

    key: str = ""


class TestOutcomesSignature:
    """State: the last test outcome. Action: the operation at the given level."""

    __test__ = False  # not a test class, whatever its name begins with

    def __init__(self, action: Level = "exact") -> None:
        self._operations = OperationsSignature(level=action)

    def start(self, opening: Opening) -> OutcomeState:
        """Return the state before any test ran."""
        return OutcomeState()

    def action_key(self, turn: Turn) -> str:
        """Name the turn by its operations."""
        return self._operations.action_key(turn)

    def advance(self, state: OutcomeState, turn: Turn) -> OutcomeState:
        """Take over the outcome of the turn's test run, if it had one."""
        key = outcome_key(turn)
        return replace(state, key=key) if key else state

    def state_key(self, state: OutcomeState) -> str:
        """Return the last outcome's key, `untested` before the first."""
        return state.key or "untested"
