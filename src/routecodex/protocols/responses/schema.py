"""The typed view of a Responses request: wide Structs that let tomorrow's fields pass and name wrong ones.

The typed view of a stream's events: one wide Struct, and a tolerant reader for what does not fit it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, convert
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.canon.events import Usage
from routecodex.canon.request import ProtocolName
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.json import ABSENT

NAME: ProtocolName = "responses"
ROLES = ("user", "assistant", "system", "developer")

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Item types that call a client's tool, and the field that holds what it is called with."""
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
REFERENCE = "item_reference"


class WireAudio(Struct):
    data: str
    format: str


class WirePart(Struct):
    """A content part of a message, of a tool's output or of a thought."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    detail: str | None = None
    input_audio: WireAudio | None = None
    annotations: list[dict[str, Any]] | None = None


class WireItem(Struct):
    """An input item; which of the fields count depends on its type."""

    type: str | None = None
    role: str | None = None
    id: str | None = None
    status: str | None = None
    content: str | list[WirePart] | dict[str, Any] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    summary: Any = None
    encrypted_content: str | None = None
    action: Any = None


class WireTool(Struct):
    """A tool on offer; a namespace holds more of them."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list[WireTool] | None = None


class WireToolChoice(Struct):
    """A tool choice that is more than a word."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[dict[str, Any]] | None = None


class Format(Struct):
    type: str
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: Format | None = None
    verbosity: str | None = None


class WireThinking(Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class RequestBody(Struct):
    """The top level of a request."""

    model: str
    input: str | list[WireItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | WireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    reasoning: WireThinking | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    background: bool | None = None
    truncation: str | None = None


class RequestView(Struct, frozen=True):
    """A request that was read: its bytes, what stands in them, and its ties to others.

    `references` are the places in the input where only the id of an item stands, and these ids.
    """

    body: bytes
    typed: RequestBody
    previous_response_id: str | None = None
    store: bool = True
    references: tuple[tuple[int, str], ...] = ()


def check_name(name: str | None, path: str) -> None:
    if name is None:
        raise BadRequest(f"{path}: this field is required", param=path, code="missing_field")
    if not name.strip() or "\0" in name:
        raise BadRequest(f"{path}: {name!r} is not a usable name", param=path, code="invalid_name")


TERMINAL = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"}
)
LIFECYCLE = frozenset({"response.created", "response.in_progress", "response.queued"})


class StreamChunk(Struct):
    """Any event of the stream; which fields count depends on its type."""

    type: str = ""
    sequence_number: int | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    delta: str = ""
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    logprobs: Raw = ABSENT
    annotation: Raw = ABSENT
    item: Raw = ABSENT
    response: Raw = ABSENT
    error: Raw = ABSENT
    code: Any = None
    message: Any = None
    param: Any = None


_event = Decoder(StreamChunk)
_RAW = ("logprobs", "annotation", "item", "response", "error")
_TYPED: dict[str, type] = {
    "type": str,
    "sequence_number": int,
    "output_index": int,
    "item_id": str,
    "content_index": int,
    "summary_index": int,
    "delta": str,
    "text": str,
    "refusal": str,
    "arguments": str,
    "input": str,
}


def read_chunk(frame: Frame) -> StreamChunk | None:
    """The event in a frame, or None when there is none (`[DONE]`, garbage)."""
    event = json.try_read(frame.data, _event)
    if event is None:
        event = _tolerant(frame.data)
    if event is not None and not event.type:
        event.type = frame.event.decode("utf-8", "replace") or (
            "error" if json.is_present(event.error) else ""
        )
    return event


def _tolerant(data: bytes) -> StreamChunk | None:
    """The fields that have the right types, from an event where some do not."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    event = StreamChunk()
    for name, kind in _TYPED.items():
        if isinstance(value.get(name), kind):
            setattr(event, name, value[name])
    for name in _RAW:
        if value.get(name) is not None:
            setattr(event, name, Raw(json.encode(value[name])))
    event.code, event.message, event.param = value.get("code"), value.get("message"), value.get("param")
    return event


class _Details(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class WireUsage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


def decode_usage(value: Any) -> Usage | None:
    """The token counts of a response object, or None when it has none that can be read."""
    if not isinstance(value, dict):
        return None
    try:
        usage = convert(value, WireUsage, strict=False)
    except ValueError:
        return None
    taken = usage.input_tokens_details or _Details()
    made = usage.output_tokens_details or _Details()
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cache_read=taken.cached_tokens or 0,
        cache_write=taken.cache_write_tokens or 0,
        reasoning=made.reasoning_tokens or 0,
    )


def finish_word(response: dict[str, Any], kind: str = "") -> str:
    """The word by which an answer ended: completed, the reason it is incomplete, failed or cancelled."""
    status = kind.removeprefix("response.") or response.get("status") or "completed"
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return reason if isinstance(reason, str) else "max_output_tokens"
    return str(status)
