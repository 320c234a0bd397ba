"""A chat request read and checked."""

from __future__ import annotations

from typing import Final

from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols import cuts
from routecodex.protocols.chat.checking import check_fields, check_messages
from routecodex.protocols.chat.fast_validate import fast_validate
from routecodex.protocols.chat.schema import RequestBody
from routecodex.protocols.chat.view import RequestView
from routecodex.protocols.codec import WireRequest
from routecodex.wire import json

_decoder: Final = Decoder(RequestBody)

_LONG: Final = ((b"content", 3), (b"text", 5))
"""Where long texts stand: in messages, and in their parts."""


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """The request, checked; BadRequest names the field that is wrong."""
    outline, may_be_tagged = cuts.elide_texts(body, _LONG)
    view = _read_outline(outline) if outline else None
    if view is None:
        outline = b""
        view = _read_whole(body)
    wire = view.fields
    options = wire.stream_options
    return WireRequest(
        protocol="chat",
        body=body,
        wire=view,
        model=wire.model if model is None else model,
        stream=bool(wire.stream) if stream is None else stream,
        include_usage=bool(options is not None and options.include_usage),
        uncut=body if outline else b"",
        outline=outline,
        untagged=not may_be_tagged,
    )


def _read_whole(body: bytes) -> RequestView:
    wire = json.read(body, _decoder)
    json.check_text(body)
    _check(wire)
    return RequestView(wire, len(wire.messages))


def _check(wire: RequestBody) -> None:
    check_fields(wire)
    check_messages(wire.messages)


def _read_outline(outline: bytes) -> RequestView | None:
    """A request without its long texts; None when something is wrong: what, is found in the whole one."""
    valid = fast_validate(outline)
    wire = json.try_read(outline if valid is None else valid[0], _decoder)
    if wire is None:
        return None
    try:
        if valid is not None:
            check_fields(wire)
            return RequestView(wire, valid[2], unread=valid[1], unread_tools=valid[3])
        _check(wire)
    except BadRequest:
        return None
    return RequestView(wire, len(wire.messages))
