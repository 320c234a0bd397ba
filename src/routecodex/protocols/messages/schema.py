"""Types of messages requests and stream events.

Known fields are typed, unknown fields are accepted. One wide Struct covers every block type: an unknown type
is accepted, a known field of the wrong type is not. Fields whose shape depends on the type stay raw until the
type is known.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from routecodex.canon.parts import Json
from routecodex.protocols.usage import BilledUsage, Tokens
from routecodex.wire.json import ABSENT

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


class WirePart(Struct, gc=False):
    """A content block of any type; its texts, most of a large body, stay raw."""

    type: str
    text: Raw = ABSENT
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT
    tool_use_id: str | None = None
    content: Raw = ABSENT
    is_error: bool | None = None
    source: Raw = ABSENT
    title: Raw = ABSENT
    thinking: Raw = ABSENT
    signature: str | None = None
    data: str | None = None
    citations: Raw = ABSENT
    cache_control: dict[str, Any] | None = None


class WireMediaSource(Struct, gc=False):
    """The source of an image or a document."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class WireMessage(Struct, gc=False):
    role: str
    content: str | list[WirePart]


class WireInputSchema(Struct, gc=False):
    """The root keywords of a tool's schema that Anthropic rejects."""

    all_of: Raw = field(default=ABSENT, name="allOf")
    any_of: Raw = field(default=ABSENT, name="anyOf")
    one_of: Raw = field(default=ABSENT, name="oneOf")

    @property
    def composed(self) -> bool:
        return self.all_of is not ABSENT or self.any_of is not ABSENT or self.one_of is not ABSENT


class WireTool(Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: WireInputSchema | None = None
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
    """Fields of a request for an answer or a token count."""

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
    """A request for a token count."""


class AnswerBody(RequestBody, kw_only=True):
    """A request for an answer; `max_tokens` is required."""

    max_tokens: Count = field()


class OutputDetails(Struct):
    thinking_tokens: Tokens | None = None


class CacheCreation(Struct):
    """Tokens written to caches, by the time for which they are kept."""

    ephemeral_5m_input_tokens: Tokens | None = None
    ephemeral_1h_input_tokens: Tokens | None = None


class WireUsage(BilledUsage):
    """Token counts of a provider; an absent or null field is unknown.

    `speed` is `fast` for Anthropic's fast mode, which has prices of its own.
    """

    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    output_tokens_details: OutputDetails | None = None
    iterations: Json = None
    cache_creation: CacheCreation | None = None
    service_tier: Json = None
    speed: Json = None


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
    """The message in `message_start`."""

    id: str | None = None
    model: str | None = None
    usage: WireUsage | None = None


class StreamChunk(Struct, gc=False):
    """A stream event of any type."""

    type: str = ""
    index: int = 0
    delta: WireDelta | None = None
    content_block: dict[str, Any] | None = None
    message: WireMessageStart | None = None
    usage: WireUsage | None = None
    error: Json = None
