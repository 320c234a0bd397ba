from __future__ import annotations

import re
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamOverloaded
from routecodex.canon.events import (
    AnswerPart,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Message, Request, Tool
from routecodex.canon.response import fold
from routecodex.protocols.grammar import check_broken_messages, check_messages
from routecodex.protocols.messages.thinking import carry_signature
from routecodex.protocols.sealed_signatures import seal
from routecodex.protocols.tool_mapping import flat_name
from routecodex.wire import json
from routecodex.wire.sse import Frames
from tests.protocols.messages.samples import STREAMS, decoded, encoded

DONE = Finished(Finish("stop", upstream_reason="stop"))
CALLED = Finished(Finish("tool_calls", upstream_reason="tool_calls"))


def frames(stream: bytes) -> list[dict[str, Any]]:
    return [json.decode(frame.data) for frame in Frames().feed(stream)]


def blocks(stream: bytes) -> list[Any]:
    """The parts a client would see."""
    return list(fold(decoded(stream)).parts)


@pytest.mark.parametrize("name", STREAMS)
def test_decoded_streams_are_encoded_again(name: str) -> None:
    events = decoded(*STREAMS[name])
    stream = encoded(events)
    check_messages(stream, message_stop_after_calls=True)
    again = fold(decoded(stream))
    expected = fold(events)
    assert (again.parts, again.finish, again.usage) == (expected.parts, expected.finish, expected.usage)


def test_a_small_answer_to_the_byte() -> None:
    events: list[Event] = [
        Started("up", "up-model"),
        PartStarted(0, Text("")),
        TextDelta(0, 'a"\n'),
        PartFinished(0),
    ]
    stream = encoded([*events, UsageReported(Usage(20, 3, cache_read=4, cache_write=1, reasoning=2)), DONE])
    assert stream.decode().split("\n\n") == [
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_abc","type":"message",'
        '"role":"assistant","model":"up-model","content":[],"stop_reason":null,"stop_sequence":null,'
        '"usage":{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,'
        '"output_tokens":1}}}',
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}',
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":"a\\"\\n"}}',
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}',
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
        '"stop_sequence":null},"usage":{"input_tokens":15,"cache_creation_input_tokens":1,'
        '"cache_read_input_tokens":4,"output_tokens":3,"output_tokens_details":{"thinking_tokens":2}}}',
        'event: message_stop\ndata: {"type":"message_stop"}',
        "",
    ]


def test_message_start_has_the_input_tokens_known_by_then() -> None:
    stream = encoded(
        [Started(), UsageReported(Usage(input=50)), PartStarted(0, Text("")), TextDelta(0, "a"), DONE]
    )
    assert frames(stream)[0]["message"]["usage"]["input_tokens"] == 50


def test_usage_is_estimated_if_the_upstream_sent_none() -> None:
    stream = encoded([Started(), PartStarted(0, Text("")), TextDelta(0, "a" * 30), PartFinished(0), DONE])
    usage = frames(stream)[-2]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (7, 11)


@pytest.mark.parametrize("message_stop_after_calls", [True, False])
def test_a_tool_turn_ends_as_its_client_needs_it(message_stop_after_calls: bool) -> None:
    call: list[Event] = [PartStarted(0, ToolCall("a", "f")), PartFinished(0)]
    stream = encoded([Started(), *call, CALLED], message_stop_after_calls=message_stop_after_calls)
    check_messages(stream, message_stop_after_calls=message_stop_after_calls)
    text_turn = encoded([Started(), DONE], message_stop_after_calls=message_stop_after_calls)
    assert frames(text_turn)[-1] == {"type": "message_stop"}


def test_overlapping_parts_are_written_one_after_the_other() -> None:
    events: list[Event] = [
        Started(),
        PartStarted(0, Text("")),
        PartStarted(1, Reasoning()),
        ReasoningDelta(1, "hm"),
        TextDelta(0, "late"),
        PartStarted(2, ToolCall("a", "f")),
        PartStarted(3, ToolCall("b", "g")),
        ArgumentsDelta(3, "{}"),
        ArgumentsDelta(2, '{"x":'),
        PartFinished(1),
        ArgumentsDelta(2, "1}"),
        PartFinished(0),
        PartFinished(3),
        PartFinished(2),
        CALLED,
    ]
    stream = encoded(events)
    check_messages(stream)
    assert blocks(stream) == [
        Reasoning("hm"),
        Text("late"),
        ToolCall("a", "f", '{"x":1}'),
        ToolCall("b", "g", "{}"),
    ]


def test_empty_parts_are_not_written() -> None:
    events: list[Event] = [Started()]
    empty: list[AnswerPart] = [Text(""), Reasoning(), Refusal(""), Opaque("chat", {"type": "x"})]
    for index, part in enumerate(empty):
        events += [PartStarted(index, part), PartFinished(index)]
    assert [event["type"] for event in frames(encoded([*events, DONE]))] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_parts_never_closed_are_closed_at_the_end() -> None:
    stream = encoded([Started(), PartStarted(0, Text("a")), PartStarted(1, ToolCall("a", "f")), CALLED])
    check_messages(stream)
    assert blocks(stream) == [Text("a"), ToolCall("a", "f")]


