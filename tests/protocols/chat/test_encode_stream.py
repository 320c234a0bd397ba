from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamLimited
from routecodex.canon.events import (
    AnnotationDelta,
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
from routecodex.canon.finish import Finish, Reason
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Tool
from routecodex.protocols.grammar import check_broken_chat, check_chat
from tests.protocols.chat.samples import chunks, events, foreign_request, reply, written
from tests.protocols.test_grammar import ANSWERS

HEAD = {"id": "chatcmpl-abc", "object": "chat.completion.chunk", "created": 1, "model": "gpt"}
STOP = Finished(Finish("stop"))
CALLS = Finished(Finish("tool_calls"))


def answer(*middle: Event, end: Event = STOP) -> list[Event]:
    return [Started("up-1", "gpt"), *middle, end]


def deltas(stream: bytes) -> list[dict[str, Any]]:
    """The deltas between the role and the finish."""
    found = [chunk["choices"][0]["delta"] for chunk in chunks(stream) if chunk["choices"]]
    assert found[0] == {"role": "assistant", "content": ""}
    assert found[-1] == {}
    return found[1:-1]


def text(*pieces: str, index: int = 0) -> list[Event]:
    added = [TextDelta(index, piece) for piece in pieces]
    return [PartStarted(index, Text("")), *added, PartFinished(index)]


def call(index: int, part: ToolCall, *pieces: str) -> list[Event]:
    added = [ArgumentsDelta(index, piece) for piece in pieces]
    return [PartStarted(index, part), *added, PartFinished(index)]


def test_a_plain_answer_is_written_to_the_letter() -> None:
    out = written(answer(*text("Hel", "lo"), UsageReported(Usage(3, 2, cache_read=1, reasoning=1))))

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**HEAD, "choices": [choice], "usage": None}

    assert chunks(out) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        {
            **HEAD,
            "choices": [],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        },
    ]
    assert out.endswith(b"data: [DONE]\n\n")
    check_chat(out, include_usage=True)


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_is_sent_exactly_when_requested(include_usage: bool) -> None:
    out = written(answer(*text("Hi"), UsageReported(Usage(3, 2))), reply(include_usage=include_usage))
    check_chat(out, include_usage=include_usage)
    assert (b'"usage"' in out) == include_usage


def test_usage_is_estimated_if_the_upstream_gave_none() -> None:
    out = written(answer(*text("x" * 30)), reply(input_tokens=7))
    assert chunks(out)[-1]["usage"]["prompt_tokens"] == 7
    assert chunks(out)[-1]["usage"]["completion_tokens"] == 11


@pytest.mark.parametrize("scene", ANSWERS)
@pytest.mark.parametrize("include_usage", [True, False])
def test_encoded_streams_follow_the_grammar(scene: str, include_usage: bool) -> None:
    out = written(events(ANSWERS[scene]("chat", True).data), reply(include_usage=include_usage))
    check_chat(out, include_usage=include_usage)


def test_reasoning_refusals_and_citations_have_their_fields() -> None:
    out = written(
        answer(
            PartStarted(0, Reasoning()),
            ReasoningDelta(0, "Hm"),
            SignatureDelta(0, "sealed"),
            PartFinished(0),
            *text("Hi", index=1),
            AnnotationDelta(1, {"url": "u", "title": "T"}),
            PartStarted(2, Refusal("")),
            TextDelta(2, "No."),
            PartFinished(2),
            PartStarted(3, Opaque("gemini", {})),
            PartFinished(3),
        )
    )
    citation = {"url": "u", "title": "T", "start_index": 0, "end_index": 2}
    assert deltas(out) == [
        {"reasoning_content": "Hm"},
        {"content": "Hi"},
        {"annotations": [{"type": "url_citation", "url_citation": citation}]},
        {"refusal": "No."},
    ]
    assert b"sealed" not in out


def test_the_initial_text_of_a_part_is_encoded() -> None:
    out = written(
        answer(
            PartStarted(0, Reasoning("Hm")),
            PartFinished(0),
            PartStarted(1, Text("Hi")),
            TextDelta(1, " you"),
            PartFinished(1),
            PartStarted(2, Refusal("No")),
            PartFinished(2),
            *call(3, ToolCall("a", "f", '{"x"'), ":1}"),
            end=CALLS,
        )
    )
    assert deltas(out) == [
        {"reasoning_content": "Hm"},
        {"content": "Hi"},
        {"content": " you"},
        {"refusal": "No"},
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]


