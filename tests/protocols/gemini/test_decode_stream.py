from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited, UpstreamOverloaded, UpstreamRefusedKey
from routecodex.canon.events import (
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Text, ToolCall
from routecodex.canon.response import Response, fold
from routecodex.protocols.gemini import CODEC

COUNTS = {
    "promptTokenCount": 10,
    "toolUsePromptTokenCount": 2,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 3,
    "cachedContentTokenCount": 4,
    "totalTokenCount": 20,
}
USAGE = Usage(input=12, output=8, cache_read=4, reasoning=3)


def chunk(*parts: Any, **candidate: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}],
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
    }


def frames(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in chunks)


def decode(*pieces: bytes) -> list[Event]:
    decoder = CODEC.stream_decoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + list(decoder.close())


CALL = {"functionCall": {"name": "look", "args": {"q": "ü{"}}, "thoughtSignature": "BBBB"}
STREAM = frames(
    {**chunk({"text": "Hm", "thought": True}), "usageMetadata": {"promptTokenCount": 10}},
    chunk({"text": "m.", "thought": True}, {"text": "Hel"}),
    chunk({"text": "lo"}),
    chunk({"text": "", "thoughtSignature": "AAAA"}),
    chunk(CALL, {"functionCall": {"id": "x", "name": "see"}}),
    chunk({"executableCode": {"code": "1"}}),
    {**chunk({"text": ""}, finishReason="STOP"), "usageMetadata": COUNTS},
)
ANSWER = Response(
    id="r1",
    model="gemini-2.5-flash",
    parts=(
        Reasoning("Hmm."),
        Text("Hello", signature="AAAA"),
        ToolCall("call_r1_0", "look", '{"q": "\\u00fc{"}', signature="BBBB"),
        ToolCall("x", "see", "{}"),
        Opaque("gemini", {"executableCode": {"code": "1"}}, Text("\n```\n1\n```\n")),
    ),
    finish=Finish("tool_calls", upstream_reason="STOP"),
    usage=USAGE,
)


def grammatical(events: Sequence[Event]) -> bool:
    """Return whether the events follow the grammar of canon.events, with one part open at a time."""
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished | Failed)
    middle = events[1:-1]
    starts = [event.index for event in middle if isinstance(event, PartStarted)]
    ends = [event.index for event in middle if isinstance(event, PartFinished)]
    return starts == ends == list(range(len(starts))) and not any(
        isinstance(event, Started | Finished | Failed) for event in middle
    )


def test_a_stream_folds_to_the_answer() -> None:
    events = decode(STREAM)
    assert fold(events) == ANSWER
    assert grammatical(events)


def test_every_cut_of_a_stream_gives_the_same_events() -> None:
    whole = decode(STREAM)
    for at in range(len(STREAM)):
        assert decode(STREAM[:at], STREAM[at:]) == whole
    assert decode(*[bytes([byte]) for byte in STREAM]) == whole


def as_array(stream: bytes) -> bytes:
    pieces = [json.loads(block[6:]) for block in stream.split(b"\n\n") if block]
    return json.dumps(pieces, indent=2).encode()


@pytest.mark.parametrize(
    "stream",
    [
        STREAM.replace(b"\n", b"\r\n"),
        b": hello\n\n" + STREAM.replace(b"\n\n", b"\n\n: ping\n\n"),
        STREAM.replace(b"data: ", b"data:"),
        STREAM[:-2],
        STREAM + b"data: [DONE]\n\n",
        b"\xef\xbb\xbf" + STREAM,
        STREAM.replace(b'"totalTokenCount": 20', b'"totalTokenCount": "20"'),
    ],
    ids=["crlf", "comments", "no space", "no last blank line", "done", "byte order mark", "counts as text"],
)
def test_odd_framing_gives_the_same_events(stream: bytes) -> None:
    assert fold(decode(stream)) == ANSWER


def test_a_json_array_is_decoded_at_every_split() -> None:
    array = as_array(STREAM)
    whole = decode(array)
    assert fold(whole).parts[0] == Reasoning("Hmm.")
    assert fold(whole).parts[2] == ToolCall("call_r1_0", "look", '{"q":"\\u00fc{"}', signature="BBBB")
    for at in range(len(array)):
        assert decode(array[:at], array[at:]) == whole
    assert decode(*[bytes([byte]) for byte in array]) == whole