def test_signatures_leave_sealed_and_in_one_piece() -> None:
    events: list[Event] = [
        Started(),
        PartStarted(0, Reasoning()),
        ReasoningDelta(0, "t"),
        SignatureDelta(0, "s1"),
        SignatureDelta(0, "s2"),
        PartFinished(0),
        PartStarted(1, Reasoning(redacted=True)),
        SignatureDelta(1, "d"),
        PartFinished(1),
        PartStarted(2, Reasoning()),
        SignatureDelta(2, "only"),
        PartFinished(2),
        PartStarted(3, Reasoning()),
        ReasoningDelta(3, "unsigned"),
        PartFinished(3),
        DONE,
    ]
    stream = encoded(events, provider="acme")
    check_messages(stream)
    deltas = [event["delta"] for event in frames(stream) if event["type"] == "content_block_delta"]
    signed = [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"]
    assert signed == [
        seal("acme", "s1s2"),
        seal("acme", "only"),
        seal("acme", ""),
    ]
    assert Reasoning(signature=seal("acme", "d"), redacted=True) in blocks(stream)
    assert b"rcx1" not in encoded(events)


def test_the_signature_of_a_call_travels_beside_it() -> None:
    before: list[Event] = [PartStarted(0, ToolCall("a", "f", signature="s")), PartFinished(0)]
    after: list[Event] = [PartStarted(0, ToolCall("a", "f")), SignatureDelta(0, "s"), PartFinished(0)]
    for events, place in ((before, 0), (after, 1)):
        stream = encoded([Started(), *events, CALLED], provider="acme")
        check_messages(stream)
        found = blocks(stream)
        assert found[place] == Reasoning(signature=carry_signature("acme", "a", signature="s"), redacted=True)
        assert found[1 - place] == ToolCall("a", "f")


def test_calls_have_legal_unique_ids() -> None:
    events: list[Event] = [Started()]
    for index, id in enumerate(("", "", "a.b", "a", "a")):
        events += [PartStarted(index, ToolCall(id, "f")), PartFinished(index)]
    stream = encoded([*events, CALLED])
    check_messages(stream)
    ids = [part.id for part in blocks(stream)]
    assert ids[:2] + ids[3:] == ["toolu_abc_1", "toolu_abc_2", "a", "a_2"]
    assert re.fullmatch("a_b_[0-9a-f]{10}", ids[2])


def test_a_name_too_long_for_the_upstream_comes_back_whole() -> None:
    offered = Tool("mcp__" + "x" * 80)
    request = Request(model="m", source="messages", messages=(Message("user"),), tools=(offered,))
    called: list[Event] = [PartStarted(0, ToolCall("a", flat_name(offered))), PartFinished(0)]
    stream = encoded([Started(), *called, CALLED], request=request)
    assert blocks(stream) == [ToolCall("a", offered.name)]


def test_a_custom_call_is_wrapped_into_json() -> None:
    call = ToolCall("a", "patch", custom=True)
    pieces: list[Event] = [ArgumentsDelta(0, "*** "), ArgumentsDelta(0, '"x"')]
    stream = encoded([Started(), PartStarted(0, call), *pieces, PartFinished(0), CALLED])
    check_messages(stream)
    assert blocks(stream) == [ToolCall("a", "patch", '{"input":"*** \\"x\\""}')]


@pytest.mark.parametrize(
    ("finish", "knows", "expected"),
    [
        (Finish("length"), True, ("max_tokens", None)),
        (Finish("stop", "END"), True, ("stop_sequence", "END")),
        (Finish("content_filter"), True, ("refusal", None)),
        (Finish("content_filter"), False, ("stop_sequence", None)),
        (Finish("pause"), True, ("pause_turn", None)),
        (Finish("error"), True, ("stop_sequence", None)),
    ],
)
def test_stop_reasons(finish: Finish, knows: bool, expected: tuple[str, str | None]) -> None:
    stream = encoded([Started(), Finished(finish)], knows_refusal=knows)
    delta = frames(stream)[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


def test_a_failure_is_an_error_event_and_nothing_that_looks_complete() -> None:
    events: list[Event] = [Started(), PartStarted(0, Text("")), TextDelta(0, "a")]
    stream = encoded([*events, Failed(UpstreamFailed("it broke"))])
    check_broken_messages(stream)
    assert frames(stream)[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "it broke"},
        "code": "upstream_error",
    }
    busy = encoded([*events, Failed(UpstreamOverloaded("busy"))])
    assert frames(busy)[-1]["error"]["type"] == "overloaded_error"
