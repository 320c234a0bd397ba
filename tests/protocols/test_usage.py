"""Usage in the shapes of all known providers, in whole answers and streams, decoded and relayed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.canon.events import Usage
from routecodex.canon.response import fold
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.usage import BilledUsage, billed_cost, loose_tokens
from routecodex.wire import json, sse

USD = 10**9


def answers(protocol: str, usage: Any, **fields: Any) -> tuple[bytes, bytes]:
    """Return an answer with this usage, whole and streamed; `fields` are those of its outer object."""
    return WRITERS[protocol](usage, fields)


def _chat(usage: Any, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    head = {"id": "c", "object": "chat.completion", "created": 5, "model": "m", **fields}
    message = {"role": "assistant", "content": "Hi"}
    body = {**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    head["object"] = "chat.completion.chunk"
    frames = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": usage},
    ]
    stream = b"".join(sse.frame(json.encode(frame)) for frame in frames)
    return json.encode(body), stream + b"data: [DONE]\n\n"


def _responses(usage: Any, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    item = {
        "type": "message",
        "id": "i",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
    }
    response = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}
    whole = {**response, **fields, "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**event, "sequence_number": at} for at, event in enumerate(events)]
    stream = b"".join(sse.frame(json.encode(event), str(event["type"]).encode()) for event in numbered)
    return json.encode(whole), stream


def _messages(usage: Any, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", **fields}
    content = [{"type": "text", "text": "Hi"}]
    body = {**head, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    return json.encode(body), messages_stream({**head, "content": [], "usage": usage}, usage)


def messages_stream(message: dict[str, Any], usage: Any) -> bytes:
    """Return a stream with this `message_start`, and this usage in its `message_delta`."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return b"".join(sse.frame(json.encode(event), str(event["type"]).encode()) for event in events)


