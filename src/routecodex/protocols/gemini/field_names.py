"""Converts field names and schemas between Google's forms and the ones the codec uses.

Google's JSON parser (protobuf) accepts camelCase and snake_case; the codec knows camelCase only. Tool schemas
come as Google's OpenAPI subset or as JSON schema.
"""

from __future__ import annotations

import re

from routecodex.canon.parts import Json

_SNAKE = re.compile(
    rb'"(?:system_instruction|generation_config|tool_config|safety_settings|cached_content|service_tier'
    rb"|generate_content_request|function_call|function_response|function_declarations|inline_data|file_data"
    rb"|thought_signature|mime_type|file_uri|executable_code|code_execution_result|video_metadata"
    rb"|display_name|google_search|google_search_retrieval|url_context|code_execution|parameters_json_schema"
    rb"|function_calling_config|allowed_function_names|max_output_tokens|stop_sequences|top_p|top_k"
    rb"|candidate_count|response_[a-z_]+|presence_penalty|frequency_penalty|thinking_[a-z]+"
    rb'|include_thoughts|media_resolution|speech_config)"\s*:'
)

_CLIENT_KEYED = frozenset(
    {
        "args",
        "response",
        "parameters",
        "parametersJsonSchema",
        "responseSchema",
        "responseJsonSchema",
        "labels",
        "partMetadata",
    }
)
"""Fields whose values have keys of the client's own; these keys stay as they are."""


def has_snake_case(body: bytes) -> bool:
    """Return whether a known field seems to be in snake_case."""
    return _SNAKE.search(body) is not None


def to_camel(name: str) -> str:
    """Return `system_instruction` as `systemInstruction`."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if rest and head else name


def to_snake(name: str) -> str:
    """Return `googleSearch` as `google_search`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def camel_keys(value: Json) -> Json:
    """Return the value with camelCase field names; keys of the client's own stay."""
    if isinstance(value, list):
        return [camel_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    converted = {}
    for name, inner in value.items():
        field = to_camel(name)
        converted[field] = inner if field in _CLIENT_KEYED else camel_keys(inner)
    return converted


_INT64_DIGITS = 19
_INTEGERS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_UNSUPPORTED_KEYWORDS = frozenset({"$schema", "$comment"})


def to_json_schema(schema: Json) -> Json:
    """Return a schema of Google's OpenAPI subset (`type: "STRING"`, `nullable`, …) as JSON schema."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Json] = {}
    for name, value in schema.items():
        name = to_camel(name)
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
    if name in _INTEGERS and isinstance(value, str) and _is_integer(value):
        return int(value)
    return value


def _is_integer(text: str) -> bool:
    """Return whether a text is an int64 as protobuf JSON writes it; `²` is a digit that int() refuses."""
    return text.isascii() and text.isdigit() and len(text) <= _INT64_DIGITS


def _allow_null(schema: dict[str, Json]) -> None:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def to_gemini_schema(schema: Json) -> Json:
    """Return a JSON schema without `$schema` and `$comment`, which Gemini rejects."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in _UNSUPPORTED_KEYWORDS}


def to_gemini_parameters(schema: Json) -> Json:
    """Return the parameters of a function as an object schema, or None if it has none."""
    if not isinstance(schema, dict) or not schema:
        return None
    parameters = to_gemini_schema(schema)
    if "type" in parameters or "$ref" in parameters:
        return parameters
    return {"type": "object", **parameters}
