"""Requests and streams shared by the tests of this codec."""

from __future__ import annotations

from typing import Any

from routecodex.canon.events import Event
from routecodex.canon.request import Message, Request
from routecodex.protocols.chat.decode_request import decode_request
from routecodex.protocols.chat.decode_stream import StreamDecoder
from routecodex.protocols.chat.encode_request import encode_request
from routecodex.protocols.chat.encode_stream import StreamEncoder
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, ReplyContext, WireRequest
from routecodex.protocols.dialect import Dialect
from routecodex.wire import json, sse

OPTIONS = EncodeOptions(model="m-1", provider="acme")
DONE = b"data: [DONE]\n\n"
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "gpt"}
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def reply(**settings: Any) -> ReplyContext:
    """Return a reply context with these settings."""
    return ReplyContext(
        **{"id": "abc", "created": 1, "model": "asked", "provider": "acme", "input_tokens": 7, **settings}
    )


def body(**fields: Any) -> bytes:
    """Return the body of a small request with these fields."""
    return json.encode({"model": "asked", "messages": [{"role": "user", "content": "hi"}], **fields})


def wire_request(**fields: Any) -> WireRequest:
    """Return the small request, validated."""
    return validate(body(**fields))


def decoded(**fields: Any) -> Request:
    """Return the small request, decoded."""
    return decode_request(wire_request(**fields))


def foreign_request(*messages: Message, **fields: Any) -> Request:
    """Return a canonical request of another protocol."""
    return Request(**{"model": "asked", "source": "messages", "messages": messages, **fields})


def with_dialect(**dialect: Any) -> EncodeOptions:
    """Return the options of an upstream with this dialect."""
    return EncodeOptions(model="m-1", provider="acme", dialect=Dialect(**dialect))


def sent(request: Request, to: EncodeOptions = OPTIONS) -> dict[str, Any]:
    """Return the body for an upstream."""
    value: dict[str, Any] = json.decode(encode_request(request, to).body)
    return value


def notices_of(request: Request, to: EncodeOptions = OPTIONS) -> tuple[str, ...]:
    """Return the notices of an encoded request."""
    return encode_request(request, to).notices


def value_of(encoded: EncodedRequest) -> dict[str, Any]:
    """Decode the JSON of an encoded body."""
    value: dict[str, Any] = json.decode(encoded.body)
    return value


def frame(**fields: Any) -> bytes:
    """Return one chunk with the common head."""
    return sse.frame(json.encode({**HEAD, **fields}))


def choice(finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """Return one chunk with one choice."""
    return frame(choices=[{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}])


def role() -> bytes:
    """Return the first chunk of a stream."""
    return choice(role="assistant", content="")


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    """Return one chunk with a delta of a tool call; None leaves a field out."""
    function = {key: item for key, item in (("name", name), ("arguments", arguments)) if item is not None}
    entry: dict[str, Any] = {"function": function}
    if index is not None:
        entry["index"] = index
    if id is not None:
        entry |= {"id": id, "type": "function"}
    return choice(tool_calls=[entry])


def usage(**counts: Any) -> bytes:
    """Return the chunk with only the usage."""
    return frame(choices=[], usage={**COUNTS, **counts})


def events(stream: bytes) -> list[Event]:
    """Decode a whole stream."""
    decoder = StreamDecoder()
    return [*decoder.feed(stream), *decoder.close()]


def written(events: list[Event], to: ReplyContext | None = None) -> bytes:
    """Encode these events as a stream."""
    encoder = StreamEncoder(to or reply())
    return b"".join(map(encoder.encode, events))


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """Return the chunks of a stream, without [DONE]."""
    found = sse.Frames().feed(stream)
    return [json.decode(item.data) for item in found if item.data != b"[DONE]"]