def _gemini(usage: Any, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    content = {"parts": [{"text": "Hi"}], "role": "model"}
    body = {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage, **fields}
    first = {"candidates": [{"content": content}], "usageMetadata": {"promptTokenCount": 1}}
    last = {**body, "candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}]}
    return json.encode(body), b"".join(sse.frame(json.encode(frame)) for frame in (first, last))


WRITERS = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}


def reply() -> ReplyContext:
    return ReplyContext(id="abc", created=1, model="m", provider="p", input_tokens=7)


def usages(protocol: str, whole: bytes, stream: bytes) -> list[Usage | None]:
    """Return the usage of an answer as it is decoded and relayed, whole and streamed."""
    codec = CODECS[protocol]
    decoder, relay = codec.stream_decoder(), codec.relay(reply())
    streamed = fold([*decoder.feed(stream), *decoder.close()])
    relay.feed(stream)
    relay.close()
    decoded, relayed = fold(codec.decode_response(whole)), codec.relay_response(whole, reply())[1]
    return [decoded.usage, relayed.usage, streamed.usage, relay.outcome.usage]


def cached(**more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, **more}


PROVIDERS: dict[str, tuple[str, dict[str, Any], Usage]] = {
    "OpenAI chat": (
        "chat",
        cached(
            prompt_tokens_details={"cached_tokens": 60, "cache_write_tokens": 10},
            completion_tokens_details={"reasoning_tokens": 5},
        ),
        Usage(100, 20, cache_read=60, cache_write=10, reasoning=5),
    ),
    "OpenAI responses": (
        "responses",
        {
            "input_tokens": 100,
            "input_tokens_details": {
                "cached_tokens": 60,
                "cache_write_tokens": 10,
                "cache_write_tokens_details": {"ttl_30m_tokens": 4, "ttl_12h_tokens": 6},
            },
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 120,
        },
        Usage(100, 20, cache_read=60, cache_write=10, reasoning=5),
    ),
    "Anthropic": (
        "messages",
        {
            "input_tokens": 30,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 10,
            "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6},
            "output_tokens": 20,
            "output_tokens_details": {"thinking_tokens": 5},
            "service_tier": "standard",
        },
        Usage(100, 20, cache_read=60, cache_write=10, reasoning=5, cache_write_1h=6),
    ),
    "Anthropic, fast": (
        "messages",
        {"input_tokens": 30, "output_tokens": 20, "service_tier": "standard", "speed": "fast"},
        Usage(30, 20, mode="fast"),
    ),
    "Anthropic, the split alone": (
        "messages",
        {
            "input_tokens": 30,
            "output_tokens": 20,
            "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6},
        },
        Usage(40, 20, cache_write=10, cache_write_1h=6),
    ),
    "Gemini": (
        "gemini",
        {
            "promptTokenCount": 90,
            "cachedContentTokenCount": 60,
            "toolUsePromptTokenCount": 10,
            "candidatesTokenCount": 15,
            "thoughtsTokenCount": 5,
            "totalTokenCount": 120,
        },
        Usage(100, 20, cache_read=60, reasoning=5),
    ),
    "DeepSeek": (
        "chat",
        cached(prompt_cache_hit_tokens=60, prompt_cache_miss_tokens=40),
        Usage(100, 20, cache_read=60),
    ),
    "GLM": ("chat", cached(prompt_tokens_details={"cached_tokens": 60}), Usage(100, 20, cache_read=60)),
    "Qwen": (
        "chat",
        cached(
            prompt_tokens_details={
                "cached_tokens": 60,
                "cache_creation_input_tokens": 10,
                "cache_type": "ephemeral",
            }
        ),
        Usage(100, 20, cache_read=60, cache_write=10),
    ),
    "Kimi": ("chat", cached(cached_tokens=60), Usage(100, 20, cache_read=60)),
    "xAI chat": (
        "chat",
        {
            "prompt_tokens": 100,
            "completion_tokens": 15,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 5},
            "cost_in_usd_ticks": 12_345_678,
        },
        Usage(100, 20, cache_read=60, reasoning=5, cost=1_234_568),
    ),
    "xAI chat, cached beside the prompt": (
        "chat",
        {
            "prompt_tokens": 40,
            "completion_tokens": 20,
            "total_tokens": 60,
            "prompt_tokens_details": {"cached_tokens": 60},
        },
        Usage(100, 20, cache_read=60),
    ),
    "xAI responses": (
        "responses",
        {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 120,
            "cost_in_usd_ticks": 10_000_000_000,
        },
        Usage(100, 20, cache_read=60, reasoning=5, cost=USD),
    ),
    "Mistral": ("chat", cached(num_cached_tokens=60), Usage(100, 20, cache_read=60)),
    "Mistral, another name": (
        "chat",
        cached(prompt_token_details={"cached_tokens": 60}),
        Usage(100, 20, cache_read=60),
    ),
    "Groq": (
        "chat",
        cached(prompt_tokens_details={"cached_tokens": 60}, queue_time=0.1, total_time=0.2),
        Usage(100, 20, cache_read=60),
    ),
    "OpenRouter": (
        "chat",
        cached(
            prompt_tokens_details={"cached_tokens": 60, "cache_write_tokens": 10, "audio_tokens": 0},
            completion_tokens_details={"reasoning_tokens": 5},
            cost=0.00123,
            is_byok=False,
            cost_details={"upstream_inference_cost": None},
        ),
        Usage(100, 20, cache_read=60, cache_write=10, reasoning=5, cost=1_230_000),
    ),
    "OpenRouter, own key": (
        "chat",
        cached(cost=0.0001, is_byok=True, cost_details={"upstream_inference_cost": 0.002}),
        Usage(100, 20, cost=2_100_000),
    ),
    "OpenRouter, own key, responses": (
        "responses",
        {
            "input_tokens": 100,
            "output_tokens": 20,
            "cost": 0.0001,
            "is_byok": True,
            "cost_details": {"upstream_inference_cost": 0.002},
        },
        Usage(100, 20, cost=2_100_000),
    ),
    "OpenRouter messages": (
        "messages",
        {"input_tokens": 100, "output_tokens": 20, "cost": 0.5},
        Usage(100, 20, cost=USD // 2),
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_usage_of_every_provider_is_read_in_whole_answers_and_streams(provider: str) -> None:
    protocol, wire, usage = PROVIDERS[provider]
    assert usages(protocol, *answers(protocol, wire)) == [usage] * 4


@pytest.mark.parametrize(
    ("protocol", "wire"),
    [("chat", cached()), ("responses", {"input_tokens": 100, "output_tokens": 20})],
)
@pytest.mark.parametrize("tier", ["flex", "priority", "batch", "default", "auto", None])
def test_a_service_tier_with_prices_of_its_own_is_the_mode_of_the_usage(
    protocol: str, wire: dict[str, Any], tier: str | None
) -> None:
    mode = tier if tier in ("flex", "priority", "batch") else ""
    found = usages(protocol, *answers(protocol, wire, service_tier=tier))
    assert found == [Usage(100, 20, mode=mode or "")] * 4


def test_usage_of_groq_is_read_where_only_its_own_field_has_it() -> None:
    stream = _chat(None, {})[1]
    usage = {"id": "req_1", "usage": cached(prompt_tokens_details={"cached_tokens": 60})}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    frames = stream.split(b"\n\n")[:2]
    ended = b"\n\n".join(frames) + b"\n\n"
    ended += sse.frame(json.encode({**head, "choices": [last], "x_groq": usage})) + b"data: [DONE]\n\n"
    codec = CODECS["chat"]
    decoder, relay = codec.stream_decoder(), codec.relay(reply())
    assert fold([*decoder.feed(ended), *decoder.close()]).usage == Usage(100, 20, cache_read=60)
    out = relay.feed(ended)
    assert relay.outcome.usage == Usage(100, 20, cache_read=60)
    assert b'"choices":[],"usage":{"prompt_tokens":100,' in out


def test_cache_writes_above_the_split_of_message_start_are_for_five_minutes() -> None:
    split = {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}
    start = {"input_tokens": 30, "cache_creation_input_tokens": 10, "cache_creation": split}
    message = {"id": "m", "model": "m", "usage": {**start, "output_tokens": 1}}
    end = {"input_tokens": 50, "cache_creation_input_tokens": 25, "output_tokens": 20}
    relay = CODECS["messages"].relay(reply())
    relay.feed(messages_stream(message, end))
    assert relay.outcome.usage == Usage(75, 20, cache_write=25, cache_write_1h=6)


NONSENSE: list[Any] = [-5, 1.5, -1.5, "12", "many", "9" * 4000, True, None, [], {}, 10**30, 1e300]
NONSENSE += [-(10**30), 10**400, -(10**400)]
COUNTS = {
    "chat": ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "cost", "is_byok"),
    "responses": ("input_tokens", "output_tokens", "input_tokens_details", "cost_in_usd_ticks"),
    "messages": (
        *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        *("cache_creation", "output_tokens_details", "speed", "cost"),
    ),
    "gemini": ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount"),
}


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize(
    ("protocol", "field"), [(protocol, name) for protocol, names in COUNTS.items() for name in names]
)
def test_nonsense_in_one_field_breaks_no_answer(protocol: str, field: str, value: Any) -> None:
    wire = dict.fromkeys(COUNTS[protocol][:2], 9) | {field: value}
    for usage in usages(protocol, *answers(protocol, wire)):
        assert usage is not None or value is None or field in COUNTS[protocol][:2]
        counts = (usage.input, usage.output, usage.cache_read, usage.cache_write) if usage else ()
        assert all(0 <= count <= 4 * 10**12 for count in counts)
        assert usage is None or usage.cost is None or usage.cost >= 0


@pytest.mark.parametrize("protocol", WRITERS)
@pytest.mark.parametrize("usage", [[], "none", 5, True, {}], ids=str)
def test_a_usage_that_is_not_an_object_of_counts_breaks_no_answer(protocol: str, usage: Any) -> None:
    whole, stream = answers(protocol, usage)
    assert len(usages(protocol, whole, stream)) == 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(BilledUsage.__struct_fields__, json_values)))
