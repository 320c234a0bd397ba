"""opencode: a provider of ours in `OPENCODE_CONFIG_CONTENT`, which is merged over all of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from routecodex.cli.agents.addresses import base_url
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest, ModelFacts
from routecodex.cli.agents.overlay import merge, peek_object

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
    config = {"provider": {_PROVIDER: provider}, "model": model, "small_model": small, "agent": agents}
    return config | _enabled(request)


def _enabled(request: LaunchRequest) -> dict[str, Any]:
    """Return the person's list of enabled providers with ours, if there is such a list."""
    listed = (peek_object(file).get("enabled_providers") for file in config_files(request))
    last = [names for names in listed if isinstance(names, list)][-1:]
    return {"enabled_providers": [*last[0], _PROVIDER]} if last else {}


def config_files(request: LaunchRequest) -> list[Path]:
    """Return the configuration files that opencode reads, those that win last."""
    environ = request.environ
    config = Path(environ.get("XDG_CONFIG_HOME") or request.home / ".config") / "opencode"
    trees = [
        folder
        for tree in reversed((Path.cwd(), *Path.cwd().parents))
        for folder in (tree, tree / ".opencode")
    ]
    names = ("config.json", "opencode.json", "opencode.jsonc")
    chosen = [Path(environ["OPENCODE_CONFIG"])] if environ.get("OPENCODE_CONFIG") else []
    of_trees = [folder / name for folder in trees for name in names[1:]]
    return [*(config / name for name in names), *chosen, *of_trees]


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
