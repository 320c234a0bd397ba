"""One event of a messages stream, typed where it fits and read tolerantly where it does not."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.canon.parts import Json
from routecodex.protocols.messages.usage import WireUsage
from routecodex.wire import json
from routecodex.wire.frame import Frame


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


_chunk: Decoder[StreamChunk] = Decoder(StreamChunk)
_shapes: dict[type[Any], Decoder[Any]] = {
    shape: Decoder(shape) for shape in (WireDelta, WireMessageStart, WireUsage)
}


def read_chunk(frame: Frame) -> StreamChunk | None:
    """The event in a frame; None when it is no JSON object. A missing `type` is taken from the event line."""
    chunk = json.try_read(frame.data, _chunk)
    if chunk is None:
        chunk = _loosely(frame.data)
    if chunk is not None and not chunk.type:
        chunk.type = "error" if chunk.error is not None else frame.event.decode("ascii", "replace")
    return chunk


def _loosely(data: bytes) -> StreamChunk | None:
    """An event with fields of unexpected types: those that fit are kept."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    block = value.get("content_block")
    kind, index = value.get("type"), value.get("index")
    return StreamChunk(
        type=kind if isinstance(kind, str) else "",
        index=index if isinstance(index, int) else 0,
        delta=_fitting(value.get("delta"), WireDelta),
        content_block=block if isinstance(block, dict) else None,
        message=_fitting(value.get("message"), WireMessageStart, usage=WireUsage),
        usage=_fitting(value.get("usage"), WireUsage),
        error=value.get("error"),
    )


def _fitting(value: Json, shape: type[Any], **nested: type[Any]) -> Any:
    """A Struct of those fields of an object that fit it."""
    if not isinstance(value, dict):
        return None
    out = shape()
    for name in shape.__struct_fields__:
        found = _fitting(value.get(name), nested[name]) if name in nested else value.get(name)
        fitted = json.try_read(json.encode({name: found}), _shapes[shape])
        if found is not None and fitted is not None:
            setattr(out, name, getattr(fitted, name))
    return out


def open_block(block: dict[str, Any]) -> str:
    """The type of a block that begins."""
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""
