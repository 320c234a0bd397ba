"""Chat requests and answers survive encoding and decoding, and the SDK reads them too."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Event, Failed, Finished, Usage
from routecodex.canon.finish import Finish, Reason
from routecodex.canon.parts import Media, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.chat import CODEC, whole
from routecodex.protocols.chat.decode_request import decode_request
from routecodex.protocols.chat.encode_request import encode_request
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.chat.whole import decode_response, encode_response
from routecodex.protocols.grammar import check_broken_chat, check_chat, check_json
from routecodex.wire import json
from tests.protocols.chat.samples import OPTIONS, chunks, events, reply, with_dialect, written

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.text("abcXYZ_-019", min_size=1, max_size=8)
objects = st.dictionaries(names, st.one_of(texts, st.integers(-9, 9), st.booleans()), max_size=2)
arguments = objects.map(lambda value: json.encode(value).decode())
counts = st.integers(0, 99)
REASONS: list[Reason] = ["stop", "length", "content_filter"]
likely = st.builds(lambda word: {"token": word, "logprob": -0.5, "bytes": [1], "top_logprobs": []}, texts)
citations = st.builds(
    lambda word: {
        "type": "url_citation",
        "url_citation": {"url": word, "title": word, "start_index": 0, "end_index": 1},
    },
    texts,
)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Draw answers in the order of chat: reasoning, text, refusal, calls."""
    parts: list[Any] = []
    if draw(st.booleans()):
        parts.append(Reasoning(draw(texts)))
    if draw(st.booleans()):
        parts.append(Text(draw(texts), annotations=tuple(draw(st.lists(citations, max_size=2)))))
    if draw(st.booleans()):
        parts.append(Refusal(draw(texts)))
    calls = draw(st.lists(st.tuples(names, arguments), max_size=3))
    parts += [ToolCall(f"call_{at}", name, text) for at, (name, text) in enumerate(calls)]
    reason: Reason = "tool_calls" if calls else draw(st.sampled_from(REASONS))
    cached = draw(counts)
    usage = Usage(1 + cached + draw(counts), draw(counts), cache_read=cached, reasoning=draw(counts))
    logprobs = tuple(draw(st.lists(likely, max_size=2))) if any(isinstance(p, Text) for p in parts) else ()
    return Response(
        "chatcmpl-abc", "asked", 1, tuple(parts), Finish(reason, upstream_reason=reason), usage, logprobs
    )


@settings(max_examples=100)
@given(responses())
def test_answers_survive_whole_and_streamed(response: Response) -> None:
    whole = encode_response(response, reply())
    check_json("chat", whole)
    assert fold(decode_response(whole)) == response
    stream = written(list(unfold(response)))
    check_chat(stream, include_usage=True)
    assert fold(events(stream)) == response


