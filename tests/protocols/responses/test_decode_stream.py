from __future__ import annotations

import re

import pytest

from routecodex.canon.errors import (
    GatewayError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
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
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response, fold
from routecodex.protocols.responses.decode_stream import StreamDecoder
from tests.protocols.responses.streams import (
    CALL_FRAMES,
    COMPLETED,
    CREATED,
    FULL,
    MESSAGE,
    OUTPUT,
    REASONING_FRAMES,
    TEXT_FRAMES,
    USAGE,
    call_item,
    frame,
    response,
    text_item,
)

ANSWER = Response(
    id="resp_1",
    model="gpt",
    created=7,
    parts=(
        Reasoning("hm\n\nso", signature="gAAA", id="rs_1"),
        Text("héllo"),
        ToolCall("c1", "f", '{"a":1}'),
    ),
    finish=Finish("tool_calls", upstream_reason="completed"),
    usage=Usage(input=10, output=5, cache_read=4, reasoning=2),
)
EMPTY_END = frame("response.completed", response=response(usage=USAGE))


def events(*pieces: bytes) -> list[Event]:
    decoder = StreamDecoder()
    decoded = [event for piece in pieces for event in decoder.feed(piece)]
    return [*decoded, *decoder.close()]


def answer(*frames: bytes) -> Response:
    return fold(events(*frames))


def failure(*frames: bytes) -> GatewayError:
    last = events(*frames)[-1]
    assert isinstance(last, Failed)
    return last.error


def test_full_stream_becomes_events_one_by_one() -> None:
    assert events(*FULL) == [
        Started("resp_1", "gpt", 7, {"service_tier": "default"}),
        PartStarted(0, Reasoning(id="rs_1")),
        ReasoningDelta(0, "hm"),
        ReasoningDelta(0, "\n\n"),
        ReasoningDelta(0, "so"),
        SignatureDelta(0, "gAAA"),
        PartFinished(0),
        PartStarted(1, Text("")),
        TextDelta(1, "hé"),
        TextDelta(1, "llo"),
        PartFinished(1),
        PartStarted(2, ToolCall("c1", "f")),
        ArgumentsDelta(2, '{"a"'),
        ArgumentsDelta(2, ":1}"),
        PartFinished(2),
        UsageReported(Usage(input=10, output=5, cache_read=4, reasoning=2)),
        Finished(Finish("tool_calls", upstream_reason="completed")),
    ]


DONES = [piece for piece in FULL if b"output_item.done" in piece]
DELTAS = [piece for piece in FULL if b".delta" in piece]
ADDED = [piece for piece in FULL if b".delta" in piece or b"item.added" in piece]


@pytest.mark.parametrize(
    "frames",
    [
        FULL,
        [*CREATED, *COMPLETED],
        COMPLETED,
        [*CREATED, *DONES, *COMPLETED],
        [*CREATED, *DONES, EMPTY_END],
        [*DELTAS, *DONES, *COMPLETED],
        [*CREATED, *DELTAS, *COMPLETED],
        [*CREATED, *ADDED, *COMPLETED],
        [*CREATED, *ADDED, *DONES, EMPTY_END],
        [*CREATED, *TEXT_FRAMES[:3], *COMPLETED],
        [re.sub(rb'"output_index": \d', b'"output_index": 0', piece) for piece in FULL],
        [re.sub(rb'"output_index": \d, ', b"", piece) for piece in FULL],
        [re.sub(rb'"item_id": "\w+", ', b"", piece) for piece in FULL],
        [re.sub(rb'"item_id": "', b'"item_id": "%d' % n, piece) for n, piece in enumerate(FULL)],
    ],
)
def test_answer_is_complete_and_not_repeated_whatever_the_upstream_leaves_out(frames: list[bytes]) -> None:
    decoded = answer(*frames)
    # The order may follow the final output, and a head that never came leaves ids empty.
    assert sorted(map(repr, decoded.parts)) == sorted(map(repr, ANSWER.parts))
    assert decoded.finish == ANSWER.finish
    assert decoded.usage == ANSWER.usage


def test_every_split_of_the_stream_gives_the_same_events() -> None:
    stream = b"".join(FULL)
    whole = events(stream)
    assert events(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream.replace(b"\n", b"\r\n"),
        lambda stream: stream.replace(b"\n", b"\r"),
        lambda stream: re.sub(rb"event: .*\n", b"", stream),
        lambda stream: re.sub(rb'"type": "response\.[a-z_.]+", ', b"", stream),
        lambda stream: stream.replace(b"\n\n", b"\n\n: ping\n\n"),
        lambda stream: stream + b"data: [DONE]\n\n",
        lambda stream: stream.replace(b"data: ", b"data:"),
        lambda stream: b"data: garbage\n\ndata: [1]\n\n" + stream,
        lambda stream: stream.rstrip(b"\n"),
        lambda stream: stream.replace(b'"content_index": 0', b'"content_index": 0, "logprobs": null'),
        lambda stream: stream.replace(b'"content_index": 0', b'"content_index": null'),
    ],
)
def test_odd_framing_gives_the_same_events(change: object) -> None:
    assert callable(change)
    assert events(change(b"".join(FULL))) == events(b"".join(FULL))


