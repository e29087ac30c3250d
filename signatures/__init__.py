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

for _name, _target in {
    "operations": "operations:OperationsSignature",
    "commands": "command_keys:CommandsSignature",
    "edits": "edits:EditsSignature",
    "workspace": "edits:workspace",
    "test_outcomes": "outcome_state:TestOutcomesSignature",
    "observation": "observation:ObservationSignature",
    "tool_state": "tool_state:ToolStateSignature",
    "compose": "compose:Composed",
    "restrict": "compose:Restricted",
    "chain": "compose:Chain",
}.items():
    register_signature(_name, f"agentgym_rtmc.signatures.{_target}")

_LAZY = {
    "canonical_command": "agentgym_rtmc.signatures.shell_commands",
    "canonical_call": "agentgym_rtmc.signatures.tools",
    "check_signature": "agentgym_rtmc.signatures.checks",
    "levels_of": "agentgym_rtmc.signatures.compose",
    "read_outcomes": "agentgym_rtmc.signatures.test_outcomes",
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
