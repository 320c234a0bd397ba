from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited
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
from routecodex.canon.request import Request, Tool
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.codec import EncodeOptions, ReplyContext
from routecodex.protocols.gemini import CODEC
from routecodex.protocols.gemini.thinking import unseal_signature
from routecodex.protocols.messages import CODEC as MESSAGES
from routecodex.protocols.tool_mapping import flat


def reply(**fields: Any) -> ReplyContext:
    return ReplyContext(id="abc", created=1, model="alias", **fields)


def write(*events: Event, to: ReplyContext | None = None) -> bytes:
    encoder = CODEC.stream_encoder(to or reply())
    return b"".join(encoder.encode(event) for event in events)


def objects(stream: bytes) -> list[Any]:
    blocks = stream.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: {") and b"\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def parts(stream: bytes) -> list[Any]:
    return [part for piece in objects(stream) for part in piece["candidates"][0]["content"]["parts"]]


DONE = Finished(Finish("stop"))


def test_text_is_sent_at_once_and_the_end_in_the_last_frame() -> None:
    stream = write(
        Started(),
        PartStarted(0, Text("")),
        TextDelta(0, "Hel"),
        TextDelta(0, 'lo "\n'),
        PartFinished(0),
        UsageReported(Usage(input=5, output=7, cache_read=2, reasoning=3)),
        DONE,
    )
    frame: dict[str, Any] = {"modelVersion": "alias", "responseId": "abc"}
    assert objects(stream) == [
        {"candidates": [{"content": {"parts": [{"text": "Hel"}], "role": "model"}, "index": 0}], **frame},
        {"candidates": [{"content": {"parts": [{"text": 'lo "\n'}], "role": "model"}, "index": 0}], **frame},
        {
            "candidates": [
                {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP", "index": 0}
            ],
            **frame,
            "usageMetadata": {
                "promptTokenCount": 5,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 3,
                "cachedContentTokenCount": 2,
                "totalTokenCount": 12,
            },
        },
    ]


def test_a_call_is_sent_whole() -> None:
    encoder = CODEC.stream_encoder(reply())
    assert encoder.encode(PartStarted(0, ToolCall("a", "look"))) == b""
    assert encoder.encode(ArgumentsDelta(0, '{"q":')) == b""
    assert encoder.encode(ArgumentsDelta(0, "1}")) == b""
    assert encoder.encode(SignatureDelta(0, "SIG=")) == b""
    assert parts(encoder.encode(PartFinished(0))) == [
        {"functionCall": {"id": "a", "name": "look", "args": {"q": 1}}, "thoughtSignature": "SIG="}
    ]


def test_a_truncated_call_is_not_sent() -> None:
    cut = ToolCall("a", "rm", '{"path": "/tm')
    answer = Response(parts=(cut,), finish=Finish("length"))
    assert parts(write(*unfold(answer))) == [{"text": ""}]
    whole = json.loads(CODEC.encode_response(answer, reply()))["candidates"][0]
    assert (whole["content"]["parts"], whole["finishReason"]) == ([{"text": ""}], "MAX_TOKENS")


def test_overlapping_parts_come_one_after_the_other() -> None:
    stream = write(
        PartStarted(0, ToolCall("a", "look")),
        PartStarted(1, ToolCall("b", "see")),
        PartStarted(2, Text("")),
        ArgumentsDelta(1, '{"y":2}'),
        TextDelta(2, "after"),
        PartFinished(1),
        ArgumentsDelta(0, '{"x":1}'),
        PartFinished(0),
        TextDelta(2, "wards"),
        PartFinished(2),
    )
    assert parts(stream) == [
        {"functionCall": {"id": "a", "name": "look", "args": {"x": 1}}},
        {"functionCall": {"id": "b", "name": "see", "args": {"y": 2}}},
        {"text": "after"},
        {"text": "wards"},
    ]


def test_signatures_leave_sealed_in_base64_that_googles_sdk_can_read() -> None:
    stream = write(
        PartStarted(0, Reasoning("")),
        ReasoningDelta(0, "Hm"),
        SignatureDelta(0, "Eq"),
        SignatureDelta(0, "QB.x"),
        PartFinished(0),
        to=reply(provider="anthropic"),
    )
    signed = parts(stream)[1]
    assert signed["thought"] is True
    assert unseal_signature(signed["thoughtSignature"]) == ("anthropic", "EqQB.x")
    read = types.Part.model_validate(signed)
    assert unseal_signature(json.loads(read.model_dump_json(by_alias=True))["thoughtSignature"]) == (
        "anthropic",
        "EqQB.x",
    )


def test_usage_is_estimated_if_the_upstream_reports_none() -> None:
    stream = write(
        PartStarted(0, Text("")), TextDelta(0, "abcdef"), PartFinished(0), DONE, to=reply(input_tokens=9)
    )
    assert objects(stream)[-1]["usageMetadata"] == {
        "promptTokenCount": 9,
        "candidatesTokenCount": 3,
        "totalTokenCount": 12,
    }


def test_a_failure_is_an_error_frame_that_begins_with_error() -> None:
    error = UpstreamLimited("slow down", retry_after=7)
    stream = write(PartStarted(0, Text("")), TextDelta(0, "A"), Failed(error))
    frame = stream.split(b"\n\n")[1]
    assert frame.startswith(b'data: {"error":{"code":429,')
    assert json.loads(frame[6:]) == CODEC.encode_error(error)[1]
    assert b"finishReason" not in write(Failed(UpstreamFailed("x")))


def test_parts_only_other_protocols_have_are_text_or_nothing() -> None:
    answer = Response(
        parts=(Refusal("No."), Opaque("responses", {"type": "x"}), Opaque("gemini", {"executableCode": {}}))
    )
    expected = [{"text": "No."}, {"executableCode": {}}]
    assert parts(write(*unfold(answer)))[:-1] == expected
    assert json.loads(CODEC.encode_response(answer, reply()))["candidates"][0]["content"]["parts"] == expected


def test_tools_have_the_names_of_the_client() -> None:
    request = Request(model="m", messages=(), source="gemini", tools=(Tool("a.b:c"),))
    answer = Response(parts=(ToolCall("x", flat("a.b:c", None), "{}"),))
    called = parts(write(*unfold(answer), to=reply(request=request)))[0]["functionCall"]
    assert called["name"] == "a.b:c"


def test_citations_and_logprobs_are_in_the_candidate() -> None:
    entry = {"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": []}
    cited = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 1}
    answer = Response(parts=(Text("A", annotations=(cited,)),), logprobs=(entry,))
    sources = {"citationSources": [{"startIndex": 0, "endIndex": 1, "uri": "https://a.example"}]}
    scored = {
        "chosenCandidates": [{"token": "A", "logProbability": -0.5}],
        "topCandidates": [{"candidates": []}],
    }
    first, last = objects(write(*unfold(answer)))
    assert first["candidates"][0]["logprobsResult"] == scored
    assert last["candidates"][0]["citationMetadata"] == sources
    whole = json.loads(CODEC.encode_response(answer, reply()))["candidates"][0]
    assert (whole["logprobsResult"], whole["citationMetadata"]) == (scored, sources)


def test_googles_sdk_reads_whole_answers_and_frames() -> None:
    answer = Response(
        parts=(Reasoning("Hm", signature="AAAA"), Text("Hi"), ToolCall("a", "look", '{"q":1}')),
        finish=Finish("tool_calls"),
    )
    whole = types.GenerateContentResponse.model_validate_json(CODEC.encode_response(answer, reply()))
    assert whole.function_calls is not None
    assert whole.function_calls[0].args == {"q": 1}
    pieces = [
        types.GenerateContentResponse.model_validate(piece) for piece in objects(write(*unfold(answer)))
    ]
    assert "".join(piece.text or "" for piece in pieces if not piece.function_calls) == "Hi"
    last = pieces[-1].candidates
    assert last is not None
    assert last[0].finish_reason == types.FinishReason.STOP


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
signatures = st.none() | st.text("ABCDabcd0123", min_size=4, max_size=8)
objects_of_json = st.dictionaries(texts, st.integers(-9, 9) | texts | st.booleans() | st.none(), max_size=3)
calls = st.builds(
    ToolCall,
    id=st.text("abc123", min_size=1, max_size=8),
    name=st.text("abc_", min_size=1, max_size=8),
    arguments=objects_of_json.map(lambda value: json.dumps(value, ensure_ascii=False)),
    signature=signatures,
)
answer_parts: st.SearchStrategy[AnswerPart] = st.one_of(
    st.builds(Text, text=texts, signature=signatures),
    st.builds(Reasoning, text=texts, signature=signatures),
    calls,
)


def separate(found: list[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Keep the last of unsigned neighbours of one kind: Gemini has no boundary between them."""
    separated: list[AnswerPart] = []
    for part in found:
        before = separated[-1] if separated else None
        if isinstance(part, Text | Reasoning) and type(before) is type(part) and before.signature is None:
            separated.pop()
        separated.append(part)
    return tuple(separated)


usages = st.builds(
    lambda i, o, r, c: Usage(input=i + 1, output=o + r, reasoning=r, cache_read=c),
    *[st.integers(0, 1000)] * 4,
)


@given(st.lists(answer_parts, max_size=5).map(separate), usages)
def test_an_answer_survives_the_round_trip_streamed_or_whole(
    found: tuple[AnswerPart, ...], usage: Usage
) -> None:
    has_calls = any(isinstance(part, ToolCall) for part in found)
    finish = Finish("tool_calls" if has_calls else "stop", upstream_reason="STOP")
    answer = Response(id="abc", model="alias", parts=found, finish=finish, usage=usage)
    decoder = CODEC.stream_decoder()
    events = [*decoder.feed(write(*unfold(answer))), *decoder.close()]
    assert fold(events) == answer
    assert fold(CODEC.decode_response(CODEC.encode_response(answer, reply()))) == answer


THOUGHTS = (
    Started("up", "claude"),
    PartStarted(0, Reasoning()),
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "look."),
    SignatureDelta(0, "sig"),
    PartFinished(0),
    PartStarted(1, Reasoning(redacted=True)),
    SignatureDelta(1, "secret"),
    PartFinished(1),
    PartStarted(2, ToolCall("toolu_1", "look", "{}")),
    PartFinished(2),
    Finished(Finish("tool_calls")),
)


def returned(contents: list[Any]) -> list[Any]:
    """Return the assistant's blocks that Anthropic gets for these contents of a Gemini client."""
    response = {"functionResponse": {"id": "toolu_1", "name": "look", "response": {"result": "sun"}}}
    question = {"role": "user", "parts": [{"text": "Weather?"}]}
    body = {"contents": [question, *contents, {"role": "user", "parts": [response]}]}
    wire = CODEC.validate(json.dumps(body).encode(), model="m", stream=True)
    options = EncodeOptions(model="claude-sonnet-4-5", provider="anthropic", max_output_tokens=99)
    sent = json.loads(MESSAGES.encode_request(CODEC.decode_request(wire), options).body)
    found: list[Any] = sent["messages"][1]["content"]
    return found


def test_thinking_of_anthropic_returns_with_its_text_after_a_stream() -> None:
    """Google's Python SDK keeps one content per chunk, others collect the parts of all chunks."""
    to = reply(provider="anthropic")
    streamed = [answer["candidates"][0]["content"] for answer in objects(write(*THOUGHTS, to=to))]
    together = {"role": "model", "parts": [part for content in streamed for part in content["parts"]]}
    whole = json.loads(CODEC.encode_response(fold(THOUGHTS), to))["candidates"][0]["content"]
    expected = [
        {"type": "thinking", "thinking": "Let me look.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    ]
    assert [returned(contents) for contents in (streamed, [together], [whole])] == [expected] * 3


@pytest.mark.parametrize("arguments", ['{\n  "a": 1\n}', '{\r"a": 1}', "[\n1]"])
def test_arguments_that_the_model_has_indented_stay_in_their_frame(arguments: str) -> None:
    stream = write(Started(), PartStarted(0, ToolCall("c", "f", arguments)), PartFinished(0), DONE)
    assert [line for line in stream.splitlines() if line and not line.startswith(b"data: {")] == []
    assert parts(stream)[0]["functionCall"]["args"] in ({"a": 1}, {"input": [1]})
