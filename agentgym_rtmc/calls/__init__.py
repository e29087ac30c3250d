"""Calls: the text protocols that carry an agent's actions, and typed tools."""

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol

__all__ = ["Call", "ShellProtocol", "TextProtocol"]
