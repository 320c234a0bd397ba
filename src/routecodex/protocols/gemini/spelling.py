"""Field names: Google takes camelCase and snake_case; the rest of the codec knows camelCase only."""

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


def is_snake(body: bytes) -> bool:
    """Whether some field that we know seems to be spelled in snake_case."""
    return _SNAKE.search(body) is not None


def camel(name: str) -> str:
    """`system_instruction` as `systemInstruction`."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if rest and head else name


def snake(name: str) -> str:
    """`googleSearch` as `google_search`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def respell(value: Json) -> Json:
    """The value with camelCase field names wherever names are the protocol's."""
    if isinstance(value, list):
        return [respell(item) for item in value]
    if not isinstance(value, dict):
        return value
    respelled = {}
    for name, inner in value.items():
        known = camel(name)
        respelled[known] = inner if known in _FREE else respell(inner)
    return respelled
