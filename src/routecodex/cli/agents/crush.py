"""Crush: copies of its two global folders, with a provider of ours and our choice of models.

`CRUSH_GLOBAL_CONFIG` and `CRUSH_GLOBAL_DATA` name folders whose files replace the person's; hence the
merge. The second holds the model that a person has chosen, which takes precedence over the first (Crush
0.96, internal/config/load.go). Address and key are variables, which Crush expands: the files are the same
for all runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from routecodex.cli.agents.addresses import base_url
from routecodex.cli.agents.agent import (
    KEY_VARIABLE,
    Agent,
    LaunchPlan,
    LaunchRequest,
    ModelFacts,
    PlannedFile,
)
from routecodex.cli.agents.overlay import json_text, links, merge, read_object

URL_VARIABLE = "ROUTECODEX_BASE_URL"
_FILE = "crush.json"


def _plan(request: LaunchRequest) -> LaunchPlan:
    config, data = request.folder / "config", request.folder / "data"
    folders = {"CRUSH_GLOBAL_CONFIG": config, "CRUSH_GLOBAL_DATA": data}
    address = {
        URL_VARIABLE: f"{base_url(request, request.session)}/v1",
        KEY_VARIABLE: request.key,
    }
    chosen = _chosen_models(request)
    provider = {"providers": {"routecodex": _provider(request)}}
    return LaunchPlan(
        env={**{name: str(folder) for name, folder in folders.items()}, **address},
        files=(
            *_overlay(_person(request, "CRUSH_GLOBAL_CONFIG", config), config, provider | chosen),
            *_overlay(_person(request, "CRUSH_GLOBAL_DATA", data), data, chosen),
        ),
    )


_XDG = {
    "CRUSH_GLOBAL_CONFIG": ("XDG_CONFIG_HOME", ".config"),
    "CRUSH_GLOBAL_DATA": ("XDG_DATA_HOME", ".local/share"),
}


def _person(request: LaunchRequest, name: str, ours: Path) -> Path:
    """Return the person's own folder, also in a shell in which `routecodex env crush` was evaluated."""
    given = request.environ.get(name)
    if given and Path(given) != ours:
        return Path(given)
    variable, default = _XDG[name]
    return Path(request.environ.get(variable) or request.home / default) / "crush"


def _overlay(person: Path, ours: Path, changes: dict[str, Any]) -> tuple[PlannedFile, ...]:
    content = json_text(merge(read_object(person / _FILE), changes))
    return (PlannedFile(path=ours / _FILE, content=content), *links(person, ours, but=(_FILE,)))


def _chosen_models(request: LaunchRequest) -> dict[str, Any]:
    chosen = {"provider": "routecodex", "model": request.model}
    return {"models": {"large": chosen, "small": chosen}}


def _provider(request: LaunchRequest) -> dict[str, Any]:
    return {
        "name": "RouteCodex",
        "type": "openai-compat",
        "base_url": f"${URL_VARIABLE}",
        "api_key": f"${KEY_VARIABLE}",
        "discover_models": False,
        "models": [_row(model) for model in request.models],
    }


def _row(model: ModelFacts) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.id,
        "context_window": model.context_limit,
        "default_max_tokens": model.output_limit,
        "can_reason": model.reasoning,
        "supports_attachments": model.vision,
    }


CRUSH = Agent(
    name="crush",
    title="Crush",
    executables=("crush",),
    package="@charmland/crush",
    install="npm install -g @charmland/crush",
    tested="0.96.1",
    plan=_plan,
)
