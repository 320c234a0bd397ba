"""Requests as coding agents send them, small but with the same headers, fields, tools and system texts.

shape         the values of shapes, and the texts that they use
claude_code, codex, gemini_cli, chat_agents   the shapes of each agent

A test compares headers and fields with those that the real agents send.
"""

from __future__ import annotations

from routecodex.cli.checks.shapes import chat_agents, claude_code, codex, gemini_cli
from routecodex.cli.checks.shapes.shape import AgentShapes

AGENT_SHAPES: dict[str, AgentShapes] = {
    "claude": claude_code.SHAPES,
    "codex": codex.SHAPES,
    "gemini": gemini_cli.SHAPES,
    "opencode": chat_agents.shapes_of(chat_agents.OPENCODE),
    "qwen": chat_agents.shapes_of(chat_agents.QWEN),
    "pi": chat_agents.shapes_of(chat_agents.PI),
    "aider": chat_agents.shapes_of(chat_agents.AIDER),
    "crush": chat_agents.shapes_of(chat_agents.CRUSH),
}
"""The shapes of every agent that `routecodex run` starts."""
