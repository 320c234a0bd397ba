"""Shapes that single providers send beside OpenAI's, as streams and as whole answers."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Failed, Usage
from routecodex.canon.parts import Part, Reasoning, Text, ToolCall
from routecodex.canon.response import Response, fold
from routecodex.protocols.chat.reasoning_details import entries_of
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.chat.whole import decode_response, relay_response
from routecodex.wire import json, sse
from tests.protocols.chat.samples import COUNTS, DONE, HEAD, choice, chunks, events, frame, reply, role, usage


def completion(finish: str | None = "stop", *, delta: Any = None, **message: Any) -> dict[str, Any]:
    """Return a whole answer; `delta` stands beside its message."""
    entry: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    if delta is not None:
        entry["delta"] = delta
    return {**HEAD, "object": "chat.completion", "choices": [entry], "usage": COUNTS}


def decoded(answer: dict[str, Any]) -> Response:
    return fold(decode_response(json.encode(answer)))


def streamed(*deltas: dict[str, Any]) -> Response:
    return fold(events(role() + b"".join(choice(**delta) for delta in deltas) + choice("stop") + DONE))


@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, {"content": "Hi"}])
def test_the_message_of_a_whole_answer_counts_beside_a_delta(delta: dict[str, Any]) -> None:
    # Perplexity (sonar): message and delta in one choice.
    assert decoded(completion(content="Hi there", delta=delta)).parts == (Text("Hi there"),)


def test_the_delta_of_a_chunk_counts_beside_the_message_so_far() -> None:
    # Perplexity (sonar): every chunk repeats the message so far, the last one with an empty delta.
    texts = [("Hi", "Hi"), (" there", "Hi there"), ("", "Hi there")]
    stream = b"".join(
        frame(choices=[{"index": 0, "delta": {"content": new}, "message": {"content": so_far}}])
        for new, so_far in texts
    )
    assert fold(events(stream + choice("stop") + DONE)).parts == (Text("Hi there"),)


NO_CALL = {"name": "", "arguments": ""}
NO_CUSTOM = {"name": "", "input": ""}
WEATHER = {"name": "weather", "arguments": '{"city":"Oslo"}'}
CALL = {"id": "call_1", "type": "function", "function": WEATHER, "custom": NO_CUSTOM}
PATCH = {"name": "patch", "input": "+ a"}
CUSTOM = {"id": "call_1", "type": "custom", "function": NO_CALL, "custom": PATCH}
NO_AUDIO = {"data": "", "expires_at": 0, "id": "", "transcript": ""}
# Snowflake Cortex: every field of the answer is present, unused ones with the zero value of their type.
ZEROS: list[tuple[dict[str, Any], tuple[Part, ...]]] = [
    ({"content": "4", "function_call": NO_CALL, "audio": NO_AUDIO, "tool_calls": None}, (Text("4"),)),
    ({"content": "", "tool_calls": [CALL]}, (ToolCall("call_1", "weather", '{"city":"Oslo"}'),)),
    (
        {"content": "", "function_call": NO_CALL, "tool_calls": [CALL]},
        (ToolCall("call_1", "weather", '{"city":"Oslo"}'),),
    ),
    ({"content": "", "tool_calls": [CUSTOM]}, (ToolCall("call_1", "patch", "+ a", custom=True),)),
    (
        {"content": None, "function_call": WEATHER},
        (ToolCall("call_chatcmpl1_0", WEATHER["name"], WEATHER["arguments"]),),
    ),
]


@pytest.mark.parametrize(("message", "parts"), ZEROS, ids=range(len(ZEROS)))
def test_zero_values_are_not_calls(message: dict[str, Any], parts: tuple[Part, ...]) -> None:
    assert decoded(completion("", **message)).parts == parts
    assert streamed(message).parts == parts


def test_zero_values_beside_the_pieces_of_a_call_do_not_replace_them() -> None:
    pieces = ['{"city":', '"Oslo"}']
    deltas = [
        {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": "", "arguments": piece},
            "custom": NO_CUSTOM,
        }
        for piece in pieces
    ]
    deltas[0]["function"] = {"name": "weather", "arguments": pieces[0]}
    assert streamed(*({"tool_calls": [delta]} for delta in deltas)).parts == (
        ToolCall("call_1", "weather", '{"city":"Oslo"}'),
    )


def test_zero_values_of_other_fields_are_absent() -> None:
    answer = {**completion("", content="4"), "service_tier": "", "system_fingerprint": ""}
    assert decoded(answer).extras is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "4", "function_call": NO_CALL}, "stop"),
        ({"content": "", "function_call": NO_CALL, "tool_calls": [CALL]}, "tool_calls"),
        ({"content": "", "function_call": WEATHER}, "function_call"),
    ],
)
def test_a_relayed_answer_finishes_with_a_call_only_if_it_has_one(
    message: dict[str, Any], reason: str
) -> None:
    answer = completion("", **message)
    body, outcome = relay_response(json.encode(answer), reply())
    assert outcome.sent_finish == reason
    answer["choices"][0]["finish_reason"] = reason
    assert json.decode(body) == answer
    relay = Relay(reply(include_usage=False))
    tool_calls = [{"index": 0, **call} for call in message.get("tool_calls", ())]
    stream = role() + choice(**{**message, "tool_calls": tool_calls}) + choice("stop") + DONE
    assert chunks(relay.feed(stream))[-1]["choices"][0]["finish_reason"] == reason


def test_an_empty_relayed_answer_stays_empty_beside_zero_values() -> None:
    message = {"content": "", "function_call": NO_CALL, "audio": NO_AUDIO, "refusal": ""}
    assert relay_response(json.encode(completion("", **message)), reply())[1].empty


EMPTY_ERRORS: list[Any] = [{}, "", [], {"message": "", "code": 0}, {"message": None}, False]


@pytest.mark.parametrize("error", EMPTY_ERRORS, ids=repr)
def test_an_empty_error_beside_an_answer_is_no_failure(error: Any) -> None:
    # OpenAI-compatible servers that write the zero value of their error type into every answer.
    answer = {**completion(content="Hi"), "error": error}
    assert decoded(answer).parts == (Text("Hi"),)
    assert relay_response(json.encode(answer), reply())[0] == json.encode(answer)
    stream = role() + frame(choices=[{"index": 0, "delta": {"content": "Hi"}}], error=error) + choice("stop")
    assert fold(events(stream + DONE)).parts == (Text("Hi"),)
    assert Relay(reply(include_usage=False)).feed(stream + DONE) == stream + DONE


@pytest.mark.parametrize("error", EMPTY_ERRORS, ids=repr)
def test_an_empty_error_without_an_answer_is_a_failure(error: Any) -> None:
    body = json.encode({"error": error})
    with pytest.raises(UpstreamFailed):
        decode_response(body)
    with pytest.raises(UpstreamFailed):
        Relay(reply()).feed(sse.frame(body))
    assert isinstance(events(role() + choice(content="Hi") + sse.frame(body))[-1], Failed)


# (counts, usage)
COUNTED: list[tuple[str, dict[str, Any], Usage]] = [
    (
        "xAI counts reasoning apart",
        {
            "prompt_tokens": 12,
            "completion_tokens": 1,
            "total_tokens": 303,
            "prompt_tokens_details": {"cached_tokens": 11},
            "completion_tokens_details": {"reasoning_tokens": 290},
        },
        Usage(12, 291, cache_read=11, reasoning=290),
    ),
    (
        "OpenAI counts reasoning within",
        {
            "prompt_tokens": 12,
            "completion_tokens": 291,
            "total_tokens": 303,
            "completion_tokens_details": {"reasoning_tokens": 290},
        },
        Usage(12, 291, reasoning=290),
    ),
    (
        "no total",
        {
            "prompt_tokens": 12,
            "completion_tokens": 1,
            "completion_tokens_details": {"reasoning_tokens": 290},
        },
        Usage(12, 291, reasoning=290),
    ),
    ("Kimi", {**COUNTS, "cached_tokens": 2}, Usage(3, 2, cache_read=2)),
    ("Mistral", {**COUNTS, "num_cached_tokens": 2}, Usage(3, 2, cache_read=2)),
    ("DeepSeek", {**COUNTS, "prompt_cache_hit_tokens": 2}, Usage(3, 2, cache_read=2)),
]


@pytest.mark.parametrize(
    ("counts", "expected"), [row[1:] for row in COUNTED], ids=[row[0] for row in COUNTED]
)
@pytest.mark.parametrize("odd", [{}, {"prompt_tokens": "text"}])
def test_counts_of_a_provider_are_understood(
    counts: dict[str, Any], expected: Usage, odd: dict[str, Any]
) -> None:
    answer = {**completion(content="Hi"), "usage": counts}
    if odd:
        # The second form is read field by field.
        answer["choices"][0]["message"]["content"] = [{"type": "text", "text": "Hi"}]
    assert decoded(answer).usage == expected
    assert relay_response(json.encode(answer), reply())[1].usage == expected
    stream = role() + choice("stop", content="Hi") + usage(**{"total_tokens": None, **counts}) + DONE
    assert fold(events(stream)).usage == expected


def detail(text: str, index: int = 0, field: str = "text") -> dict[str, Any]:
    return {"type": f"reasoning.{field}", field: text, "format": "anthropic-claude-v1", "index": index}


ENCRYPTED = {"type": "reasoning.encrypted", "data": "gAAA", "id": "rs_1", "index": 0}
NO_TEXT = {"type": "reasoning.text", "text": 5}
REASONED: list[tuple[str, dict[str, Any], str]] = [
    ("Snowflake", {"reasoning_details": [detail("Hm.")]}, "Hm."),
    ("OpenRouter", {"reasoning": None, "reasoning_details": [ENCRYPTED, detail("Hm.", 1, "summary")]}, "Hm."),
    ("two", {"reasoning_details": [detail("A", 1, "summary"), ENCRYPTED, detail("B", 3)]}, "A\n\nB"),
    ("both", {"reasoning": "Hm.", "reasoning_details": [detail("Hm.")]}, "Hm."),
    ("invalid text", {"reasoning_details": [NO_TEXT, "x", detail("Hm.")]}, "Hm."),
]


@pytest.mark.parametrize(("fields", "text"), [row[1:] for row in REASONED], ids=[row[0] for row in REASONED])
def test_reasoning_is_read_from_its_details(fields: dict[str, Any], text: str) -> None:
    for response in (
        decoded(completion(content="4", **fields)),
        streamed({"content": "", **fields}, {"content": "4"}),
    ):
        reasoning, answer = response.parts
        assert isinstance(reasoning, Reasoning)
        assert (reasoning.text, answer) == (text, Text("4"))
        sent = entries_of(reasoning)
        assert sent == (fields["reasoning_details"] if ENCRYPTED in fields["reasoning_details"] else [])


@pytest.mark.parametrize("details", [[], None, "text", {"type": "reasoning.text"}], ids=repr)
def test_details_without_text_are_not_reasoning(details: Any) -> None:
    assert decoded(completion(content="4", reasoning_details=details)).parts == (Text("4"),)


def test_encrypted_details_alone_are_redacted_reasoning() -> None:
    signature = "details." + json.encode([ENCRYPTED]).decode()
    parts = (Reasoning(redacted=True, signature=signature), Text("4"))
    assert decoded(completion(content="4", reasoning_details=[ENCRYPTED])).parts == parts
    assert streamed({"reasoning_details": [ENCRYPTED]}, {"content": "4"}).parts == parts


@pytest.mark.parametrize("signature", ["details.", "details.[", "details.[1]", "c2ln", None])
def test_a_signature_that_is_not_of_details_has_no_entries(signature: str | None) -> None:
    assert entries_of(Reasoning("Hm.", signature=signature)) == []


def test_the_pieces_of_details_are_joined() -> None:
    pieces = [detail("A"), detail(" and"), detail(" B"), detail("C", 1), detail(" D", 1)]
    deltas = [{"content": "", "reasoning_details": [piece]} for piece in pieces]
    assert streamed(*deltas, {"content": "4"}).parts == (Reasoning("A and B\n\nC D"), Text("4"))


def test_reasoning_among_the_parts_of_the_content_is_read() -> None:
    # Databricks (Claude with thinking).
    summary = [{"type": "summary_text", "text": "Hm.", "signature": "sig"}]
    content = [{"type": "reasoning", "summary": summary}, {"type": "text", "text": "4"}]
    assert decoded(completion(content=content)).parts == (Reasoning("Hm."), Text("4"))
    deltas = [{"content": [{"type": "reasoning", "summary": [{"text": text}]}]} for text in ("H", "m.")]
    assert streamed(*deltas, {"content": "4"}).parts == (Reasoning("Hm."), Text("4"))
