"""What a generateContent request must look like: wide and tolerant, but known fields have their types.

Google's own reader takes one object where a list is due (`contents`, `parts`, `tools`); so do these.
Field names are camelCase here; bodies in snake_case are respelled first (spelling.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from routecodex.wire.json import ABSENT

Count = Annotated[int, Meta(ge=0)]
Fields = dict[str, Raw]


class WireStruct(Struct, rename="camel", gc=False):
    """An object of the protocol."""


class Blob(WireStruct):
    mime_type: str | None = None
    data: str | None = None


class FileData(WireStruct):
    mime_type: str | None = None
    file_uri: str | None = None


class WireFunctionCall(WireStruct):
    name: str | None = None
    id: str | None = None
    args: Fields | None = None


class FunctionResponse(WireStruct):
    name: str | None = None
    id: str | None = None
    response: Fields | None = None
    parts: list[Fields] | None = None


class WirePart(WireStruct):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: WireFunctionCall | None = None
    function_response: FunctionResponse | None = None
    executable_code: Fields | None = None
    code_execution_result: Fields | None = None
    video_metadata: Fields | None = None


class WireMessage(WireStruct):
    role: str | None = None
    parts: list[WirePart] | WirePart | None = None


class FunctionDeclaration(WireStruct):
    name: str
    description: str | None = None
    parameters: Fields | None = None
    parameters_json_schema: Raw = ABSENT


class WireTool(WireStruct):
    function_declarations: list[FunctionDeclaration] | FunctionDeclaration | None = None
    google_search: Raw = ABSENT
    google_search_retrieval: Raw = ABSENT
    enterprise_web_search: Raw = ABSENT


class FunctionCallingConfig(WireStruct):
    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(WireStruct):
    function_calling_config: FunctionCallingConfig | None = None


class WireThinking(WireStruct):
    thinking_budget: Annotated[int, Meta(ge=-1)] | None = None
    include_thoughts: bool | None = None
    thinking_level: str | None = None


class GenerationConfig(WireStruct):
    max_output_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    candidate_count: Count | None = None
    response_mime_type: str | None = None
    response_schema: Fields | None = None
    response_json_schema: Raw = ABSENT
    response_logprobs: bool | None = None
    logprobs: Count | None = None
    thinking_config: WireThinking | None = None
    response_modalities: list[str] | None = None
    media_resolution: str | None = None


class RequestBody(WireStruct):
    """A whole request; `model` is not part of it at Google's, but some clients write it."""

    contents: list[WireMessage] | WireMessage
    system_instruction: str | WireMessage | list[WirePart] | None = None
    tools: list[WireTool] | WireTool | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: list[Fields] | None = None
    cached_content: str | None = None
    labels: Fields | None = None
    metadata: Any = None
    service_tier: str | None = None
    model: str | None = None


class CountRequestBody(WireStruct):
    """A countTokens request: contents, or a whole request inside."""

    generate_content_request: Raw = ABSENT
    contents: Raw = ABSENT


class RequestView(Struct):
    """A request as `read` saw it; `snake` says that its field names had to be respelled."""

    body: RequestBody
    snake: bool = False
    counted: bool = False


body_reader = Decoder(RequestBody)
count_reader = Decoder(CountRequestBody)


def contents_of(body: RequestBody) -> list[WireMessage]:
    """The contents as a list, however they came."""
    return body.contents if isinstance(body.contents, list) else [body.contents]


def parts_of(content: WireMessage) -> list[WirePart]:
    """The parts as a list, however they came."""
    if content.parts is None:
        return []
    return content.parts if isinstance(content.parts, list) else [content.parts]
