"""JSON schemas for structured output, reduced to the part of the language this protocol takes.

Constraints that it refuses are told to the model in the description instead.
"""

from __future__ import annotations

from typing import Any

from routecodex.canon.parts import Json
from routecodex.wire import json

_UNTAKEN = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "patternProperties",
        "propertyNames",
    }
)
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf")


def strict_schema(schema: Json) -> Json:
    """The schema with closed objects and without constraints that would be refused."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not _untaken(name, value)}
    told = {name: value for name, value in schema.items() if _untaken(name, value)}
    for name in _MAPS:
        if isinstance(kept.get(name), dict):
            kept[name] = {key: strict_schema(value) for key, value in kept[name].items()}
    for name in _LISTS:
        if isinstance(kept.get(name), list):
            kept[name] = [strict_schema(value) for value in kept[name]]
    if "oneOf" in kept:
        kept.setdefault("anyOf", kept.pop("oneOf"))
    if isinstance(kept.get("items"), dict):
        kept["items"] = strict_schema(kept["items"])
    if kept.get("type") == "object":
        kept["additionalProperties"] = False
    return _described(kept, told)


def _untaken(name: str, value: Json) -> bool:
    return name in _UNTAKEN or (name == "minItems" and value not in (0, 1))


def _described(schema: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    if not told:
        return schema
    rules = json.encode(told).decode()
    before = schema.get("description")
    return {**schema, "description": f"{before} {rules}" if before else rules}


def instruction(schema: Json) -> str:
    """What to tell a model that takes no schema: any JSON object, or one that fits it."""
    asked = "Answer with one JSON object and nothing else: no prose, no code fence."
    if schema is None:
        return asked
    return f"{asked} It must fit this JSON schema:\n{json.encode(schema).decode()}"
