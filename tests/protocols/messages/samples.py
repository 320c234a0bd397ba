"""Requests and streams shared by the tests of this codec."""

from __future__ import annotations

from typing import Any

from routecodex.canon.events import Event
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions, ReplyContext, WireRequest
from routecodex.protocols.messages.decode_stream import StreamDecoder
from routecodex.protocols.messages.encode_stream import StreamEncoder
from routecodex.protocols.messages.validate import validate
from routecodex.wire import json, sse

OPTIONS = EncodeOptions(model="m-1", provider="acme")


def reply(**settings: Any) -> ReplyContext:
    """Return a reply context with these settings."""
    return ReplyContext(**{"id": "abc", "created": 1, "model": "asked", "input_tokens": 7, **settings})


def body(**fields: Any) -> bytes:
    """Return the body of a small request with these fields."""
    small = {"model": "asked", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    return json.encode({**small, **fields})


def wire_request(**fields: Any) -> WireRequest:
    """Return the small request, validated."""
    return validate(body(**fields))


def chat_request(*messages: Message, **fields: Any) -> Request:
    """Return a canonical request of another protocol."""
    return Request(**{"model": "asked", "source": "chat", "messages": messages, **fields})


def frame(**event: Any) -> bytes:
    """Return one event of a stream."""
    return sse.frame(json.encode(event), event["type"].encode())


def start(**usage: int) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1, **usage},
    }
    return frame(type="message_start", message=message)


def block(index: int, **fields: Any) -> bytes:
    return frame(type="content_block_start", index=index, content_block=fields)


def delta(index: int, **fields: Any) -> bytes:
    return frame(type="content_block_delta", index=index, delta=fields)


def text(index: int, content: str) -> bytes:
    return delta(index, type="text_delta", text=content)


def stop(index: int) -> bytes:
    return frame(type="content_block_stop", index=index)


def end(reason: str | None, sequence: str | None = None, **usage: int) -> bytes:
    fields = {"stop_reason": reason, "stop_sequence": sequence}
    return frame(type="message_delta", delta=fields, usage={"output_tokens": 9, **usage})


MESSAGE_STOP = frame(type="message_stop")
PING = frame(type="ping")

TEXT_STREAM = [
    start(cache_read_input_tokens=5, cache_creation_input_tokens=2),
    PING,
    block(0, type="text", text=""),
    text(0, "Hello"),
    text(0, ", wörld \U0001f600"),
    stop(0),
    end("end_turn"),
    MESSAGE_STOP,
]

TOOL_STREAM = [
    start(),
    block(0, type="thinking", thinking="", signature=""),
    delta(0, type="thinking_delta", thinking="Let me"),
    delta(0, type="thinking_delta", thinking=" look."),
    delta(0, type="signature_delta", signature="c2ln"),
    stop(0),
    block(1, type="redacted_thinking", data="c2VjcmV0"),
    stop(1),
    block(2, type="text", text=""),
    text(2, "Looking."),
    stop(2),
    block(3, type="tool_use", id="toolu_1", name="look", input={}),
    delta(3, type="input_json_delta", partial_json=""),
    delta(3, type="input_json_delta", partial_json='{"at":'),
    delta(3, type="input_json_delta", partial_json='"x"}'),
    stop(3),
    block(4, type="tool_use", id="toolu_2", name="list", input={}),
    stop(4),
    end("tool_use"),
    MESSAGE_STOP,
]

HOSTED_STREAM = [
    start(),
    block(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    delta(0, type="input_json_delta", partial_json='{"query":"x"}'),
    stop(0),
    block(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
    stop(1),
    block(2, type="text", text="", citations=[]),
    delta(2, type="citations_delta", citation={"type": "page_location", "cited_text": "c"}),
    text(2, "Found."),
    stop(2),
    end("pause_turn"),
    MESSAGE_STOP,
]

STREAMS = {"text": TEXT_STREAM, "tools": TOOL_STREAM, "hosted": HOSTED_STREAM}


def decoded(*pieces: bytes) -> list[Event]:
    """Decode a stream that arrives in these pieces."""
    decoder = StreamDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [*events, *decoder.close()]


def encoded(events: list[Event], **settings: Any) -> bytes:
    """Encode these events as a stream."""
    encoder = StreamEncoder(reply(**settings))
    return b"".join(map(encoder.encode, events))
