from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import (
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRejected,
)
from routecodex.canon.events import (
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
from routecodex.canon.parts import Opaque, Reasoning, Text, ToolCall
from routecodex.canon.response import fold
from tests.protocols.messages.samples import (
    MESSAGE_STOP,
    STREAMS,
    TEXT_STREAM,
    TOOL_STREAM,
    block,
    decoded,
    delta,
    end,
    frame,
    start,
    stop,
    text,
)


def comparable(events: list[Event]) -> list[object]:
    """Events that can be compared: an error by its type and code."""
    return [(type(e.error), e.error.code) if isinstance(e, Failed) else e for e in events]


def test_a_text_answer_is_decoded_in_order() -> None:
    assert decoded(*TEXT_STREAM) == [
        Started("msg_1", "claude"),
        PartStarted(0, Text("")),
        TextDelta(0, "Hello"),
        TextDelta(0, ", wörld \U0001f600"),
        PartFinished(0),
        UsageReported(Usage(input=17, output=9, cache_read=5, cache_write=2)),
        Finished(Finish("stop", upstream_reason="end_turn")),
    ]


def test_a_tool_turn_is_decoded_in_order() -> None:
    assert decoded(*TOOL_STREAM) == [
        Started("msg_1", "claude"),
        PartStarted(0, Reasoning()),
        ReasoningDelta(0, "Let me"),
        ReasoningDelta(0, " look."),
        SignatureDelta(0, "c2ln"),
        PartFinished(0),
        PartStarted(1, Reasoning(redacted=True)),
        SignatureDelta(1, "c2VjcmV0"),
        PartFinished(1),
        PartStarted(2, Text("")),
        TextDelta(2, "Looking."),
        PartFinished(2),
        PartStarted(3, ToolCall("toolu_1", "look")),
        ArgumentsDelta(3, '{"at":'),
        ArgumentsDelta(3, '"x"}'),
        PartFinished(3),
        PartStarted(4, ToolCall("toolu_2", "list")),
        PartFinished(4),
        UsageReported(Usage(input=10, output=9)),
        Finished(Finish("tool_calls", upstream_reason="tool_use")),
    ]


def test_blocks_only_this_protocol_has_come_whole() -> None:
    response = fold(decoded(*STREAMS["hosted"]))
    assert response.parts == (
        Opaque(
            "messages",
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        ),
        Opaque("messages", {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}),
        Text("Found.", annotations=({"type": "page_location", "cited_text": "c"},)),
    )
    assert response.finish == Finish("pause", upstream_reason="pause_turn")


@pytest.mark.parametrize("name", STREAMS)
def test_chunking_changes_nothing(name: str) -> None:
    whole = b"".join(STREAMS[name])
    expected = decoded(whole)
    assert decoded(*(whole[i : i + 1] for i in range(len(whole)))) == expected
    for cut in range(len(whole) + 1):
        assert decoded(whole[:cut], whole[cut:]) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_the_shape_of_the_frames_changes_nothing(name: str) -> None:
    whole = b"".join(STREAMS[name])
    expected = decoded(whole)
    assert decoded(whole.replace(b"\n", b"\r\n")) == expected
    assert decoded(b": hello\n\n" + whole.replace(b"\n\n", b"\n\n: still here\n\n")) == expected
    nameless = b"".join(part.partition(b"\n")[2] for part in STREAMS[name])
    assert b"event:" not in nameless
    assert decoded(nameless) == expected
    assert decoded(whole + b"data: [DONE]\n\n" + whole) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_a_truncated_stream_never_finishes(name: str) -> None:
    stream = STREAMS[name]
    for count in range(len(stream) - 1):
        events = decoded(*stream[:count])
        assert comparable(events)[-1] == (UpstreamFailed, "upstream_truncated")
        assert not any(isinstance(event, Finished) for event in events)
        assert isinstance(events[0], Started)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stop_reason_ends_the_answer_with_or_without_message_stop(name: str) -> None:
    assert decoded(*STREAMS[name][:-1]) == decoded(*STREAMS[name])


FINISHES: list[tuple[list[bytes], Finish]] = [
    (
        [block(0, type="text", text=""), text(0, "a"), stop(0), end("max_tokens")],
        Finish("length", upstream_reason="max_tokens"),
    ),
    ([end("stop_sequence", "END")], Finish("stop", "END", "stop_sequence")),
    ([end("refusal")], Finish("refusal", upstream_reason="refusal")),
    (
        [end("model_context_window_exceeded")],
        Finish("length", upstream_reason="model_context_window_exceeded"),
    ),
    ([end("tool_use")], Finish("stop", upstream_reason="tool_use")),
    ([], Finish("stop")),
    (
        [block(0, type="tool_use", id="a", name="f", input={}), stop(0), end("end_turn")],
        Finish("tool_calls", upstream_reason="end_turn"),
    ),
    (
        [
            block(0, type="tool_use", id="a", name="f", input={}),
            delta(0, type="input_json_delta", partial_json='{"x":'),
            stop(0),
            end("max_tokens"),
        ],
        Finish("length", upstream_reason="max_tokens"),
    ),
]


@pytest.mark.parametrize(("frames", "expected"), FINISHES)
def test_finish_reasons(frames: list[bytes], expected: Finish) -> None:
    last = decoded(start(), *frames, MESSAGE_STOP)[-1]
    assert last == Finished(expected)


ERRORS: list[tuple[dict[str, Any], type[UpstreamError]]] = [
    ({"type": "overloaded_error", "message": "busy"}, UpstreamOverloaded),
    ({"type": "rate_limit_error", "message": "slow"}, UpstreamLimited),
    ({"type": "invalid_request_error", "message": "bad"}, UpstreamRejected),
    ({"type": "api_error", "message": "oops"}, UpstreamFailed),
    ({"message": "oops"}, UpstreamFailed),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_event_fails_with_its_type(error: dict[str, Any], kind: type[UpstreamError]) -> None:
    last = decoded(start(), frame(type="error", error=error), *TEXT_STREAM)[-1]
    assert isinstance(last, Failed)
    assert type(last.error) is kind
    assert last.error.message == error["message"]


def test_streams_of_deviating_providers_are_decoded() -> None:
    whole_arguments = [
        block(0, type="tool_use", id="a", name="f", input={"x": 1}),
        frame(type="content_block_stop", index=0),
        end("tool_use"),
    ]
    assert fold(decoded(*whole_arguments)).parts == (ToolCall("a", "f", '{"x":1}'),)
    unannounced = [text(0, "a"), text(0, "b"), stop(0), end("end_turn")]
    assert fold(decoded(*unannounced)).parts == (Text("ab"),)
    unclosed = [
        block(0, type="text", text="a"),
        block(1, type="text", text="b"),
        end("end_turn"),
        MESSAGE_STOP,
    ]
    assert fold(decoded(start(), *unclosed)).parts == (Text("a"), Text("b"))
    null_usage = [start(), text(0, "a"), stop(0), end("end_turn", input_tokens=None), MESSAGE_STOP]  # type: ignore[arg-type]  # some send null
    assert fold(decoded(*null_usage)).usage == Usage(input=10, output=9)


def test_fields_of_unexpected_types_do_not_lose_the_event() -> None:
    odd = frame(
        type="content_block_delta", index="0", delta={"type": "text_delta", "text": "a", "thinking": 5}
    )
    assert fold(decoded(start(), odd, stop(0), end("end_turn"))).parts == (Text("a"),)


def test_a_delta_of_another_kind_than_its_block_opens_its_own_part() -> None:
    thought = delta(0, type="thinking_delta", thinking="Hm.")
    stream = [start(), block(0, type="text", text=""), thought, text(0, "Yes."), stop(0), end("end_turn")]
    response = fold(decoded(b"".join([*stream, MESSAGE_STOP])))
    assert response.parts == (Text(""), Reasoning("Hm."), Text("Yes."))