@pytest.mark.parametrize("count", range(len(FULL)))
def test_truncated_stream_never_finishes(count: int) -> None:
    decoded = events(*FULL[:count])
    assert not any(isinstance(event, Finished) for event in decoded)
    assert isinstance(decoded[-1], Failed)
    assert decoded[-1].error.code == "upstream_truncated"


def test_no_event_follows_the_end() -> None:
    decoder = StreamDecoder()
    decoder.feed(b"".join(FULL))
    assert decoder.feed(b"".join(FULL)) == []
    assert decoder.close() == []


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", Finish("length", upstream_reason="max_output_tokens")),
        ("content_filter", Finish("content_filter", upstream_reason="content_filter")),
    ],
)
def test_incomplete_answers_have_their_reason(reason: str, finish: Finish) -> None:
    end = response("incomplete", incomplete_details={"reason": reason}, output=[text_item("x")])
    assert answer(frame("response.incomplete", response=end)).finish == finish


def test_call_cut_off_by_the_limit_does_not_count_as_a_call() -> None:
    end = response("incomplete", incomplete_details={"reason": "max_output_tokens"})
    frames = [*CREATED, *CALL_FRAMES[:2], frame("response.incomplete", response=end)]
    assert answer(*frames).finish.reason == "length"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", UpstreamFailed),
        ("rate_limit_exceeded", UpstreamLimited),
        ("insufficient_quota", UpstreamLimited),
        ("server_is_overloaded", UpstreamOverloaded),
        ("context_length_exceeded", UpstreamRejected),
        ("invalid_image_url", UpstreamRejected),
        ("invalid_api_key", UpstreamRefusedKey),
        ("429", UpstreamLimited),
        (None, UpstreamFailed),
    ],
)
def test_failures_are_typed(code: str | None, kind: type[GatewayError]) -> None:
    failed = response("failed", error={"code": code, "message": "oh"})
    assert type(failure(*CREATED, frame("response.failed", response=failed))) is kind
    assert type(failure(*CREATED, frame("error", code=code, message="oh"))) is kind
    assert type(failure(b'data: {"error":{"code":"%b","message":"oh"}}\n\n' % str(code).encode())) is kind


def test_refusals_annotations_logprobs_and_hosted_items_become_events() -> None:
    citation = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    entry = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    content = [
        {"type": "output_text", "text": "a", "annotations": [citation], "logprobs": [entry]},
        {"type": "refusal", "refusal": "no"},
    ]
    output = [search, {**MESSAGE, "content": content}]
    decoded = answer(frame("response.completed", response=response(output=output)))
    assert decoded.parts == (
        Opaque("responses", search),
        Text("a", annotations=(citation,)),
        Refusal("no"),
    )
    assert decoded.logprobs == (entry,)


def test_annotations_that_were_streamed_are_not_repeated() -> None:
    citation = {"type": "url_citation", "url": "u"}
    content = [{"type": "output_text", "text": "a", "annotations": [citation]}]
    decoded = answer(
        frame("response.output_text.delta", output_index=0, content_index=0, item_id="m", delta="a"),
        frame("response.output_text.annotation.added", output_index=0, content_index=0, annotation=citation),
        frame("response.completed", response=response(output=[{**MESSAGE, "content": content}])),
    )
    assert decoded.parts == (Text("a", annotations=(citation,)),)


def test_open_models_send_reasoning_as_content() -> None:
    item = {
        "type": "reasoning",
        "id": "rs_9",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "ab"}],
    }
    decoded = answer(
        frame("response.reasoning_text.delta", output_index=0, content_index=0, item_id="rs_9", delta="a"),
        frame("response.output_item.done", output_index=0, item=item),
        EMPTY_END,
    )
    assert decoded.parts == (Reasoning("ab", id="rs_9"),)


