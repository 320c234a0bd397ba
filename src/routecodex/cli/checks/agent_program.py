"""Checks whether an agent is installed, and in which version."""

from __future__ import annotations

from collections.abc import Mapping

from routecodex.cli.agents.agent import Agent
from routecodex.cli.agents.detection import find_executable, find_version
from routecodex.cli.checks.result import CheckResult, failed, passed, warned


def check_installed(agent: Agent, environ: Mapping[str, str]) -> CheckResult:
    """Check that the agent's program is there and tells its version."""
    check_id = f"{agent.name}.installed"
    program = find_executable(agent, environ)
    if program is None:
        names = " or ".join(repr(name) for name in agent.executables)
        return failed(check_id, f"{agent.title} is not installed: no {names} in PATH", agent.install)
    version = find_version(agent, program, environ)
    if version is None:
        message = f"{agent.title} at {program} does not tell its version"
        return warned(check_id, message, f"install it again: {agent.install}")
    tested = f" ({agent.tested} was tested)" if version != agent.tested else ""
    return passed(check_id, f"{agent.title} {version} at {program}{tested}")
