"""Setting a model's private reasoning aside before its action is read.

Invariants: text that opens with the action itself is never cut, so rendering and reading stay inverse even where an
action mentions the tags.
"""

from __future__ import annotations

from agentgym_rtmc.errors import ProtocolError

OPEN, CLOSE = "<think>", "</think>"


def after_thinking(text: str, opener: str) -> str:
    """Return the text without a leading `<think>…</think>` part; `opener` is how an action of the protocol begins.

    Some chat templates put `<think>` into the prompt, so a closing tag alone counts too. Raises ProtocolError when
    the reasoning was opened and never closed: what follows is not meant as an action.
    """
    start = text.lstrip()
    if start.startswith(opener):
        return text
    _, closed, rest = text.partition(CLOSE)
    if closed:
        return rest
    if start.startswith(OPEN):
        raise ProtocolError(f"the reasoning opened with {OPEN} is never closed; close it with {CLOSE}, then act")
    return text
