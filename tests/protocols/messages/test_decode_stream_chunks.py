from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import Failed, Finished, Started
from routecodex.protocols.grammar import check_broken_messages, check_messages
from routecodex.protocols.messages.decode_stream import read_chunk
from routecodex.protocols.messages.relay import Relay
from routecodex.protocols.messages.schema import StreamChunk, WireDelta, WireMessageStart, WireUsage
from routecodex.wire.sse import Frames
from tests.protocols.messages.samples import TEXT_STREAM, decoded, encoded, frame, reply

KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
    "tomorrow",
]
BLOCKS = ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "tomorrow"]
DELTAS = ["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta"]

odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.integers(-1, 3), st.text("ab{", max_size=3), st.just([]), st.just({})
)
typed = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCKS + DELTAS)},
    optional=dict.fromkeys(
        (
            "text",
            "thinking",
            "partial_json",
            "signature",
            "data",
            "id",
            "name",
            "input",
            "stop_reason",
            "usage",
        ),
        odd,
    ),
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "index": odd,
        "delta": st.one_of(odd, typed),
        "content_block": st.one_of(odd, typed),
        "message": st.one_of(odd, typed),
        "usage": odd,
        "error": odd,
    },
)


def chunk(**event: Any) -> StreamChunk | None:
    [only] = Frames().feed(frame(**event))
    return read_chunk(only)


def test_valid_fields_are_used_if_another_is_invalid() -> None:
    usage = {"input_tokens": 5, "output_tokens": "many", "output_tokens_details": {"thinking_tokens": 2}}
    read = chunk(type="message_start", index=None, message={"id": 5, "model": "m", "usage": usage})
    assert read is not None
    assert isinstance(read.message, WireMessageStart)
    assert (read.message.id, read.message.model) == (None, "m")
    assert isinstance(read.message.usage, WireUsage)
    assert (read.message.usage.input_tokens, read.message.usage.output_tokens) == (5, None)
    assert read.message.usage.output_tokens_details is not None
    assert chunk(
        type="content_block_delta", delta={"type": "text_delta", "text": "a", "thinking": None}
    ) == StreamChunk("content_block_delta", delta=WireDelta("text_delta", "a"))


def test_a_value_that_is_not_an_object_is_not_an_event() -> None:
    assert [read_chunk(frame) for frame in Frames().feed(b"data: [DONE]\n\ndata: 5\n\n")] == [None, None]


@settings(max_examples=300)
@given(st.lists(events, max_size=8), st.booleans())
def test_whatever_a_provider_sends_the_decoder_keeps_its_grammar(stream: list[Any], ends: bool) -> None:
    result = decoded(*(frame(**event) for event in stream), *(TEXT_STREAM if ends else ()))
    assert isinstance(result[0], Started)
    assert isinstance(result[-1], Finished | Failed)
    assert sum(isinstance(event, Started | Finished | Failed) for event in result) == 2
    check = check_messages if isinstance(result[-1], Finished) else check_broken_messages
    if not any(event["type"] == "content_block_start" for event in stream):
        check(encoded(result))


@settings(max_examples=300)
@given(st.lists(events, max_size=8), st.booleans())
def test_whatever_a_provider_sends_the_relay_fails_as_it_should(stream: list[Any], ends: bool) -> None:
    relay = Relay(reply())
    try:
        for event in stream:
            relay.feed(frame(**event))
        if ends:
            relay.feed(b"".join(TEXT_STREAM))
        relay.close()
    except UpstreamError:
        assert not relay.started
    else:
        assert relay.ended
        assert (relay.outcome.finish is None) is (relay.outcome.error is not None)
