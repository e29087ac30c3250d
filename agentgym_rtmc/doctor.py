"""A registry of machine checks that every room fills, shown by `agentgym-rtmc doctor`.

Invariants: a check never raises and changes nothing; a failed one says how to mend it. Rooms register lazily.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym_rtmc.registration import load

Status = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Check:
    """One finding. `note` = works with a limitation; `missing` = something will not work until `fix` is done."""

    name: str
    status: Status
    detail: str
    fix: str = ""


_CHECKERS: dict[str, str] = {
    "machine": "agentgym_rtmc.machine:checks",
    "sandbox": "agentgym_rtmc.environments.sandbox.doctor:checks",
    "containers": "agentgym_rtmc.environments.sandbox.docker.doctor:checks",
}


def register_checks(room: str, checker: str) -> None:
    """Register `module:function` returning an iterable of checks, under a room's name."""
    _CHECKERS[room] = checker


def run_checks() -> dict[str, list[Check]]:
    """Run all registered checks by room. A checker that cannot be imported or raises becomes a `missing` finding.

    What a checker yielded before it raised is kept.
    """
    results: dict[str, list[Check]] = {}
    for room, checker in _CHECKERS.items():
        found = results[room] = []
        try:
            for check in load(checker)():
                found.append(check)
        except Exception as error:  # noqa: BLE001 - a doctor that dies of the illness helps nobody
            found.append(Check(room, "missing", f"the check itself failed: {type(error).__name__}: {error}"))
    return results