@settings(max_examples=50)
@given(responses(), st.integers(1, 40))
def test_the_relay_accepts_the_encoders_stream(response: Response, step: int) -> None:
    stream = written(list(unfold(response)))
    relay = CODEC.relay(reply())
    out = b"".join(relay.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    assert out + relay.close() == stream
    assert relay.outcome.finish == response.finish
    assert relay.outcome.usage == response.usage


@settings(max_examples=50)
@given(responses(), st.data())
def test_an_answer_truncated_anywhere_gives_an_error(response: Response, data: st.DataObject) -> None:
    decoded: list[Event] = list(unfold(response))
    cut = data.draw(st.integers(1, len(decoded) - 1))
    out = written([*decoded[:cut], Failed(UpstreamFailed("broken"))])
    check_broken_chat(out)
    assert not any(isinstance(event, Finished) for event in events(out))


@settings(max_examples=30)
@given(responses())
def test_the_sdk_reads_encoded_answers(response: Response) -> None:
    found = ChatCompletion.model_validate(json.decode(whole.encode_response(response, reply())))
    assert found.choices[0].finish_reason == response.finish.reason
    for chunk in chunks(written(list(unfold(response)))):
        ChatCompletionChunk.model_validate(chunk)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(Message("user", tuple(draw(st.lists(user_parts, min_size=1, max_size=3)))))
        parts: list[Part] = [Text(draw(texts))]
        calls = draw(st.lists(st.tuples(names, arguments), max_size=2))
        parts += [ToolCall(f"c{turn}_{at}", name, text) for at, (name, text) in enumerate(calls)]
        messages.append(Message("assistant", tuple(parts)))
        results = [ToolResult(f"c{turn}_{at}", (Text(draw(texts)),)) for at in range(len(calls))]
        messages.extend(Message("tool", (result,)) for result in results)
    return tuple(messages)


user_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts),
    st.builds(Text, texts, cache=st.just({"type": "ephemeral"})),
    st.builds(Media, st.just("image"), url=st.just("https://x/y.png"), detail=st.sampled_from([None, "low"])),
    st.builds(Media, st.just("image"), st.just("image/png"), st.just("AAAA")),
    st.builds(Media, st.just("audio"), st.just("audio/wav"), st.just("AAAA")),
    st.builds(Media, st.just("file"), st.just("application/pdf"), st.just("AAAA"), name=names),
    st.builds(Media, st.just("file"), file_id=names),
)
tools = st.builds(
    Tool, names, description=texts, parameters=st.just({"type": "object"}), strict=st.booleans()
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    offered = tuple({tool.name: tool for tool in draw(st.lists(tools, max_size=3))}.values())
    choices = [
        None,
        ToolChoice("auto"),
        ToolChoice("required"),
        *[ToolChoice("tool", (t.name,)) for t in offered],
    ]
    maybe = st.none()
    return Request(
        model="m-1",
        source="chat",
        messages=draw(conversations()),
        system=tuple(draw(st.lists(st.builds(Text, texts), max_size=2))),
        tools=offered,
        tool_choice=draw(st.sampled_from(choices)) if offered else None,
        parallel_tool_calls=draw(maybe | st.booleans()) if offered else None,
        max_tokens=draw(maybe | st.integers(1, 9)),
        temperature=draw(maybe | st.sampled_from([0.0, 0.5, 1.0])),
        top_k=draw(maybe | counts),
        stop=tuple(draw(st.lists(texts, max_size=4))),
        n=draw(st.integers(1, 3)),
        output=draw(maybe | st.just(Output("json_schema", "n", {"type": "object"}, True))),
        thinking=draw(maybe | st.builds(Thinking, effort=st.sampled_from(["low", "high"]))),
        metadata=draw(maybe | st.just({"a": "b"})),
        user=draw(maybe | names),
        cache_key=draw(maybe | names),
        extras=draw(maybe | st.just({"logit_bias": {"1": 2}})),
    )


@settings(max_examples=100)
@given(requests())
def test_requests_survive(request: Request) -> None:
    encoded = encode_request(request, OPTIONS)
    assert encoded.notices == ()
    assert decode_request(validate(encoded.body)) == request


@settings(max_examples=50)
@given(requests(), st.sampled_from(["messages", "responses", "gemini"]))
def test_requests_of_other_protocols_become_valid_ones(request: Request, source: Any) -> None:
    body = encode_request(replace(request, source=source, n=1), OPTIONS).body
    assert decode_request(validate(body)).source == "chat"


DIALECTS = list(
    itertools.product(
        ["reasoning_effort", "thinking", "thinking_and_effort", "enable_thinking", "reasoning", "none"],
        ["reasoning_content", "reasoning", "reasoning_details", "none"],
    )
)


@pytest.mark.parametrize(("field", "history"), DIALECTS)
def test_every_dialect_is_chat(field: str, history: str) -> None:
    request = Request(
        model="m",
        source="messages",
        messages=(
            Message("user", (Text("x"),)),
            Message("assistant", (Reasoning("hm", signature="s"), Text("y"))),
        ),
        thinking=Thinking(effort="low", budget=2000),
        max_tokens=5,
        stream=True,
    )
    to = with_dialect(
        reasoning_field=field, reasoning_history=history, stream_usage=False, max_tokens_field="max_tokens"
    )
    again = decode_request(validate(encode_request(request, to).body))
    assert again.max_tokens == 5
    assert (again.thinking is None) == (field == "none")
    reasoning = any(isinstance(part, Reasoning) for message in again.messages for part in message.parts)
    assert reasoning == (history in ("reasoning_content", "reasoning"))


CACHED = {"cache_control": {"type": "ephemeral"}}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALLED = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
    "extra_content": {"x": 1},
}
OWN_WORDS: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "S", **CACHED}]},
    {"role": "system", "content": "Named.", "name": "sys"},
    {
        "role": "system",
        "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", **CACHED}],
    },
    {
        "role": "user",
        "content": [{"type": "text", "text": "Look.", **CACHED}, {**PNG, **CACHED}],
        "name": "bob",
    },
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hm.", **CACHED}],
        "reasoning": "thought",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "SIG", "index": 0}],
        "tool_calls": [CALLED],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}, PNG], **CACHED},
    {"role": "system", "content": [{"type": "text", "text": "Later.", **CACHED}], "name": "sys"},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "user", "content": "Speak."},
    {"role": "assistant", "content": None, "audio": {"id": "a1"}},
    {"role": "assistant", "content": "Plain.", "reasoning_content": "hm"},
    {"role": "assistant", "content": "", "reasoning_content": "hm"},
    {"role": "user", "content": "x"},
]
OWN_FIELDS: list[dict[str, Any]] = [
    {"safety_identifier": "s"},
    {"safety_identifier": "s", "user": "u"},
    {"reasoning": {"effort": "high", "exclude": True}},
    {"reasoning": {"max_tokens": 9, "odd": 1}},
    {"reasoning": {"enabled": False}},
    {"reasoning": {"effort": "gigantic"}},
    {"reasoning_effort": "gigantic"},
    {
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": "object"}, "odd": 1},
                "new": 2,
                **CACHED,
            }
        ]
    },
    {"tools": [{"type": "custom", "custom": {"name": "p"}, **CACHED}]},
]


@pytest.mark.parametrize("history", ["none", "reasoning_details", "reasoning_content"])
def test_messages_of_a_chat_client_are_written_as_they_came(history: str) -> None:
    request = decode_request(validate(json.encode({"model": "m-1", "messages": OWN_WORDS})))
    encoded = encode_request(request, with_dialect(reasoning_history=history))
    assert json.decode(encoded.body)["messages"] == OWN_WORDS
    assert encoded.notices == ()


@pytest.mark.parametrize("fields", OWN_FIELDS, ids=range(len(OWN_FIELDS)))
def test_fields_that_only_chat_has_are_written_as_they_came(fields: dict[str, Any]) -> None:
    body = {"model": "m-1", "messages": [{"role": "user", "content": "x"}], **fields}
    encoded = encode_request(
        decode_request(validate(json.encode(body))), with_dialect(reasoning_field="reasoning")
    )
    assert json.decode(encoded.body) == body
    assert encoded.notices == ()


def test_a_schema_instruction_joins_a_system_text_of_parts() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    body = {
        "model": "m-1",
        "messages": [OWN_WORDS[0], {"role": "user", "content": "x"}],
        "response_format": form,
    }
    encoded = encode_request(
        decode_request(validate(json.encode(body))), with_dialect(response_format="json_object")
    )
    first, instruction = json.decode(encoded.body)["messages"][0]["content"]
    assert first == OWN_WORDS[0]["content"][0]
    assert "JSON schema" in instruction["text"]
