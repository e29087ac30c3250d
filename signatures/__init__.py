"""State and action signatures: what makes two moments of two episodes the same."""

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

__all__ = [
    "EpisodeKeys",
    "HistoryKey",
    "Signature",
    "episode_keys",
    "make_signature",
    "register_signature",
    "registered_signatures",
]