def test_a_billed_cost_is_never_negative(fields: dict[str, Any]) -> None:
    cost = billed_cost(BilledUsage(**fields))
    assert cost is None or 0 <= cost < 10**17


@given(json_values)
def test_loose_counts_are_bounded(value: Any) -> None:
    count = loose_tokens(value)
    assert count is None or 0 <= count <= 10**12


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (3, 3),
        (3.0, 3),
        (3.9, 3),
        ("12", 12),
        (-4, 0),
        ("-4", None),
        (True, None),
        (math.inf, None),
        (math.nan, None),
        (-math.inf, 0),
    ],
)
def test_loose_counts(value: Any, count: int | None) -> None:
    assert loose_tokens(value) == count


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, None),
        ({"cost": 0}, 0),
        ({"cost": 0.000000001}, 1),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": {"total_cost": 0.005}}, None),
        ({"cost": 0.1, "is_byok": True}, None),
        ({"cost": None, "is_byok": True, "cost_details": {"upstream_inference_cost": 1}}, USD),
        ({"cost": 0.1, "cost_details": {"upstream_inference_cost": 5}}, USD // 10),
        ({"cost_in_usd_ticks": 15}, 2),
        ({"cost_in_usd_ticks": "15"}, None),
    ],
)
def test_cost_figures(fields: dict[str, Any], cost: int | None) -> None:
    assert billed_cost(BilledUsage(**fields)) == cost


def test_counts_as_texts_leave_the_calls_of_a_gemini_answer_readable() -> None:
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    candidate = {"content": {"parts": [call]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": "12", "candidatesTokenCount": "many", "totalTokenCount": 20}
    body = json.encode({"candidates": [candidate], "usageMetadata": usage})
    answer = fold(CODECS["gemini"].decode_response(body))
    assert [getattr(part, "arguments", "") for part in answer.parts] == ['{"a":1}']
    assert answer.usage == Usage(12, 8)
