"""Qwen Code: flags, which take precedence over a login that was chosen in its settings."""

from __future__ import annotations

from routecodex.cli.agents.addresses import base_url, chosen_session
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest


def _plan(request: LaunchRequest) -> LaunchPlan:
    # It has no custom headers, neither by flag nor by variable.
    url = f"{base_url(request, chosen_session(request))}/v1"
    flags = ("--auth-type", "openai", "--openai-base-url", url, "--openai-api-key", request.key)
    return LaunchPlan(flags=(*flags, "-m", request.model or ""))


QWEN = Agent(
    name="qwen",
    title="Qwen Code",
    executables=("qwen",),
    package="@qwen-code/qwen-code",
    install="npm install -g @qwen-code/qwen-code",
    tested="0.24.4",
    plan=_plan,
)
