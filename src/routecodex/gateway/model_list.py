"""Lists models in each protocol's shape."""

from __future__ import annotations

import re
from typing import Any

from routecodex.canon.errors import NotFound
from routecodex.routing.registry import VIA, Model, Registry

_CLAUDE = re.compile("claude|anthropic", re.IGNORECASE)
"""Names that Claude Code shows; it drops all others from the list of a gateway."""


def names(registry: Registry) -> dict[str, Model | None]:
    """Return every id that a client may send: `provider.model`, and aliases that are not globs."""
    listed: dict[str, Model | None] = {}
    for provider in registry.providers.values():
        for name, model in provider.models.items():
            listed[f"{provider.name}.{name}"] = model
    for alias, to in registry.aliases.items():
        if not set(alias) & set("*?["):
            targets = registry.targets_of(to)
            listed[alias] = registry.model(targets[0]) if targets else None
    return listed


def _openai(name: str, _model: Model | None) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": name.partition(".")[0]}


def _anthropic(name: str, _model: Model | None) -> dict[str, Any]:
    shown = name.removeprefix(VIA)
    return {"type": "model", "id": name, "display_name": shown, "created_at": "1970-01-01T00:00:00Z"}


def _gemini(name: str, model: Model | None) -> dict[str, Any]:
    limits = {
        "inputTokenLimit": model.context_tokens if model else None,
        "outputTokenLimit": model.max_output_tokens if model else None,
    }
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": "1",
        **{field: value for field, value in limits.items() if value is not None},
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }


_SHAPES = {"chat": _openai, "responses": _openai, "messages": _anthropic, "gemini": _gemini}


def list_models(registry: Registry, protocol: str, *, via: bool = False) -> dict[str, Any]:
    """Return the complete list, in one page.

    `via`: Claude Code asks, and gets every model that is not called Claude under a name that is.
    """
    shape = _SHAPES[protocol]
    listed = names(registry)
    if protocol == "messages":
        listed = _claude_first(registry, listed, via=via)
    rows = [shape(name, model) for name, model in listed.items()]
    if protocol == "gemini":
        return {"models": rows}
    if protocol == "messages":
        ends = {"first_id": rows[0]["id"] if rows else None, "last_id": rows[-1]["id"] if rows else None}
        return {"data": rows, "has_more": False, **ends}
    return {"object": "list", "data": rows}


def _claude_first(
    registry: Registry, listed: dict[str, Model | None], *, via: bool
) -> dict[str, Model | None]:
    others = {name: model for name, model in listed.items() if not _CLAUDE.search(name)}
    first = {name: model for name, model in listed.items() if name not in others}
    aliases = registry.aliases
    extra = {VIA + name: model for name, model in others.items() if via and name not in aliases}
    return first | extra | others


def one_model(registry: Registry, protocol: str, name: str) -> dict[str, Any]:
    """Return one model; NotFound if it is neither listed nor another name of a target."""
    listed = names(registry)
    if name in listed:
        return _SHAPES[protocol](name, listed[name])
    target = name.removeprefix(VIA)
    found = next(iter(registry.targets_of(target)), None)
    if found is None or f"{found.provider}.{found.model}" != target:
        raise NotFound(f"there is no model {name!r}; GET /v1/models lists them", code="model_not_found")
    return _SHAPES[protocol](name, registry.model(found))
