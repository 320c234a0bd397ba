from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited
from routecodex.canon.events import (
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response, fold
from routecodex.protocols.chat.decode_stream import StreamDecoder
from routecodex.protocols.chat.whole import decode_response
from routecodex.wire import json, sse
from tests.kit import answers
from tests.protocols.chat.samples import DONE, HEAD, call, choice, events, frame, role, usage, written
from tests.protocols.test_grammar import ANSWERS, frames_of


def whole(stream: bytes) -> Response:
    return fold(events(stream))


def calls(stream: bytes) -> list[tuple[str, str, str]]:
    return [
        (part.id, part.name, part.arguments) for part in whole(stream).parts if isinstance(part, ToolCall)
    ]


def comparable(decoded: list[Event]) -> list[Any]:
    """Replace errors by their type and message."""
    return [(type(e.error), e.error.message) if isinstance(e, Failed) else e for e in decoded]


def chunked(stream: bytes, cuts: list[int]) -> list[Any]:
    decoder = StreamDecoder()
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    decoded = [event for piece in pieces for event in decoder.feed(piece)]
    return comparable([*decoded, *decoder.close()])


PAGES = {
    "citations": ["https://a", "https://b", "https://c", 5],
    "search_results": [{"title": "B", "url": "https://b"}, {"url": "https://a"}, "x"],
}
CITED = (
    {"type": "url_citation", "url": "https://a", "title": ""},
    {"type": "url_citation", "url": "https://b", "title": "B", "start_index": 2, "end_index": 5},
    {"type": "url_citation", "url": "https://b", "title": "B", "start_index": 10, "end_index": 13},
    {"type": "url_citation", "url": "https://c", "title": "", "start_index": 5, "end_index": 8},
)


def test_pages_that_perplexity_lists_are_citations_of_the_text() -> None:
    text = "So[2][3]. [2][9]"
    pieces = [
        frame(**PAGES, choices=[{"index": 0, "delta": {"content": piece}}]) for piece in (text[:4], text[4:])
    ]
    end = frame(**PAGES, choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    assert whole(b"".join([*pieces, end, DONE])).parts == (Text(text, annotations=CITED),)
    message = {"role": "assistant", "content": text}
    answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **PAGES}
    assert fold(decode_response(json.encode(answer))).parts == (Text(text, annotations=CITED),)


@pytest.mark.parametrize("citations", [None, [], "https://a", [None]])
def test_a_list_of_pages_without_pages_cites_nothing(citations: Any) -> None:
    piece = frame(citations=citations, choices=[{"index": 0, "delta": {"content": "So[1]"}}])
    assert whole(piece + choice("stop") + DONE).parts == (Text("So[1]"),)


def test_a_plain_answer_is_decoded_in_order() -> None:
    stream = role() + choice(content="Hel") + choice(content="lo") + choice("stop") + usage() + DONE
    assert events(stream) == [
        Started("chatcmpl-1", "gpt", 5),
        PartStarted(0, Text("")),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        UsageReported(Usage(3, 2)),
        PartFinished(0),
        Finished(Finish("stop", upstream_reason="stop")),
    ]


def test_events_come_as_soon_as_their_frame_is_whole() -> None:
    decoder = StreamDecoder()
    decoder.feed(role())
    text = choice(content="Hi")
    assert decoder.feed(text[:-1]) == []
    assert decoder.feed(text[-1:]) == [PartStarted(0, Text("")), TextDelta(0, "Hi")]


MIXED = (
    b": hello\n\n"
    + role()
    + choice(reasoning_content="Hm ✓")
    + choice(content="Grüße")
    + call(0, "a", "f", '{"x')
    + call(1, "b", "g", "{}")
    + call(0, arguments='":1}')
    + choice("tool_calls")
    + usage()
    + DONE
)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_split_gives_the_same_events(ending: bytes) -> None:
    stream = MIXED.replace(b"\n", ending)
    expected = comparable(events(MIXED))
    assert isinstance(expected[-1], Finished)
    for cut in range(len(stream) + 1):
        assert chunked(stream, [cut]) == expected, cut
    assert chunked(stream, list(range(1, len(stream)))) == expected


@pytest.mark.parametrize("scene", ANSWERS)
def test_real_answers_mean_the_same_streamed_and_whole(scene: str) -> None:
    streamed = whole(ANSWERS[scene]("chat", True).data)
    once = fold(decode_response(ANSWERS[scene]("chat", False).data))
    assert [type(part) for part in streamed.parts] == [type(part) for part in once.parts]
    assert (streamed.finish, streamed.usage) == (once.finish, once.usage)


@pytest.mark.parametrize("scene", ["text", "two tool calls", "thinking", "refusal", "length"])
def test_a_stream_cut_at_any_frame_is_never_finished(scene: str) -> None:
    frames = frames_of(ANSWERS[scene]("chat", True))
    end = next(at for at, item in enumerate(frames) if b'"finish_reason":"' in item)
    for cut in range(end + 1):
        decoded = events(b"".join(frames[:cut]))
        assert isinstance(decoded[-1], Failed), cut
        assert decoded[-1].error.code == "upstream_truncated"
        assert not any(isinstance(event, Finished) for event in decoded)
    for cut in range(end + 1, len(frames) + 1):
        assert isinstance(events(b"".join(frames[:cut]))[-1], Finished), cut


def test_a_stream_cut_in_the_middle_of_a_frame_is_never_finished() -> None:
    stream = role() + choice(content="Hello") + call(0, "a", "f", '{"cmd":"rm -rf build/tmp"}')
    for cut in range(len(stream)):
        decoded = events(stream[:cut])
        assert isinstance(decoded[-1], Failed)
        assert sum(isinstance(event, Failed | Finished) for event in decoded) == 1


ENDS: list[tuple[str, bytes]] = [
    ("no [DONE]", choice("stop") + usage()),
    ("no [DONE] and no usage", choice("stop")),
    ("no blank line at the end", (choice("stop") + usage() + DONE)[:-1]),
    ("no blank line after the finish", choice("stop")[:-2]),
    ("a space after [DONE]", choice("stop") + b"data: [DONE] \n\n"),
    ("usage in the finish chunk", frame(choices=[{"delta": {}, "finish_reason": "stop"}], usage={})),
    (
        "usage in every chunk",
        frame(choices=[{"delta": {}, "finish_reason": "stop"}], usage={}) + usage() + DONE,
    ),
    ("no finish but [DONE]", usage() + DONE),
    ("an empty finish reason", choice("") + DONE),
    ("bytes after [DONE]", choice("stop") + DONE + choice(content="more") + b"data: {"),
    ("empty frames", b"data: \n\n" + choice("stop") + b"data:\n\n" + DONE),
]


@pytest.mark.parametrize("end", [row[1] for row in ENDS], ids=[row[0] for row in ENDS])
def test_upstreams_end_in_many_ways(end: bytes) -> None:
    found = whole(role() + choice(content="Hi") + end)
    assert found.parts == (Text("Hi"),)
    assert found.finish.reason == "stop"


LATE = [
    b"data: JUNK\n\n",
    frame(error={"message": "JUNK"}),
    choice(content="JUNK"),
    choice(content="JUNK") + choice(content="JUNK"),
    call(0, "a", "JUNK", "{}"),
]


@pytest.mark.parametrize("late", LATE, ids=range(len(LATE)))
def test_nothing_follows_the_finish(late: bytes) -> None:
    found = whole(role() + choice(content="Hi") + choice(content="!") + choice("stop") + late)
    assert (found.parts, found.finish.reason) == ((Text("Hi!"),), "stop")


def test_only_a_finish_that_is_not_repeated_survives_a_break() -> None:
    broken = UpstreamFailed("the connection broke")
    decoder = StreamDecoder()
    done = fold([*decoder.feed(role() + choice("stop", content="Hi")), *decoder.fail(broken)])
    assert (done.parts, decoder.fail(broken)) == ((Text("Hi"),), [])
    decoder = StreamDecoder()
    twice = choice("stop", content="Hi") + choice("stop", content="!")
    assert [*decoder.feed(role() + twice), *decoder.fail(broken)][-1] == Failed(broken)
    assert whole(role() + twice).parts == (Text("Hi!"),)


def test_usage_is_found_wherever_it_is() -> None:
    glued = frame(choices=[{"delta": {}, "finish_reason": "stop"}], usage={"prompt_tokens": 4})
    details = {
        "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    hit = frame(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8})
    odd = frame(
        choices=[], usage={"prompt_tokens": 9.0, "completion_tokens": "1", "prompt_cache_hit_tokens": 8}
    )
    text = role() + choice(content="Hi")
    assert whole(text + glued + DONE).usage == Usage(4, 0)
    assert whole(text + choice("stop") + usage(**details) + DONE).usage == Usage(3, 2, 1, 2, 1)
    assert whole(text + choice("stop") + hit + DONE).usage == Usage(9, 1, 8)
    assert whole(text + choice("stop") + odd + DONE).usage == Usage(9, 1, 8)
    assert whole(text + choice("stop") + DONE).usage is None


CALLS: list[tuple[str, bytes, list[tuple[str, str]]]] = [
    (
        "in pieces",
        call(0, "a", "f", "") + call(0, arguments='{"x"') + call(0, arguments=":1}"),
        [("f", '{"x":1}')],
    ),
    ("whole at once", call(0, "a", "f", '{"x":1}'), [("f", '{"x":1}')]),
    ("no index", call(None, "a", "f", "{") + call(None, arguments="}"), [("f", "{}")]),
    (
        "two without index",
        call(None, "a", "f", "{") + call(None, arguments="}") + call(None, "b", "g", "{}"),
        [("f", "{}"), ("g", "{}")],
    ),
    ("an index in the first piece only", call(0, "a", "f", "{") + call(None, arguments="}"), [("f", "{}")]),
    ("an index in later pieces only", call(None, "a", "f", "{") + call(0, arguments="}"), [("f", "{}")]),
    (
        "interleaved without index",
        call(None, "a", "f", "{")
        + call(None, "b", "g", "{")
        + call(None, "a", arguments="}")
        + call(None, "b", arguments="}"),
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "all numbered 0",
        call(0, "a", "f", "{") + call(0, arguments="}") + call(0, "b", "g", "{") + call(0, arguments="}"),
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "all numbered 0 and interleaved by id",
        call(0, "a", "f", "{")
        + call(0, "b", "g", "{")
        + call(0, "a", arguments="}")
        + call(0, "b", arguments="}"),
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "id and name in every piece",
        call(0, "a", "f", "{") + call(0, "a", "f", "}"),
        [("f", "{}")],
    ),
    ("a new id in every piece", call(0, "a", "f", "{") + call(0, "z", arguments="}"), [("f", "{}")]),
    (
        "interleaved",
        call(0, "a", "f", "{") + call(1, "b", "g", "{") + call(0, arguments="}") + call(1, arguments="}"),
        [("f", "{}"), ("g", "{}")],
    ),
    ("numbered from 1", call(1, "a", "f", "{}") + call(2, "b", "g", "{}"), [("f", "{}"), ("g", "{}")]),
    ("numbered -1", call(-1, "a", "f", "{") + call(-1, arguments="}"), [("f", "{}")]),
    ("arguments as an object", call(0, "a", "f", {"x": 1}), [("f", '{"x":1}')]),
    ("no arguments", call(0, "a", "f"), [("f", "")]),
    (
        "white space after the arguments",
        call(0, "a", "f", "{}") + call(1, "b", "g", "{}") + call(0, arguments="\n"),
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "the old function_call",
        choice(function_call={"name": "f", "arguments": "{"}) + choice(function_call={"arguments": "}"}),
        [("f", "{}")],
    ),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_calls_are_distinguished_with_any_numbering(stream: bytes, expected: list[tuple[str, str]]) -> None:
    found = calls(role() + stream + choice("stop") + DONE)
    assert [(name, arguments) for _, name, arguments in found] == expected
    assert len({id for id, _, _ in found}) == len(expected)
    assert whole(role() + stream + DONE).finish.reason == "tool_calls"


NAMED_LATE: list[tuple[str, bytes, list[tuple[str, str, str]]]] = [
    (
        "with the arguments",
        call(0, "a", arguments="") + call(0, name="f", arguments="{}"),
        [("a", "f", "{}")],
    ),
    ("after some", call(0, "a", arguments="{") + call(0, name="f", arguments="}"), [("a", "f", "{}")]),
    (
        "between two calls",
        call(0, "a", arguments="{}") + call(1, "b", "g", "{}") + call(0, name="f"),
        [("b", "g", "{}"), ("a", "f", "{}")],
    ),
    ("never", call(0, "a", arguments="{}"), [("a", "", "{}")]),
]


@pytest.mark.parametrize(
    ("pieces", "expected"), [row[1:] for row in NAMED_LATE], ids=[row[0] for row in NAMED_LATE]
)
def test_a_call_is_announced_once_its_name_is_known(
    pieces: bytes, expected: list[tuple[str, str, str]]
) -> None:
    assert calls(role() + pieces + choice("tool_calls") + DONE) == expected
    assert calls(role() + pieces + DONE) == expected


def test_a_call_without_id_gets_one_that_no_other_answer_has() -> None:
    def first_id(answer: str) -> str:
        chunk = {**HEAD, "id": answer, "choices": [{"delta": {"tool_calls": [{"function": {"name": "f"}}]}}]}
        return calls(sse.frame(json.encode(chunk)) + DONE)[0][0]

    assert first_id("chatcmpl-1") == first_id("chatcmpl-1")
    assert first_id("chatcmpl-1") != first_id("chatcmpl-2")
    assert first_id("") != first_id("")


def test_parts_are_closed_when_the_next_begins() -> None:
    decoded = events(MIXED)
    assert [
        (type(event), event.index) for event in decoded if isinstance(event, PartStarted | PartFinished)
    ] == [
        (PartStarted, 0),
        (PartFinished, 0),
        (PartStarted, 1),
        (PartFinished, 1),
        (PartStarted, 2),
        (PartStarted, 3),
        (PartFinished, 2),
        (PartFinished, 3),
    ]


def test_custom_calls_are_free_text() -> None:
    def custom(**body: str) -> bytes:
        return choice(tool_calls=[{"index": 0, "custom": body, **({"id": "a"} if "name" in body else {})}])

    stream = role() + custom(name="patch", input="12") + custom(input="3") + choice("tool_calls") + DONE
    assert whole(stream).parts == (ToolCall("a", "patch", "123", custom=True),)


FINISHES: list[tuple[str | None, bytes, Finish]] = [
    ("stop", choice(content="x"), Finish("stop", upstream_reason="stop")),
    ("length", choice(content="x"), Finish("length", upstream_reason="length")),
    ("content_filter", choice(content="x"), Finish("content_filter", upstream_reason="content_filter")),
    ("stop", call(0, "a", "f", "{}"), Finish("tool_calls", upstream_reason="stop")),
    ("tool_calls", choice(content="x"), Finish("stop", upstream_reason="tool_calls")),
    ("length", call(0, "a", "f", "{}"), Finish("tool_calls", upstream_reason="length")),
    ("length", call(0, "a", "f", '{"x'), Finish("length", upstream_reason="length")),
    ("length", call(0, "a", "f"), Finish("length", upstream_reason="length")),
    ("stop", call(0, "a", "f"), Finish("tool_calls", upstream_reason="stop")),
]


@pytest.mark.parametrize(("reason", "content", "expected"), FINISHES, ids=range(len(FINISHES)))
def test_the_finish_reason_is_corrected(reason: str, content: bytes, expected: Finish) -> None:
    assert whole(role() + content + choice(reason) + DONE).finish == expected


ODD: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("content as a list", {"content": [{"type": "text", "text": "Hi"}]}, (Text("Hi"),)),
    (
        "reasoning parts in the content",
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                {"type": "text", "text": "Hi"},
            ]
        },
        (Reasoning("Hm"), Text("Hi")),
    ),
    (
        "reasoning as text in the content",
        {"content": [{"type": "thinking", "thinking": "Hm"}]},
        (Reasoning("Hm"),),
    ),
    ("only unusable parts", {"content": ["x", {"type": "image"}, {"text": 5}]}, ()),
    ("reasoning", {"reasoning": "Hm"}, (Reasoning("Hm"),)),
    ("both names of reasoning", {"reasoning": "Hm", "reasoning_content": "Hm"}, (Reasoning("Hm"),)),
    ("a refusal", {"refusal": "No."}, (Refusal("No."),)),
    ("numbers as text", {"content": 5, "refusal": None, "reasoning_content": "Hm"}, (Reasoning("Hm"),)),
    (
        "citations beside unusual content",
        {"content": [{"type": "text", "text": "Hi"}], "annotations": [{"a": 1}]},
        (Text("Hi", annotations=({"a": 1},)),),
    ),
    (
        "a custom call beside unusual content",
        {"content": [], "tool_calls": [{"index": 0, "id": "a", "custom": {"name": "p", "input": "x"}}]},
        (ToolCall("a", "p", "x", custom=True),),
    ),
    ("calls that are none", {"content": [], "tool_calls": ["x"]}, ()),
]


