"""The typed view of a stream's events: one wide Struct, and a tolerant reader for what does not fit it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, convert
from msgspec.json import Decoder

from routecodex.canon.usage import Usage
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.json import ABSENT

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
        event.type = frame.event.decode("utf-8", "replace") or ("error" if json.present(event.error) else "")
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


def usage_of(value: Any) -> Usage | None:
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


def said_of(response: dict[str, Any], kind: str = "") -> str:
    """The word by which an answer ended: completed, the reason it is incomplete, failed or cancelled."""
    status = kind.removeprefix("response.") or response.get("status") or "completed"
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return reason if isinstance(reason, str) else "max_output_tokens"
    return str(status)
