"""Field names: Google takes camelCase and snake_case; the rest of the codec knows camelCase only.

Schemas: Google's OpenAPI subset read as JSON schema, and JSON schema made fit for Gemini.
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

_FREE = frozenset(
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
"""Fields whose values are the client's own: names in there are not ours to respell."""


def has_snake_case(body: bytes) -> bool:
    """Whether some field that we know seems to be spelled in snake_case."""
    return _SNAKE.search(body) is not None


def to_camel(name: str) -> str:
    """`system_instruction` as `systemInstruction`."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if rest and head else name


def to_snake(name: str) -> str:
    """`googleSearch` as `google_search`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def camel_keys(value: Json) -> Json:
    """The value with camelCase field names wherever names are the protocol's."""
    if isinstance(value, list):
        return [camel_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    respelled = {}
    for name, inner in value.items():
        known = to_camel(name)
        respelled[known] = inner if known in _FREE else camel_keys(inner)
    return respelled


_INTEGERS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_ABSENT_AT_GEMINI = frozenset({"$schema", "$comment"})


def to_json_schema(schema: Json) -> Json:
    """A schema of the OpenAPI subset (`type: "STRING"`, `nullable`, …) as JSON schema."""
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


def to_gemini_schema(schema: Json) -> Json:
    """A JSON schema without the keywords about schemas themselves, which Gemini refuses."""
    if not isinstance(schema, dict):
        return schema
    return {name: value for name, value in schema.items() if name not in _ABSENT_AT_GEMINI}


def to_gemini_parameters(schema: Json) -> Json:
    """The parameters of a function: always an object, or None when there are none."""
    if not isinstance(schema, dict) or not schema:
        return None
    fit = to_gemini_schema(schema)
    return fit if "type" in fit or "$ref" in fit else {"type": "object", **fit}
