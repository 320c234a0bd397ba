"""The catalog of models that Codex reads: `models` beside the ordinary list.

The fields are those that `ModelInfo` of Codex 0.169 requires (openai/codex, protocol/src/openai_models.rs).
Codex needs no OpenAI name for any of them: a known one would switch it to tools in JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Raw

from routecodex.gateway.model_list import names
from routecodex.routing.registry import Model, Registry
from routecodex.routing.route_plan import DEFAULT
from routecodex.wire import json

_EFFORTS = (
    {"effort": "low", "description": "Answers fast, with little thinking"},
    {"effort": "medium", "description": "Balances speed and thinking"},
    {"effort": "high", "description": "Thinks longest, for hard problems"},
)
_OUTPUT_TOKENS = 10_000
"""Tokens of a command's output that Codex shows to the model."""


@cache
def base_instructions() -> str:
    """Return the instructions that come with the gateway, for a coding agent with shell and apply_patch."""
    file = resources.files("routecodex.gateway").joinpath("codex_instructions.md")
    return file.read_text(encoding="utf-8")


def codex_models(registry: Registry, instructions: str) -> list[dict[str, Any]]:
    """Return a row for every model and alias, those of the route `default` with the first priorities."""
    # The text is long and the same in each row: it is encoded once.
    text = Raw(json.encode(instructions))
    listed = names(registry)
    first = dict.fromkeys(name for name in _default_names(registry) if name in listed)
    order = {name: at for at, name in enumerate((*first, *(name for name in listed if name not in first)))}
    return [_row(name, listed[name], order[name], text, registry) for name in order]


def _default_names(registry: Registry) -> Iterator[str]:
    return (f"{target.provider}.{target.model}" for target in registry.targets_in(DEFAULT))


def _row(name: str, model: Model | None, priority: int, text: Raw, registry: Registry) -> dict[str, Any]:
    context = model.context_tokens if model is not None else _room_in(name, registry)
    sees = model is None or model.vision
    return {
        "slug": name,
        "display_name": name,
        "description": _description(name, registry),
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": _EFFORTS,
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": text,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": _OUTPUT_TOKENS},
        "context_window": context,
        "max_context_window": context,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if sees else ["text"],
        "supports_search_tool": False,
        "use_responses_lite": False,
        "supports_parallel_tool_calls": True,
    }


def _room_in(alias: str, registry: Registry) -> int | None:
    """Return the smallest context of the route that an alias names; None if none is known."""
    route = registry.aliases.get(alias, "").removeprefix("route:")
    sizes = (registry.model(target).context_tokens for target in registry.targets_in(route))
    return min(filter(None, sizes), default=None)


def _description(name: str, registry: Registry) -> str:
    alias = registry.aliases.get(name)
    if alias is None:
        return f"Model of provider {name.partition('.')[0]}"
    return f"Alias of {alias}" if not alias.startswith("route:") else f"Chosen by the route {alias[6:]}"
