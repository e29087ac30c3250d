"""Calls: the text protocols that carry an agent's actions, and typed tools."""

from agentgym_rtmc.calls.base import Call, TextProtocol

__all__ = ["Call", "TextProtocol"]