def test_custom_calls_namespaces_and_whole_arguments() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "p", "input": ""}
    spaced = {**call_item("{}"), "id": "fc_2", "call_id": "c2", "namespace": "ag"}
    decoded = answer(
        frame("response.output_item.added", output_index=0, item=custom),
        frame("response.custom_tool_call_input.delta", output_index=0, item_id="ctc_1", delta="*** "),
        frame("response.custom_tool_call_input.done", output_index=0, item_id="ctc_1", input="*** End"),
        frame("response.output_item.done", output_index=0, item={**custom, "input": "*** End"}),
        frame("response.output_item.done", output_index=1, item=spaced),
        EMPTY_END,
    )
    assert decoded.parts == (
        ToolCall("c1", "p", "*** End", custom=True),
        ToolCall("c2", "f", "{}", namespace="ag"),
    )


def test_two_calls_with_the_same_index_stay_two() -> None:
    second = {**call_item('{"b":2}'), "id": "fc_2", "call_id": "c2"}
    frames = [
        *CALL_FRAMES,
        frame("response.output_item.added", output_index=2, item={**second, "arguments": ""}),
        frame("response.function_call_arguments.delta", output_index=2, item_id="fc_2", delta='{"b":2}'),
        frame("response.output_item.done", output_index=2, item=second),
    ]
    expected = (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "f", '{"b":2}'))
    assert answer(*frames, EMPTY_END).parts == expected
    final = frame("response.completed", response=response(output=[OUTPUT[2], second]))
    assert answer(*frames, final).parts == expected


def test_the_text_of_a_second_message_stands_apart() -> None:
    items = [text_item("One."), {**text_item("Two."), "id": "msg_2"}]
    parts = answer(frame("response.completed", response=response(output=items))).parts
    assert parts == (Text("One."), Text("Two.", apart=True))


def test_phase_of_a_message_stays_with_its_text() -> None:
    item = {**text_item("x"), "phase": "commentary"}
    (part,) = answer(frame("response.completed", response=response(output=[item]))).parts
    assert isinstance(part, Text)
    assert part.extras == {"responses.item": {"phase": "commentary"}}


def test_reasoning_frames_alone_have_no_text() -> None:
    decoded = events(*CREATED, *REASONING_FRAMES)
    assert not any(isinstance(event, TextDelta) for event in decoded)


def test_a_frame_that_is_too_large_fails_the_answer() -> None:
    decoder = StreamDecoder()
    (failed,) = decoder.feed(b"data: " + b"x" * (33 << 20))
    assert isinstance(failed, Failed)
    assert failed.error.code == "upstream_unparsable"
    assert [*decoder.feed(b"".join(FULL)), *decoder.close()] == []


def test_an_error_that_is_not_utf_8_keeps_its_readable_part() -> None:
    broken = b'data: {"type":"response.failed","response":{"error":{"message":"no \xff","code":"x"}}}\n\n'
    (failed,) = StreamDecoder().feed(broken)
    assert isinstance(failed, Failed)
    assert failed.error.message == "no \ufffd"


@pytest.mark.parametrize("first", [0, 1, 2])
def test_content_index_that_counts_the_reasoning_before_the_message(first: int) -> None:
    """Bedrock Mantle and vLLM: the first part of a message behind reasoning has `content_index` 1."""
    item = {
        **MESSAGE,
        "content": [{"type": "output_text", "text": "one"}, {"type": "refusal", "refusal": "no"}],
    }
    where = {"item_id": "msg_1", "output_index": 0}
    stream = [
        *CREATED,
        frame("response.output_item.added", output_index=0, item={**MESSAGE, "content": []}),
        frame("response.output_text.delta", **where, content_index=first, delta="on"),
        frame("response.output_text.done", **where, content_index=first, text="one"),
        frame("response.refusal.delta", **where, content_index=first + 1, delta="no"),
        frame("response.output_item.done", output_index=0, item=item),
        frame("response.completed", response=response(output=[item], usage=USAGE)),
    ]
    decoder = StreamDecoder()
    events = [*decoder.feed(b"".join(stream)), *decoder.close()]
    assert fold(events).parts == (Text("one"), Refusal("no"))


def test_part_without_events_before_one_with_events() -> None:
    item = {
        **MESSAGE,
        "content": [{"type": "output_text", "text": "one"}, {"type": "output_text", "text": "two"}],
    }
    stream = [
        *CREATED,
        frame("response.output_text.delta", output_index=0, item_id="msg_1", content_index=1, delta="two"),
        frame("response.output_item.done", output_index=0, item=item),
        frame("response.completed", response=response(output=[item], usage=USAGE)),
    ]
    decoder = StreamDecoder()
    events = [*decoder.feed(b"".join(stream)), *decoder.close()]
    assert sorted(part.text for part in fold(events).parts if isinstance(part, Text)) == ["one", "two"]
