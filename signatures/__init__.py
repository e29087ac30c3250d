"""State and action signatures: what makes two moments of two episodes the same."""

from typing import Any

from agentgym_rtmc.signatures.base import (
    EpisodeKeys,
    HistoryKey,
    Signature,
    episode_keys,
    make_signature,
    register_signature,
    registered_signatures,
)

register_signature("operations", "agentgym_rtmc.signatures.operations:OperationsSignature")
register_signature("edits", "agentgym_rtmc.signatures.edits:EditsSignature")
register_signature("workspace", "agentgym_rtmc.signatures.edits:workspace")

_LAZY = {
    "canonical_command": "agentgym_rtmc.signatures.shell_commands",
    "canonical_call": "agentgym_rtmc.signatures.tools",
}


def __getattr__(name: str) -> Any:
    """Import the parser only when someone asks for it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = [
    "EpisodeKeys",
    "HistoryKey",
    "Signature",
    "episode_keys",
    "make_signature",
    "register_signature",
    "registered_signatures",
]
