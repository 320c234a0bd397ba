"""Messages requests and answers survive encoding and decoding, and the SDK reads them too."""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import Anthropic
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.canon.events import AnswerPart, Usage
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Media, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Thinking, Tool, ToolChoice
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.grammar import check_json, check_messages
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.protocols.messages.encode_request import encode_request
from routecodex.protocols.messages.validate import validate
from routecodex.protocols.messages.whole import decode_response, encode_response
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, decoded, encoded, reply

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
objects = st.dictionaries(texts, st.one_of(texts, st.integers(-9, 9), st.booleans()), max_size=2)
arguments = objects.map(lambda value: json.encode(value).decode())
marks = st.text("abcXYZ019+/=", min_size=1, max_size=8)
marked = st.sampled_from([None, {"type": "ephemeral"}])

answer_parts: st.SearchStrategy[AnswerPart] = st.one_of(
    st.builds(Text, texts),
    st.builds(Reasoning, texts, st.one_of(st.none(), marks)),
    st.builds(Reasoning, signature=marks, redacted=st.just(True)),
)
counts = st.integers(0, 99)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    parts = draw(st.lists(answer_parts, max_size=4))
    calls = draw(st.lists(arguments, max_size=3))
    parts += [ToolCall(f"call_{number}", "f", text) for number, text in enumerate(calls)]
    reasons = [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("pause", "pause_turn"),
        ("refusal", "refusal"),
    ]
    reason, upstream_reason = ("tool_calls", "tool_use") if calls else draw(st.sampled_from(reasons))
    read_, wrote = draw(counts), draw(counts)
    usage = Usage(1 + draw(counts) + read_ + wrote, draw(counts), read_, wrote, draw(counts))
    finish = Finish(reason, upstream_reason=upstream_reason)  # type: ignore[arg-type]  # both are str here
    return Response("msg_abc", "asked", None, tuple(parts), finish, usage)


@given(responses(), st.booleans())
def test_answers_survive(response: Response, message_stop_after_calls: bool) -> None:
    stream = encoded(list(unfold(response)), message_stop_after_calls=message_stop_after_calls)
    check_messages(stream, message_stop_after_calls=message_stop_after_calls)
    assert fold(decoded(stream)) == response
    whole = encode_response(response, reply())
    check_json("messages", whole)
    assert fold(decode_response(whole)) == response


user_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts, cache=marked),
    st.builds(Media, st.just("image"), st.just("image/png"), marks),
    st.builds(Media, st.just("file"), st.just("application/pdf"), marks, name=st.one_of(st.none(), texts)),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    messages = [Message("user", tuple(draw(st.lists(user_parts, min_size=1, max_size=3))))]
    for turn in range(draw(st.integers(0, 3))):
        calls = [
            ToolCall(f"call_{turn}_{number}", "f", text)
            for number, text in enumerate(draw(st.lists(arguments, max_size=2)))
        ]
        parts = draw(st.lists(answer_parts, min_size=1, max_size=2))
        results = [ToolResult(call.id, (Text(draw(texts)),), draw(st.booleans())) for call in calls]
        messages.append(Message("assistant", (*parts, *calls)))
        messages.append(Message("user", (*results, draw(user_parts))))
    return tuple(messages)


requests = st.builds(
    Request,
    model=st.just("m-1"),
    source=st.just("messages"),
    messages=conversations(),
    system=st.lists(st.builds(Text, texts, cache=marked), max_size=2).map(tuple),
    tools=st.just((Tool("f", description="d", parameters={"type": "object"}),)),
    tool_choice=st.sampled_from([None, ToolChoice("auto"), ToolChoice("none")]),
    max_tokens=st.integers(2000, 9000),
    temperature=st.one_of(st.none(), st.just(1.0)),
    stop=st.lists(texts, max_size=2).map(tuple),
    thinking=st.sampled_from(
        [None, Thinking(adaptive=True), Thinking(enabled=False), Thinking(effort="low")]
    ),
    user=st.one_of(st.none(), texts),
    service_tier=st.sampled_from([None, "auto", "default"]),
    stream=st.booleans(),
    include_usage=st.just(True),
    extras=st.sampled_from([None, {"container": "c"}]),
)


@settings(max_examples=60)
@given(requests)
def test_requests_survive(request: Request) -> None:
    sent = encode_request(request, OPTIONS)
    assert sent.notices == ()
    assert decode_request(validate(sent.body)) == request


@settings(max_examples=60)
@given(requests, st.sampled_from(["chat", "responses", "gemini"]))
def test_requests_of_other_protocols_are_legal_here(request: Request, source: Any) -> None:
    sent = encode_request(replace(request, source=source), OPTIONS)
    body = json.decode(validate(sent.body).body)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    for before, after in zip(body["messages"], body["messages"][1:], strict=False):
        called = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        answered = [block.get("tool_use_id") for block in after["content"]][: len(called)]
        assert called == answered


def _sdk(body: bytes, kind: str) -> Anthropic:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": kind}, content=body)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return Anthropic(api_key="k", base_url="http://127.0.0.1:1", http_client=client, max_retries=0)


SDK_REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
ANSWER = Response(
    "msg_abc",
    "asked",
    None,
    (Reasoning("t", "sig"), Text("hi"), ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "")),
    Finish("tool_calls", upstream_reason="tool_use"),
    Usage(20, 5, 4, 1),
)


def test_the_sdk_reads_stream_and_whole_alike() -> None:
    for message_stop_after_calls in (True, False):
        stream = encoded(list(unfold(ANSWER)), message_stop_after_calls=message_stop_after_calls)
        with _sdk(stream, "text/event-stream") as client, client.messages.stream(**SDK_REQUEST) as answer:
            streamed = answer.get_final_message()
        with _sdk(encode_response(ANSWER, reply()), "application/json") as client:
            whole = client.messages.create(**SDK_REQUEST)
        assert streamed.to_dict()["content"] == whole.to_dict()["content"]
        assert streamed.stop_reason == whole.stop_reason == "tool_use"
        assert streamed.usage.input_tokens == whole.usage.input_tokens == 15
        assert streamed.usage.output_tokens == 5
