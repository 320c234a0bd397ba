"""Types of Responses requests and stream events.

Unknown fields pass, so that new API fields need no change here; known fields have their types checked. A
stream event is one Struct with the fields of all types.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, convert
from msgspec.json import Decoder

from routecodex.canon.events import Usage
from routecodex.canon.request import ProtocolName
from routecodex.protocols.usage import BilledUsage, Tokens, billed_cost, counted, loose_tokens, mode_of
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.json import ABSENT

NAME: ProtocolName = "responses"
ROLES = ("user", "assistant", "system", "developer")

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Item types that call a tool of the client, each with the field that holds the arguments."""
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

RESULT_SUFFIXES = ("_output", "_response")
"""Endings of item types that carry a result to the model; all other items come from the model."""
REFERENCE = "item_reference"
TERMINAL = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"}
)
LIFECYCLE = frozenset({"response.created", "response.in_progress", "response.queued"})


class WireAudio(Struct):
    data: str
    format: str


class WirePart(Struct):
    """A content part of a message, a tool output or a reasoning item."""

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
    """An input item; its type decides which fields apply."""

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
    tools: Any = None


class WireTool(Struct):
    """A declared tool; a namespace (Codex) holds more of them."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list[WireTool] | None = None


TOOL_SEARCH = "tool_search"
"""Codex's search for more tools: a tool without a name, whose calls and results have items of their own."""
DECLARATIONS = ("additional_tools", "tool_search_output")
"""Items whose `tools` are declared to the model: Codex sends no `tools` for gpt-5.6 and newer."""


def declared_tools(body: RequestBody) -> list[WireTool]:
    """Return the tools of a validated request, those in its input items too."""
    declared = list(body.tools or ())
    for item in body.input if isinstance(body.input, list) else ():
        if item.type in DECLARATIONS and item.tools:
            declared += convert(item.tools, list[WireTool])
    return declared


class WireToolChoice(Struct):
    """A tool choice given as an object."""

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
    """The request body."""

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
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    text: TextConfig | None = None
    reasoning: WireThinking | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: Any = None
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
    """A validated request: its bytes, their typed form, and the stored answers and items it refers to.

    `references` lists the position and the id of each `item_reference` in the input. `unstorable`: the answer
    cannot be stored now, whatever `store` asks for.
    """

    body: bytes
    typed: RequestBody
    previous_response_id: str | None = None
    store: bool = True
    references: tuple[tuple[int, str], ...] = ()
    unstorable: bool = False


class StreamChunk(Struct):
    """One event of the stream; its type decides which fields apply."""

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


_chunk = Decoder(StreamChunk)
_RAW_FIELDS = ("logprobs", "annotation", "item", "response", "error")
_TYPED_FIELDS: dict[str, type] = {
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
    """Return the event in a frame, or None if it holds none (`[DONE]`, invalid JSON).

    An event without a `type` takes the name of its frame, and an object with only an `error` is an error.
    """
    event = json.try_read(frame.data, _chunk)
    if event is None:
        event = _read_lenient(frame.data)
    if event is not None and not event.type:
        event.type = frame.event.decode("utf-8", "replace") or (
            "error" if json.is_present(event.error) else ""
        )
    return event


def _read_lenient(data: bytes) -> StreamChunk | None:
    """Return the event with only the fields that have the right type."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    event = StreamChunk()
    for name, kind in _TYPED_FIELDS.items():
        # A bool is not a number here.
        if type(value.get(name)) is kind:
            setattr(event, name, value[name])
    for name in _RAW_FIELDS:
        if value.get(name) is not None:
            setattr(event, name, Raw(json.encode(value[name])))
    event.code, event.message, event.param = value.get("code"), value.get("message"), value.get("param")
    return event


class _TokenDetails(Struct):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None
    reasoning_tokens: Tokens | None = None


class WireUsage(BilledUsage):
    """Token counts; both details have their own fields."""

    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _TokenDetails | None = None
    output_tokens_details: _TokenDetails | None = None


def decode_usage(value: Any, tier: Any = None) -> Usage | None:
    """Return the token counts of a response object with this `service_tier`; None if it has none."""
    if not isinstance(value, dict):
        return None
    try:
        usage = convert(value, WireUsage, strict=False)
    except ValueError:
        usage = convert(_loose_counts(value), WireUsage)
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    input, read, write = usage.input_tokens or 0, 0, 0
    if inputs is not None:
        read, write = inputs.cached_tokens or 0, inputs.cache_write_tokens or 0
        if read + write > input:
            # xAI: cached tokens were seen beside the input tokens instead of among them.
            input += read + write
    billed = usage.cost is not None or usage.cost_in_usd_ticks is not None
    return counted(
        Usage(
            input=input,
            output=usage.output_tokens or 0,
            cache_read=read,
            cache_write=write,
            reasoning=outputs.reasoning_tokens or 0 if outputs is not None else 0,
            cost=billed_cost(usage) if billed else None,
            mode=mode_of(tier) if tier else "",
        )
    )


def _loose_counts(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a usage object that make sense."""
    found: dict[str, Any] = {}
    for name, one in value.items():
        if name.endswith("_tokens"):
            found[name] = loose_tokens(one)
        elif not name.endswith("_details") or name == "cost_details":
            found[name] = one
        elif isinstance(one, dict):
            found[name] = _loose_counts(one)
    return found


def finish_reason(response: dict[str, Any], kind: str = "") -> str:
    """Return how an answer ended: `completed`, the reason it is incomplete, `failed` or `cancelled`.

    `kind` is the type of the event that ended a stream; it wins over the `status` in the response object.
    """
    status = kind.removeprefix("response.") or response.get("status") or "completed"
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return reason if isinstance(reason, str) else "max_output_tokens"
    return str(status)


def objects(values: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; anything else in it, or a value that is not a list, is skipped."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
