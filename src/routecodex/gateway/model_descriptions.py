"""Describes models with their sizes, for the admin API and for agents that are started on the gateway."""

from __future__ import annotations

from typing import Any

from routecodex.gateway.model_list import names
from routecodex.routing.registry import Model, Registry


def describe_models(registry: Registry, asked: str | None = None) -> dict[str, Any]:
    """Return the facts of every listed model, the targets of the route `default`, and the model asked for.

    The model asked for may be any name that has a target, listed or not; null if it has none.
    """
    listed = names(registry)
    defaults = (f"{target.provider}.{target.model}" for target in registry.targets_in("default"))
    return {
        "models": [_facts(name, model) for name, model in listed.items()],
        "default": list(dict.fromkeys(defaults)),
        "asked": None if asked is None else _facts_of(registry, listed, asked),
    }


def _facts_of(registry: Registry, listed: dict[str, Model | None], name: str) -> dict[str, Any] | None:
    if name in listed:
        return _facts(name, listed[name])
    alias = registry.alias_of(name)
    targets = registry.targets_of(name if alias is None else alias)
    if not targets:
        return None if alias is None else _facts(name, None)
    return _facts(name, registry.model(targets[0]))


def _facts(name: str, model: Model | None) -> dict[str, Any]:
    known = Model(id=name) if model is None else model
    return {
        "id": name,
        "context_tokens": known.context_tokens,
        "max_output_tokens": known.max_output_tokens,
        "vision": known.vision,
        "reasoning": known.reasoning,
    }
