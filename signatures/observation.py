"""The last observation as the state, without what changes from run to run: the anchor of GiGPO.

Invariants: normalising is idempotent and linear; it takes out times, durations, dates, hexadecimal addresses, temporary
paths, process ids, terminal colours and trailing white space, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.signatures.digests import text_digest
from agentgym_rtmc.signatures.operations import Level, OperationsSignature

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"), ""),
    (re.compile(r"\r\n?"), "\n"),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}\b"), "0x…"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"(?<![\w/])/(?:private/)?(?:tmp|var/tmp|var/folders|dev/shm)/[^\s'\"`,;:)\]}>]+"), "<tmp>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?(?!\d)"),
        "<date>",
    ),
    (
        re.compile(
            r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
            r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +\d{1,2}"
            r"(?: \d\d:\d\d(?::\d\d)?)?(?:,? \d{4})?\b"
        ),
        "<date>",
    ),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (
        re.compile(r"\b\d+(?:\.\d+)? ?(?:s|sec|secs|seconds?|ms|milliseconds?|µs|us|minutes?|mins?)\b(?!/)"),
        "<duration>",
    ),
    (re.compile(r"\b(pid|PID|process|Process)([ =:]+)\d+\b"), r"\1\2<pid>"),
    (re.compile(r"\[\d{2,7}\](?=[ :])"), "[<pid>]"),
    (re.compile(r"\b(random seed|PYTHONHASHSEED|hash seed|seed)([ :=]+)\d+"), r"\1\2<seed>"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


def normalised(text: str) -> str:
    """Take volatile parts out of a text.

    >>> normalised("3 passed in 0.12s at 0x7f3a9c, /tmp/abc/x.py")
    '3 passed in <duration> at 0x…, <tmp>'
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()


@dataclass(frozen=True)
class Seen:
    """The key of the last observation."""

    key: str


class ObservationSignature:
    """State: the last observation, normalised. Action: the operation at the given level."""

    def __init__(self, action: Level = "exact") -> None:
        self._operations = OperationsSignature(level=action)

    def start(self, opening: Opening) -> Seen:
        """Return the state of the first observation."""
        return Seen(text_digest(normalised(opening.observation)))

    def action_key(self, turn: Turn) -> str:
        """Name the turn by its operations."""
        return self._operations.action_key(turn)

    def advance(self, state: Seen, turn: Turn) -> Seen:
        """Forget everything but the turn's observation."""
        return Seen(text_digest(normalised(turn.observation)))

    def state_key(self, state: Seen) -> str:
        """Return the observation's digest."""
        return state.key
