"""aider: flags, which take precedence over `.aider.conf.yml` and `.env`; variables do not."""

from __future__ import annotations

from routecodex.cli.agents.addresses import base_url, chosen_session
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest


def _plan(request: LaunchRequest) -> LaunchPlan:
    model = f"openai/{request.model}"
    url = f"{base_url(request, chosen_session(request))}/v1"
    address = ("--openai-api-base", url, "--openai-api-key", request.key)
    # Models of a person's file for small work and for edits may belong to another provider.
    models = ("--model", model, "--weak-model", model, "--editor-model", model)
    return LaunchPlan(flags=(*address, *models, "--no-show-model-warnings"))


AIDER = Agent(
    name="aider",
    title="aider",
    executables=("aider",),
    package="aider-chat",
    install="python -m pip install aider-install && aider-install",
    tested="0.86.2",
    plan=_plan,
)
