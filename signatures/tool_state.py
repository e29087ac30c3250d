"""For tool-use tasks: the state is the environment's own digest of its database.

Invariants: the digest stands in `info[field]` of the opening and of turns; a turn without it leaves the state as it
was. With `observations` the last observation is part of the state, since an agent also acts on what it was told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.signatures.digests import bounded, short_digest, text_digest
from agentgym_rtmc.signatures.observation import normalised


@dataclass(frozen=True)
class ToolState:
    """`database`: the digest of the environment's state; `told`: the digest of the last observation, or ""."""

    database: str = "start"
    told: str = ""


class ToolStateSignature:
    """State: `info[field]`, a digest or any JSON value. Action: the calls by name and arguments, in canonical JSON.

    `observations=True` adds the last observation. Arguments named in `ignore` (ids made up by the agent, say) are left
    out of action keys.
    """

    def __init__(
        self, field: str = "database", observations: bool = False, ignore: tuple[str, ...] | list[str] = ()
    ) -> None:
        self._field = field
        self._observations = observations
        self._ignore = frozenset(ignore)

    def start(self, opening: Opening) -> ToolState:
        """Return the opening's digest, `start` where it has none."""
        return ToolState(self._digest(opening.info.get(self._field)) or "start")

    def action_key(self, turn: Turn) -> str:
        """Name the calls; free text is one action, `say`, since no two wordings are equal."""
        if not turn.calls:
            return "say"
        names = []
        for call in turn.calls:
            arguments = {key: value for key, value in call.arguments.items() if key not in self._ignore}
            names.append(f"{call.name}({json.dumps(arguments, sort_keys=True, ensure_ascii=False)})")
        return bounded("+".join(names), 400)

    def advance(self, state: ToolState, turn: Turn) -> ToolState:
        """Take over the turn's digest."""
        digest = self._digest(turn.info.get(self._field))
        told = text_digest(normalised(turn.observation), 8) if self._observations else ""
        return replace(state, database=digest or state.database, told=told)

    def state_key(self, state: ToolState) -> str:
        """Return the digest (and that of the last observation)."""
        return f"{state.database}/{state.told}" if state.told else state.database

    @staticmethod
    def _digest(value: Any) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) and len(value) <= 64 else short_digest(value)