def test_log_probabilities_go_with_their_text() -> None:
    out = written(answer(PartStarted(0, Text("")), TextDelta(0, "Hi", ({"token": "Hi"},)), PartFinished(0)))
    assert chunks(out)[1]["choices"][0]["logprobs"] == {"content": [{"token": "Hi"}], "refusal": None}


def test_interleaved_calls_keep_their_numbers() -> None:
    out = written(
        answer(
            PartStarted(0, Text("")),
            PartStarted(1, ToolCall("a", "f")),
            ArgumentsDelta(1, '{"x'),
            PartStarted(2, ToolCall("b", "g")),
            ArgumentsDelta(2, "{}"),
            ArgumentsDelta(1, '":1}'),
            PartFinished(1),
            PartFinished(2),
            end=CALLS,
        )
    )
    entries = [delta["tool_calls"][0] for delta in deltas(out)]
    assert [entry["index"] for entry in entries] == [0, 0, 1, 1, 0]
    check_chat(out, include_usage=True)


def test_a_call_without_arguments_has_an_empty_object() -> None:
    out = written(answer(*call(0, ToolCall("a", "f")), *call(1, ToolCall("b", "g"), "{}"), end=CALLS))
    entries = [delta["tool_calls"][0] for delta in deltas(out)]
    assert [entry["function"].get("arguments") for entry in entries if entry["index"] == 0] == ["", "{}"]
    assert [entry["function"].get("arguments") for entry in entries if entry["index"] == 1] == ["", "{}"]


def test_a_call_cut_off_before_its_arguments_is_not_completed() -> None:
    out = written(answer(*call(0, ToolCall("a", "f")), end=Finished(Finish("length"))))
    assert [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas(out)] == [""]


def test_custom_calls_come_back_as_custom_calls() -> None:
    to = reply(request=foreign_request(tools=(Tool("patch", "custom"),)))
    out = written(answer(*call(0, ToolCall("a", "patch"), '{"inp', 'ut": "a\\n', 'b"}'), end=CALLS), to)
    assert deltas(out) == [
        {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "a\n"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "b"}}]},
    ]
    check_chat(out, include_usage=True)
    free = written(answer(*call(0, ToolCall("a", "patch", custom=True), "free"), end=CALLS), to)
    assert deltas(free)[1] == {"tool_calls": [{"index": 0, "custom": {"input": "free"}}]}


def test_names_of_namespaced_tools_come_back_split() -> None:
    to = reply(request=foreign_request(tools=(Tool("read", namespace="files"),)))
    out = written(answer(*call(0, ToolCall("a", "files__read"), "{}"), end=CALLS), to)
    assert deltas(out)[0]["tool_calls"][0]["function"]["name"] == "read"


FINISHES: list[tuple[Reason, str]] = [
    ("stop", "stop"),
    ("length", "length"),
    ("content_filter", "content_filter"),
    ("refusal", "content_filter"),
    ("pause", "stop"),
    ("error", "stop"),
]


@pytest.mark.parametrize(("reason", "finish_reason"), FINISHES)
def test_finishes_have_chats_reasons(reason: Reason, finish_reason: str) -> None:
    out = written(answer(*text("x"), end=Finished(Finish(reason))))
    assert chunks(out)[-2]["choices"][0]["finish_reason"] == finish_reason
    check_chat(out, include_usage=True)


def test_a_broken_answer_ends_with_an_error_and_nothing_complete() -> None:
    error = UpstreamLimited("slow down", retry_after=3, details={"provider": "up"})
    for middle in (text("Hi"), [PartStarted(0, ToolCall("a", "f")), ArgumentsDelta(0, '{"x')], []):
        out = written(answer(*middle, end=Failed(error)))
        check_broken_chat(out)
        assert chunks(out)[-1] == {
            "error": {
                "message": "slow down",
                "type": "rate_limit_error",
                "param": None,
                "code": "rate_limit_exceeded",
            },
            "code": "rate_limit_exceeded",
            "details": {"provider": "up"},
        }


def test_the_model_is_the_upstreams_or_else_the_requested_one() -> None:
    assert chunks(written([Started("x", ""), STOP]))[0]["model"] == "asked"
    assert chunks(written([Started("x", "gpt"), STOP]))[0]["model"] == "gpt"


def test_every_kind_of_text_is_written_as_json() -> None:
    odd = '\x00"\\\n\u2028é\U0001f600</script>'
    out = written(answer(*text(odd)))
    assert deltas(out) == [{"content": odd}]
    assert out.count(b"\n\n") * 2 == out.count(b"\n")