@pytest.mark.parametrize(("delta", "parts"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
def test_unusual_deltas_are_read(delta: dict[str, Any], parts: tuple[Any, ...]) -> None:
    assert whole(role() + choice(**delta) + choice("stop") + DONE).parts == parts


def test_unusual_chunks_are_read() -> None:
    chunk = {"id": 5, "created": 7.5, "model": None, "choices": [{"index": None, "delta": {"content": "Hi"}}]}
    late = {"choices": [5, {"index": 0, "finish_reason": "stop"}], "usage": "none", "error": None}
    stream = b"".join(sse.frame(json.encode(item)) for item in (chunk, late))
    assert whole(stream) == Response("", "", 7, (Text("Hi"),), Finish("stop", upstream_reason="stop"))


def test_only_the_first_choice_is_decoded() -> None:
    stream = role() + choice(content="a") + choice(index=1, content="b") + choice("stop") + choice("stop", 1)
    assert whole(stream + DONE).parts == (Text("a"),)


def test_logprobs_and_annotations_stay_with_their_text() -> None:
    chunk = frame(
        choices=[{"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [{"token": "Hi"}]}}]
    )
    found = whole(chunk + choice(annotations=[{"url": "u"}]) + choice("stop") + DONE)
    assert found.logprobs == ({"token": "Hi"},)
    assert found.parts == (Text("Hi", annotations=({"url": "u"},)),)


def test_the_transcript_of_audio_becomes_text() -> None:
    stream = role() + choice(audio={"id": "a"}) + choice(audio={"transcript": "Hel"})
    stream += choice(audio={"data": "QUFB"}) + choice(audio={"transcript": "lo"}) + choice("stop") + DONE
    assert whole(stream).parts == (Text("Hello"),)


def test_images_are_parts_that_only_chat_has() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}
    stream = role() + choice(content="See:") + choice(content="", images=[image]) + choice("stop") + DONE
    assert whole(stream).parts == (Text("See:"), Opaque("chat", image))
    decoder = StreamDecoder()
    assert written([*decoder.feed(stream), *decoder.close()]).count(json.encode([image])) == 1


def test_the_tier_and_fingerprint_are_kept() -> None:
    first = frame(service_tier="default", system_fingerprint="fp", choices=[{"delta": {"content": "x"}}])
    assert whole(first + choice("stop") + DONE).extras == {
        "service_tier": "default",
        "system_fingerprint": "fp",
    }


FAILURES: list[tuple[str, Callable[[], bytes], str]] = [
    ("an empty stream", lambda: b"", "upstream_truncated"),
    ("only comments", lambda: b": hi\n\n", "upstream_truncated"),
    ("only [DONE]", lambda: DONE, "upstream_truncated"),
    ("a role and [DONE]", lambda: role() + DONE, "upstream_truncated"),
    ("no json", lambda: b"data: hello\n\n", "upstream_unparsable"),
    ("html", lambda: b"<html></html>", "upstream_truncated"),
    ("no object", lambda: b"data: [1]\n\n", "upstream_unparsable"),
    ("an error", lambda: sse.frame(json.encode({"error": {"message": "no"}})), "upstream_error"),
    ("a frame without end", lambda: b"data: " + b"x" * (33 << 20), "upstream_unparsable"),
]


@pytest.mark.parametrize(("stream", "code"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_an_invalid_stream_fails_once(stream: Callable[[], bytes], code: str) -> None:
    decoder = StreamDecoder()
    decoded = [*decoder.feed(stream()), *decoder.close(), *decoder.feed(choice("stop")), *decoder.close()]
    (end,) = [event for event in decoded if isinstance(event, Failed | Finished)]
    assert isinstance(end, Failed)
    assert isinstance(end.error, UpstreamFailed)
    assert end.error.code == code


def test_nothing_follows_the_end() -> None:
    decoder = StreamDecoder()
    assert isinstance(decoder.feed(role() + choice("stop", content="x") + DONE)[-1], Finished)
    assert decoder.feed(b"data: " + b"x" * (33 << 20)) == []
    assert decoder.close() == []


def test_an_error_in_the_middle_is_the_error_it_stands_for() -> None:
    limited = sse.frame(json.encode({"error": {"message": "slow down", "code": 429}}))
    decoded = events(role() + choice(content="Hi") + limited + choice("stop") + DONE)
    assert isinstance(decoded[-1], Failed)
    assert isinstance(decoded[-1].error, UpstreamLimited)
    assert decoded[-1].error.message == "slow down"


def test_an_error_that_is_not_utf_8_is_decoded_as_far_as_possible() -> None:
    failed = events(role() + b'data: {"error":{"message":"slow \xff down","code":429}}\n\n')[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UpstreamLimited)
    assert failed.error.message == "slow \ufffd down"


def test_reasoning_and_text_may_alternate() -> None:
    stream = role() + choice(reasoning_content="a") + choice(content="b") + choice(reasoning_content="c")
    decoded = events(stream + choice("stop") + DONE)
    assert [event for event in decoded if isinstance(event, ReasoningDelta)] == [
        ReasoningDelta(0, "a"),
        ReasoningDelta(2, "c"),
    ]
    assert fold(decoded).parts == (Reasoning("a"), Text("b"), Reasoning("c"))


def test_a_broken_upstream_gives_an_error() -> None:
    decoded = events(b"".join(frames_of(answers.cut_off("chat", "Hello there"))))
    assert isinstance(decoded[-1], Failed)


HALF = role() + call(0, "call_1", "shell", "") + call(0, arguments='{"command":"rm -rf /tmp/bui')


@pytest.mark.parametrize("reason", ["network_error", "insufficient_system_resource", "abort", "error"])
@pytest.mark.parametrize("begun", [role(), role() + choice(content="Half a sen"), HALF])
def test_an_answer_that_its_upstream_aborted_is_never_finished(begun: bytes, reason: str) -> None:
    decoded = events(begun + choice(reason) + DONE)
    assert isinstance(decoded[-1], Failed)
    assert decoded[-1].error.message == f"the upstream broke the answer off: {reason}"


def test_half_a_call_without_a_finish_is_never_finished() -> None:
    decoded = events(HALF + DONE)
    assert isinstance(decoded[-1], Failed)
    assert decoded[-1].error.code == "upstream_truncated"
    assert isinstance(events(HALF + call(0, arguments='ld"}') + DONE)[-1], Finished)
