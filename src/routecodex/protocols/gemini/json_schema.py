"""Schemas: Google's OpenAPI subset read as JSON schema, and JSON schema made fit for Gemini."""

from __future__ import annotations

from routecodex.canon.parts import Json
from routecodex.protocols.gemini.spelling import camel

_INTEGERS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_ABSENT_AT_GEMINI = frozenset({"$schema", "$comment"})


def to_json_schema(schema: Json) -> Json:
    """A schema of the OpenAPI subset (`type: "STRING"`, `nullable`, …) as JSON schema."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Json] = {}
    for name, value in schema.items():
        name = camel(name)
        if name not in ("nullable", "propertyOrdering"):
            result[name] = _keyword(name, value)
    if result.get("type") in ("type_unspecified", None):
        result.pop("type", None)
    if schema.get("nullable") is True:
        _allow_null(result)
    if result.get("format") == "enum":
        del result["format"]
    return result


def _keyword(name: str, value: Json) -> Json:
    if name == "type":
        return value.lower() if isinstance(value, str) else value
    if name == "properties" and isinstance(value, dict):
        return {key: to_json_schema(inner) for key, inner in value.items()}
    if name in ("items", "additionalProperties"):
        return to_json_schema(value)
    if name in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [to_json_schema(inner) for inner in value]
    if name in _INTEGERS and isinstance(value, str) and value.isdigit():
        return int(value)
    return value


def _allow_null(schema: dict[str, Json]) -> None:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def for_gemini(schema: Json) -> Json:
    """A JSON schema without the keywords about schemas themselves, which Gemini refuses."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in _ABSENT_AT_GEMINI}


def parameters_for_gemini(schema: Json) -> Json:
    """The parameters of a function: always an object, or None when there are none."""
    if not isinstance(schema, dict) or not schema:
        return None
    fit = for_gemini(schema)
    return fit if "type" in fit or "$ref" in fit else {"type": "object", **fit}