def test_a_stream_cut_off_never_looks_complete() -> None:
    blocks = STREAM.split(b"\n\n")[:-1]
    for count in range(len(blocks)):
        events = decode(b"".join(block + b"\n\n" for block in blocks[:count]))
        assert grammatical([*events[:1], events[-1]])
        assert isinstance(events[-1], Failed)
        assert events[-1].error.code == "upstream_truncated"
    array = as_array(STREAM)
    last = array.rindex(b"finishReason")
    assert all(isinstance(decode(array[:at])[-1], Failed) for at in range(0, last, 7))


def test_a_finish_reason_in_every_chunk_does_not_end_the_stream() -> None:
    stream = frames(chunk({"text": "A"}, finishReason="STOP"), chunk({"text": "B"}, finishReason="STOP"))
    assert fold(decode(stream)).parts == (Text("AB"),)


@pytest.mark.parametrize(
    "late",
    [
        b"data: JUNK\n\n",
        frames({"error": {"code": 500, "message": "JUNK"}}),
        frames(chunk({"text": "JUNK"})),
        frames(chunk({"functionCall": {"name": "JUNK"}})),
    ],
)
def test_nothing_follows_the_finish(late: bytes) -> None:
    assert fold(decode(STREAM + late)) == fold(decode(STREAM, late)) == ANSWER


def test_only_a_finish_that_is_not_repeated_survives_a_break() -> None:
    broken = UpstreamFailed("the connection broke")
    one, two = chunk({"text": "A"}, finishReason="STOP"), chunk({"text": "B"}, finishReason="STOP")
    decoder = CODEC.stream_decoder()
    assert fold([*decoder.feed(frames(one)), *decoder.fail(broken)]).parts == (Text("A"),)
    assert decoder.fail(broken) == []
    decoder = CODEC.stream_decoder()
    assert [*decoder.feed(frames(one, two)), *decoder.fail(broken)][-1] == Failed(broken)


