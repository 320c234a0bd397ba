"""Coding agents that `routecodex run` starts: one module per agent, each with its description.

agent       Agent, LaunchRequest, LaunchPlan, ModelFacts: the values
detection   finds an installed agent and its version
overlay     a copy of a person's folder with one changed file; JSON files of persons
addresses   base URLs and sessions
claude, codex, gemini, opencode, qwen, pi, aider, crush   how each is pointed at a gateway

What each client needs, and which of its own settings would win, was measured with the real programs; the
tests in tests/clients/agents start them.
"""

from __future__ import annotations

from routecodex.cli.agents.agent import Agent
from routecodex.cli.agents.aider import AIDER
from routecodex.cli.agents.claude import CLAUDE
from routecodex.cli.agents.codex import CODEX
from routecodex.cli.agents.crush import CRUSH
from routecodex.cli.agents.gemini import GEMINI
from routecodex.cli.agents.opencode import OPENCODE
from routecodex.cli.agents.pi import PI
from routecodex.cli.agents.qwen import QWEN

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (CLAUDE, CODEX, GEMINI, OPENCODE, QWEN, PI, AIDER, CRUSH)
}
"""All agents, by the name that `routecodex run` takes."""
