"""Lists models in each protocol's shape."""

from __future__ import annotations

from typing import Any

from routecodex.canon.errors import NotFound
from routecodex.routing.registry import Model, Registry


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
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


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


def list_models(registry: Registry, protocol: str) -> dict[str, Any]:
    """Return the complete list, in one page."""
    shape = _SHAPES[protocol]
    rows = [shape(name, model) for name, model in names(registry).items()]
    if protocol == "gemini":
        return {"models": rows}
    if protocol == "messages":
        ends = {"first_id": rows[0]["id"] if rows else None, "last_id": rows[-1]["id"] if rows else None}
        return {"data": rows, "has_more": False, **ends}
    return {"object": "list", "data": rows}


def one_model(registry: Registry, protocol: str, name: str) -> dict[str, Any]:
    """Return one model; NotFound if it is not listed."""
    listed = names(registry)
    if name not in listed:
        raise NotFound(f"there is no model {name!r}; GET /v1/models lists them", code="model_not_found")
    return _SHAPES[protocol](name, listed[name])