def test_a_blocked_prompt_is_filtered_content_not_an_error() -> None:
    body = {"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 3}}
    expected = Response(
        finish=Finish("content_filter", upstream_reason="SAFETY"),
        usage=Usage(input=3),
        extras={"promptFeedback": {"blockReason": "OTHER"}},
    )
    assert fold(decode(frames(body))) == expected
    assert fold(CODEC.decode_response(json.dumps(body).encode())) == expected


FINISHES = [
    ("STOP", Finish("stop", upstream_reason="STOP")),
    ("MAX_TOKENS", Finish("length", upstream_reason="MAX_TOKENS")),
    ("RECITATION", Finish("content_filter", upstream_reason="RECITATION")),
    ("MALFORMED_FUNCTION_CALL", Finish("error", upstream_reason="MALFORMED_FUNCTION_CALL")),
]


@pytest.mark.parametrize(("reason", "finish"), FINISHES)
def test_finish_reasons(reason: str, finish: Finish) -> None:
    assert fold(decode(frames(chunk({"text": "A"}, finishReason=reason)))).finish == finish


def test_a_whole_answer_equals_its_stream() -> None:
    body = {
        **chunk(
            {"text": "Hmm.", "thought": True},
            {"text": "Hello", "thoughtSignature": "AAAA"},
            CALL,
            {"functionCall": {"id": "x", "name": "see"}},
            {"executableCode": {"code": "1"}},
            finishReason="STOP",
        ),
        "usageMetadata": COUNTS,
    }
    events = CODEC.decode_response(json.dumps(body).encode())
    assert fold(events) == ANSWER
    assert grammatical(events)


def test_usage_is_reported_at_the_start_and_at_the_end() -> None:
    counted = [event.usage for event in decode(STREAM) if isinstance(event, UsageReported)]
    assert counted == [Usage(input=10), USAGE]


def test_calls_of_two_answers_without_ids_get_different_ids() -> None:
    body = json.dumps({"candidates": [{"content": {"parts": [CALL, CALL]}}]}).encode()
    parts = [*fold(CODEC.decode_response(body)).parts, *fold(CODEC.decode_response(body)).parts]
    assert len({part.id for part in parts if isinstance(part, ToolCall)}) == 4


def test_grounding_becomes_citations_and_is_kept() -> None:
    grounding = {
        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
        "groundingSupports": [{"segment": {"endIndex": 5}, "groundingChunkIndices": [0, 9]}],
    }
    answer = fold(decode(frames(chunk({"text": "Hello"}, finishReason="STOP", groundingMetadata=grounding))))
    citation = {
        "type": "url_citation",
        "url": "https://a.example",
        "title": "A",
        "start_index": 0,
        "end_index": 5,
    }
    assert answer.parts == (Text("Hello", annotations=(citation,)),)
    assert answer.extras == {"groundingMetadata": grounding}


def test_logprobs_become_entries_of_chat() -> None:
    chosen = {"token": "A", "tokenId": 1, "logProbability": -0.5}
    result = {"chosenCandidates": [chosen], "topCandidates": [{"candidates": [chosen]}]}
    answer = fold(decode(frames(chunk({"text": "A"}, finishReason="STOP", logprobsResult=result))))
    entry = {"token": "A", "logprob": -0.5, "bytes": [65]}
    assert answer.logprobs == ({**entry, "top_logprobs": [entry]},)


ODD_LOGPROBS: list[Any] = [
    7,
    {"chosenCandidates": 7},
    {"chosenCandidates": [{"token": "A"}], "topCandidates": [None]},
    {"chosenCandidates": [{"token": "A"}], "topCandidates": {"a": 1}},
    {"chosenCandidates": [{"token": "A", "logProbability": "x"}], "topCandidates": [{"candidates": 7}]},
]


@pytest.mark.parametrize("result", ODD_LOGPROBS, ids=range(len(ODD_LOGPROBS)))
def test_malformed_logprobs_keep_their_readable_part(result: Any) -> None:
    answer = fold(decode(frames(chunk({"text": "A"}, finishReason="STOP", logprobsResult=result))))
    known = {"token": "A", "logprob": 0.0, "bytes": [65], "top_logprobs": []}
    assert answer.logprobs in ((), (known,))
    assert answer.parts == (Text("A"),)


def test_malformed_tokens_are_empty() -> None:
    result = {"chosenCandidates": [None], "topCandidates": [{"candidates": [7]}]}
    answer = fold(decode(frames(chunk({"text": "A"}, finishReason="STOP", logprobsResult=result))))
    entry = {"token": "", "logprob": 0.0, "bytes": []}
    assert answer.logprobs == ({**entry, "top_logprobs": [entry]},)


ERRORS: list[tuple[Any, type[Exception]]] = [
    ({"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}, UpstreamLimited),
    ({"code": 503, "message": "busy", "status": "UNAVAILABLE"}, UpstreamOverloaded),
    ({"message": "bad key", "status": "UNAUTHENTICATED"}, UpstreamRefusedKey),
    ({"message": "broken"}, UpstreamFailed),
    ("broken", UpstreamFailed),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_inside_an_answer_is_that_error(error: Any, kind: type[Exception]) -> None:
    events = decode(frames(chunk({"text": "A"}), {"error": error}, chunk({"text": "B"}, finishReason="STOP")))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, kind)
    bare = decode(json.dumps({"error": error}, indent=2).encode())
    assert isinstance(bare[-1], Failed)
    assert isinstance(bare[-1].error, kind)
    with pytest.raises(kind):
        CODEC.decode_response(json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"choices":[]}', b'{"candidates":[]}', b'{"candidates":7}']
)
def test_a_body_that_is_not_an_answer_is_unparsable(body: bytes) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        CODEC.decode_response(body)
    assert caught.value.code == "upstream_unparsable"


def test_a_stream_as_one_array_gives_the_same_events() -> None:
    pieces = [chunk({"text": "Hel"}), {**chunk({"text": "lo"}, finishReason="STOP"), "usageMetadata": COUNTS}]
    decoded = CODEC.decode_response(json.dumps(pieces, indent=2).encode())
    assert fold(decoded) == fold(decode(frames(*pieces)))
    assert decoded == decode(frames(*pieces))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([chunk({"text": "Hel"})], "upstream_truncated"),
        ([{"error": {"message": "broken", "code": 500}}], "upstream_error"),
        ([[]], "upstream_unparsable"),
    ],
    ids=["cut off", "an error", "no answer"],
)
def test_an_array_that_is_not_a_whole_answer_is_raised(body: Any, code: str) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        CODEC.decode_response(json.dumps(body).encode())
    assert caught.value.code == code


def test_a_frame_that_is_not_json_fails_the_stream() -> None:
    events = decode(frames(chunk({"text": "A"})) + b"data: {oops\n\n")
    assert isinstance(events[-1], Failed)
    assert events[-1].error.code == "upstream_unparsable"


def piece(*partial_args: Any, more: bool = True, **fields: Any) -> dict[str, Any]:
    call: dict[str, Any] = {**fields, "willContinue": True} if more else fields
    return {"functionCall": {**call, "partialArgs": list(partial_args)} if partial_args else call}


