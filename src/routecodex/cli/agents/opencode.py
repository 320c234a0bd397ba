"""opencode: a provider of ours in `OPENCODE_CONFIG_CONTENT`, which is merged over all of its files."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from routecodex.cli.agents.addresses import base_url
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest, ModelFacts
from routecodex.cli.agents.overlay import merge

_CONTENT = "OPENCODE_CONFIG_CONTENT"
_PROVIDER = "routecodex"
_QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
"""No network of its own at start."""


def _plan(request: LaunchRequest) -> LaunchPlan:
    quiet = {name: value for name, value in _QUIET.items() if not request.environ.get(name)}
    content = merge(_given(request.environ.get(_CONTENT, "")), _config(request))
    return LaunchPlan(env={_CONTENT: msgspec.json.encode(content).decode(), **quiet})


def _given(content: str) -> dict[str, Any]:
    if not content.strip():
        return {}
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise click.UsageError(f"{_CONTENT} is not valid JSON: {exc}") from exc


def _config(request: LaunchRequest) -> dict[str, Any]:
    model = f"{_PROVIDER}/{request.model}"
    small = f"{_PROVIDER}/{request.small_model or request.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "RouteCodex",
        "options": {"baseURL": f"{base_url(request, request.session)}/v1", "apiKey": request.key},
        "models": {row.id: _row(row) for row in request.models},
    }
    # A model that a person has set for opencode's main agents would be used instead of `model`.
    agents = {name: {"model": model} for name in ("build", "plan")}
    return {"provider": {_PROVIDER: provider}, "model": model, "small_model": small, "agent": agents}


def _row(model: ModelFacts) -> dict[str, Any]:
    return {
        "name": model.id,
        "tool_call": True,
        "reasoning": model.reasoning,
        "attachment": model.vision,
        "limit": {"context": model.context_limit, "output": model.output_limit},
    }


OPENCODE = Agent(
    name="opencode",
    title="opencode",
    executables=("opencode",),
    package="opencode-ai",
    install="npm install -g opencode-ai",
    tested="1.18.33",
    other_packages=("opencode",),
    places=(".opencode/bin/opencode",),
    plan=_plan,
    has_small_model=True,
)
