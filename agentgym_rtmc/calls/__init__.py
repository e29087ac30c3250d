"""Calls: the text protocols that carry an agent's actions, and typed tools."""

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.calls.tools import Tool, Toolbox, ToolResult
from agentgym_rtmc.calls.word_call import WordCallProtocol

__all__ = [
    "Call",
    "ShellProtocol",
    "TextProtocol",
    "Tool",
    "ToolCallProtocol",
    "ToolResult",
    "Toolbox",
    "WordCallProtocol",
]