def argument(path: str, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value}


def test_arguments_that_vertex_streams_in_parts_are_one_call() -> None:
    events = decode(
        frames(
            chunk({**piece(name="look"), "thoughtSignature": "AAAA"}),
            chunk(piece(argument("$.place", stringValue="Bos", willContinue=True))),
            chunk(piece(argument("$.place", stringValue="ton"), argument("$.days[1].n", numberValue=2))),
            chunk(piece(argument("$['a b']", boolValue=False), argument("$.none", nullValue="NULL_VALUE"))),
            chunk(piece(more=False)),
            chunk({"functionCall": {"name": "rest"}}),
            chunk(piece(argument("$.id", stringValue="B"), name="see", id="x", more=False)),
            chunk({"text": ""}, finishReason="STOP"),
        )
    )
    whole = '{"place":"Boston","days":[null,{"n":2}],"a b":false,"none":null}'
    assert grammatical(events)
    assert fold(events).parts == (
        ToolCall("call_r1_0", "look", whole, signature="AAAA"),
        ToolCall("call_r1_1", "rest", "{}"),
        ToolCall("x", "see", '{"id":"B"}'),
    )
    assert fold(events).finish == Finish("tool_calls", upstream_reason="STOP")


def test_streamed_arguments_that_the_token_limit_cuts_off_stay_incomplete() -> None:
    start = chunk(piece(name="run"))
    cut = chunk(
        piece(argument("$.cmd", stringValue="rm -rf /tmp", willContinue=True)), finishReason="MAX_TOKENS"
    )
    answer = fold(decode(frames(start, cut)))
    assert answer.parts == (ToolCall("call_r1_0", "run", '{"cmd":"rm -rf /tmp"'),)
    assert answer.finish == Finish("length", upstream_reason="MAX_TOKENS")


@pytest.mark.parametrize(
    "odd",
    [
        argument("$"),
        argument("$.a[", stringValue="x"),
        argument("$.a[999999999]", stringValue="x"),
        argument(f"$.a[{'9' * 5000}]", stringValue="x"),
        argument("$[0]", stringValue="x"),
        {"jsonPath": 5},
        "text",
    ],
)
def test_malformed_pieces_of_arguments_are_skipped(odd: Any) -> None:
    stream = frames(chunk(piece(odd, name="look", more=False)), chunk(piece(more=False), finishReason="STOP"))
    assert fold(decode(stream)).parts == (ToolCall("call_r1_0", "look", "{}"),)


def test_arrays_of_streamed_arguments_together_stay_small() -> None:
    deep = [argument(f"$.a{number}" + "[9000]" * 50, stringValue="x") for number in range(20)]
    stream = frames(
        chunk(piece(*deep, name="look", more=False)), chunk(piece(more=False), finishReason="STOP")
    )
    (call,) = fold(decode(stream)).parts
    assert isinstance(call, ToolCall)
    assert call.arguments.count("null") <= 10_000


def test_a_streamed_text_goes_on_after_whole_arguments_that_replace_it() -> None:
    parts = [
        piece(argument("$.a", stringValue="one ", willContinue=True), name="look"),
        {"functionCall": {"args": {"a": "two ", "b": 1}, "willContinue": True}},
        piece(argument("$.a", stringValue="three"), more=False),
    ]
    stream = frames(*(chunk(part) for part in parts), chunk({"text": ""}, finishReason="STOP"))
    assert fold(decode(stream)).parts == (ToolCall("call_r1_0", "look", '{"a":"two three","b":1}'),)


@pytest.mark.parametrize(
    "part", [b'{"functionCall":{"name":"f","args":{"a":"\xc5"}}}', b'{"newPart":"\xc5"}']
)
def test_bytes_that_are_not_utf8_in_a_part_are_replaced(part: bytes) -> None:
    stream = b'data: {"responseId":"r1","candidates":[{"index":0,"content":{"parts":[' + part
    stream += b']},"finishReason":"STOP"}]}\n\n'
    (found,) = fold(decode(stream)).parts
    assert "\ufffd" in repr(found)


def test_a_new_part_of_a_candidate_whose_index_is_a_text_is_kept() -> None:
    candidate = {"index": "0", "content": {"parts": [{"newPart": 1}]}, "finishReason": "STOP"}
    assert fold(decode(frames({"candidates": [candidate]}))).parts == (Opaque("gemini", {"newPart": 1}),)
