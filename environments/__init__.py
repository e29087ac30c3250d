"""Gymnasium environments for agents: tasks, sandboxes and graders."""

from agentgym_rtmc.environments.base import AgentEnv, Info, Reply, UnicodeText

__all__ = ["AgentEnv", "Info", "Reply", "UnicodeText"]
