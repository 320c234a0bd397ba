"""Requests for token counts: `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from routecodex.canon.request import Request
from routecodex.protocols.codec import EncodeOptions, WireRequest
from routecodex.protocols.messages.outgoing import build
from routecodex.protocols.messages.rewrite import rewrite
from routecodex.protocols.notices import Notices
from routecodex.wire import json

PATH = "/v1/messages/count_tokens"

_UNCOUNTED = (
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
)


def encode_count(request: Request, aim: EncodeOptions) -> bytes:
    """The body that asks a messages provider to count the request."""
    body = build(request, aim, Notices())
    for name in _UNCOUNTED:
        body.pop(name, None)
    return json.encode(body)


def rewrite_count(inbound: WireRequest, aim: EncodeOptions) -> bytes:
    """A messages client's request to count, for a messages provider."""
    body = rewrite(inbound, aim).body
    if not any(b'"%s"' % name.encode() in body for name in _UNCOUNTED):
        return body
    fields = json.read_fields(body)
    kept = {name: value for name, value in fields.items() if name not in _UNCOUNTED}
    return body if len(kept) == len(fields) else json.encode(kept)
