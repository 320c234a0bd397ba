"""The shape of a messages request, for validation: known fields have their types, unknown ones pass.

One wide Struct stands for every kind of block: an unknown `type` passes, a known field of the wrong type
does not. Fields whose shape depends on the type are kept raw and read when the type is known.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from routecodex.canon.parts import Json
from routecodex.wire.json import ABSENT

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


class WirePart(Struct, gc=False):
    """A content block of any type; its texts, most of a large body, stay as the bytes they are."""

    type: str
    text: Raw = ABSENT
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT
    tool_use_id: str | None = None
    content: Raw = ABSENT
    is_error: bool | None = None
    source: Raw = ABSENT
    thinking: Raw = ABSENT
    signature: str | None = None
    data: str | None = None
    cache_control: dict[str, Any] | None = None


class WireMediaSource(Struct, gc=False):
    """Where an image or a document comes from."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class WireMessage(Struct, gc=False):
    role: str
    content: str | list[WirePart]


class WireTool(Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Raw = ABSENT
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class WireToolChoice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class WireThinking(Struct):
    type: str
    budget_tokens: Count | None = None
    display: str | None = None


class OutputFormat(Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct):
    effort: str | None = None
    format: OutputFormat | None = None


class RequestBody(Struct):
    """A request for token counts; a request for an answer has `max_tokens` too."""

    messages: list[WireMessage]
    model: str = ""
    max_tokens: Count | None = None
    system: str | list[WirePart] | None = None
    tools: list[WireTool] | None = None
    tool_choice: WireToolChoice | None = None
    metadata: dict[str, Any] | None = None
    thinking: WireThinking | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Amount | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Count | None = None
    service_tier: str | None = None


class CountRequestBody(RequestBody):
    """A request for token counts."""


class AnswerBody(RequestBody, kw_only=True):
    """A request for an answer."""

    max_tokens: Count = field()


class OutputDetails(Struct):
    thinking_tokens: int | None = None


class WireUsage(Struct):
    """What a provider counted; a field it left out or nulled is unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class WireDelta(Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Json = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Json = None


class WireMessageStart(Struct, gc=False):
    """What `message_start` says of the answer."""

    id: str | None = None
    model: str | None = None
    usage: WireUsage | None = None


class StreamChunk(Struct, gc=False):
    """An event of any type."""

    type: str = ""
    index: int = 0
    delta: WireDelta | None = None
    content_block: dict[str, Any] | None = None
    message: WireMessageStart | None = None
    usage: WireUsage | None = None
    error: Json = None
