"""Answers of a provider as a client of any protocol gets them, without a connection."""

from __future__ import annotations

from typing import Any

import msgspec

from routecodex.canon.errors import UpstreamError
from routecodex.canon.response import fold
from routecodex.protocols.codec import Codec, Pipe, ReplyContext, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.translation import Translation, replace_foreign_parts
from tests.kit import asking


def validated(protocol: str, body: Any, *, stream: bool) -> WireRequest:
    """Return a valid request of a client."""
    codec, data = CODECS[protocol], msgspec.json.encode(body)
    return codec.validate(data, model="up.m", stream=stream) if protocol == "gemini" else codec.validate(data)


def _reply(client: Codec) -> ReplyContext:
    wire = validated(client.name, asking.body(client.name, stream=True, tools=True), stream=True)
    request = client.decode_request(wire)
    return ReplyContext(id="0" * 24, created=1, model="m", provider="up", view=wire.view, request=request)


def pipe_of(client: str, upstream: str) -> Pipe:
    """Return what passes a stream of the provider to the client."""
    codec = CODECS[client]
    reply = _reply(codec)
    if client == upstream:
        return codec.relay(reply)
    return Translation(CODECS[upstream].stream_decoder(), codec.stream_encoder(reply), client=codec)


def serve_whole(client: str, upstream: str, body: bytes) -> bytes:
    """Return a whole answer for the client; UpstreamError if it is not one."""
    codec = CODECS[client]
    reply = _reply(codec)
    if client == upstream:
        return codec.relay_response(body, reply)[0]
    response, _ = replace_foreign_parts(fold(CODECS[upstream].decode_response(body)), codec)
    return codec.encode_response(response, reply)


def stream_result(client: str, upstream: str, reads: list[bytes]) -> list[Any]:
    """Return the served bytes, or the error, as values that can be compared."""
    pipe = pipe_of(client, upstream)
    try:
        served = b"".join([*(pipe.feed(data) for data in reads), pipe.close()])
    except UpstreamError as error:
        return ["raised", type(error).__name__, str(error)]
    usage = msgspec.to_builtins(pipe.outcome.usage)
    return [served.hex(), str(pipe.outcome.error or ""), str(pipe.outcome.finish), usage]


def whole_result(client: str, upstream: str, body: bytes) -> list[Any]:
    """Do the same for a whole answer."""
    try:
        return [serve_whole(client, upstream, body).hex()]
    except UpstreamError as error:
        return ["raised", type(error).__name__, str(error)]
