"""Requests and streams the tests of this codec share."""

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

AIM = EncodeOptions(model="m-1", provider="acme")
DONE = b"data: [DONE]\n\n"
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "gpt"}
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def reply(**settings: Any) -> ReplyContext:
    """Who is answered, unless the test says otherwise."""
    return ReplyContext(
        **{"id": "abc", "created": 1, "model": "asked", "provider": "acme", "input_tokens": 7, **settings}
    )


def body(**fields: Any) -> bytes:
    """A small request with these fields."""
    return json.encode({"model": "asked", "messages": [{"role": "user", "content": "hi"}], **fields})


def inbound(**fields: Any) -> WireRequest:
    """The small request, read."""
    return validate(body(**fields))


def decoded(**fields: Any) -> Request:
    """The small request in canon."""
    return decode_request(inbound(**fields))


def asking(*messages: Message, **fields: Any) -> Request:
    """A canonical request that came in another protocol."""
    return Request(**{"model": "asked", "source": "messages", "messages": messages, **fields})


def aim(**knobs: Any) -> EncodeOptions:
    """An upstream with this dialect."""
    return EncodeOptions(model="m-1", provider="acme", dialect=Dialect(**knobs))


def sent(request: Request, to: EncodeOptions = AIM) -> dict[str, Any]:
    """The body an upstream gets."""
    value: dict[str, Any] = json.decode(encode_request(request, to).body)
    return value


def noticed(request: Request, to: EncodeOptions = AIM) -> tuple[str, ...]:
    """What could not be said."""
    return encode_request(request, to).notices


def value_of(encoded: EncodedRequest) -> dict[str, Any]:
    """An encoded body as a value."""
    value: dict[str, Any] = json.decode(encoded.body)
    return value


def frame(**fields: Any) -> bytes:
    """One chunk with the usual head."""
    return sse.frame(json.encode({**HEAD, **fields}))


def choice(finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """One chunk with one choice."""
    return frame(choices=[{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}])


def role() -> bytes:
    """The chunk every stream begins with."""
    return choice(role="assistant", content="")


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    """One chunk with a piece of a tool call; what is None is left out."""
    function = {key: item for key, item in (("name", name), ("arguments", arguments)) if item is not None}
    entry: dict[str, Any] = {"function": function}
    if index is not None:
        entry["index"] = index
    if id is not None:
        entry |= {"id": id, "type": "function"}
    return choice(tool_calls=[entry])


def usage(**counts: Any) -> bytes:
    """The chunk with the counts alone."""
    return frame(choices=[], usage={**COUNTS, **counts})


def events(stream: bytes) -> list[Event]:
    """What a decoder tells of the whole stream."""
    decoder = StreamDecoder()
    return [*decoder.feed(stream), *decoder.close()]


def written(told: list[Event], to: ReplyContext | None = None) -> bytes:
    """What an encoder writes for these events."""
    encoder = StreamEncoder(to or reply())
    return b"".join(map(encoder.encode, told))


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream, without [DONE]."""
    found = sse.Frames().feed(stream)
    return [json.decode(item.data) for item in found if item.data != b"[DONE]"]
