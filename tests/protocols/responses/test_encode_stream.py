from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.canon.errors import GatewayError, UpstreamFailed, UpstreamLimited, UpstreamRejected
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
from routecodex.canon.request import Request, Tool
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.decode_request import decode_request
from routecodex.protocols.responses.decode_stream import StreamDecoder
from routecodex.protocols.responses.encode_stream import StreamEncoder
from routecodex.protocols.responses.validate import validate
from routecodex.protocols.responses.whole import encode_response
from tests.protocols.responses.grammar import check, events_of

TOOLS = (Tool("apply_patch", kind="custom"), Tool("spawn", namespace="agents"), Tool("shell"))
REQUEST = Request(model="m", messages=(), source="responses", tools=TOOLS)
DONE = Finished(Finish("stop"))


def reply(**fields: Any) -> ReplyContext:
    return ReplyContext(**{"id": "abc", "created": 7, "model": "m", "request": REQUEST, **fields})


def encoded(*events: Event, **fields: Any) -> bytes:
    encoder = StreamEncoder(reply(**fields))
    return b"".join(encoder.encode(event) for event in (Started("up", "upm"), *events))


def kinds(stream: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in check(stream)]


def output(*events: Event, **fields: Any) -> list[Any]:
    items: list[Any] = check(encoded(*events, DONE, **fields))[-1]["response"]["output"]
    return items


def test_text_is_sent_with_the_whole_event_set() -> None:
    stream = encoded(PartStarted(0, Text("")), TextDelta(0, "he"), TextDelta(0, "llo"), PartFinished(0), DONE)
    assert kinds(stream) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert check(stream)[-1]["response"]["output"] == [
        {
            "id": "msg_abc_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}],
        }
    ]


def test_reasoning_and_calls_are_sent_with_the_whole_event_set() -> None:
    stream = encoded(
        PartStarted(0, Reasoning()),
        ReasoningDelta(0, "hm"),
        SignatureDelta(0, "sig"),
        PartFinished(0),
        PartStarted(1, ToolCall("c1", "shell")),
        ArgumentsDelta(1, '{"a":1}'),
        PartFinished(1),
        Finished(Finish("tool_calls")),
        provider="p",
    )
    assert kinds(stream)[2:] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    reasoning, call = check(stream)[-1]["response"]["output"]
    assert reasoning["encrypted_content"] == "rcx1.p.sig"
    assert (call["id"], call["call_id"], call["arguments"]) == ("fc_abc_1", "c1", '{"a":1}')


def test_overlapping_parts_are_sent_one_after_the_other() -> None:
    items = output(
        PartStarted(0, Text("")),
        PartStarted(1, ToolCall("c1", "shell")),
        PartStarted(2, ToolCall("c2", "shell")),
        ArgumentsDelta(2, "[2]"),
        TextDelta(0, "x"),
        ArgumentsDelta(1, "[1]"),
        PartFinished(2),
        PartFinished(0),
        PartFinished(1),
    )
    assert [item.get("arguments") for item in items] == [None, "[1]", "[2]"]


def test_consecutive_texts_are_one_message_and_empty_ones_are_not_sent() -> None:
    items = output(
        PartStarted(0, Text("")),
        PartFinished(0),
        PartStarted(1, Text("a")),
        PartFinished(1),
        PartStarted(2, Reasoning()),
        PartFinished(2),
        PartStarted(3, Refusal("")),
        TextDelta(3, "no"),
        PartFinished(3),
    )
    assert [item["content"] for item in items] == [
        [
            {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
        ]
    ]


@pytest.mark.parametrize(
    ("events", "tier"),
    [
        ([Started(), Finished(Finish("stop"))], "default"),
        ([Started("x", "m", 1, {"service_tier": "flex"}), Finished(Finish("stop"))], "flex"),
        ([Started(), Finished(Finish("stop"), {"service_tier": "priority"})], "priority"),
        ([Started(), Finished(Finish("stop"), {"service_tier": 1})], "default"),
    ],
)
def test_the_service_tier_is_the_one_the_provider_reported(events: list[Event], tier: str) -> None:
    encoder = StreamEncoder(reply(request=None))
    for event in events:
        encoder.encode(event)
    assert encoder.final_body is not None
    assert json.loads(encoder.final_body)["service_tier"] == tier


def test_text_that_stands_apart_is_a_message_of_its_own() -> None:
    items = output(
        PartStarted(0, Text("a")), PartFinished(0), PartStarted(1, Text("b", apart=True)), PartFinished(1)
    )
    assert [[part["text"] for part in item["content"]] for item in items] == [["a"], ["b"]]


def test_text_of_another_phase_is_a_message_of_its_own() -> None:
    items = output(
        PartStarted(0, Text("a", extras={"responses.item": {"phase": "commentary"}})),
        PartFinished(0),
        PartStarted(1, Text("b", extras={"responses.item": {"phase": "final_answer"}})),
        PartFinished(1),
    )
    assert [item["phase"] for item in items] == ["commentary", "final_answer"]


def test_function_that_stood_for_a_custom_tool_comes_back_as_its_call() -> None:
    stream = encoded(
        PartStarted(0, ToolCall("c1", "apply_patch")),
        ArgumentsDelta(0, '{"input":"*** Be'),
        ArgumentsDelta(0, 'gin\\n"}'),
        PartFinished(0),
        DONE,
    )
    deltas = [event["delta"] for event in events_of(stream) if event["type"].endswith("input.delta")]
    assert deltas == ["*** Be", "gin\n"]
    (item,) = check(stream)[-1]["response"]["output"]
    assert (item["type"], item["input"], item["id"]) == ("custom_tool_call", "*** Begin\n", "ctc_abc_0")


def test_flat_name_comes_back_as_name_and_namespace() -> None:
    (item,) = output(PartStarted(0, ToolCall("c1", "agents__spawn")), PartFinished(0))
    assert (item["name"], item["namespace"], item["arguments"]) == ("spawn", "agents", "{}")


def test_custom_calls_of_a_responses_upstream_are_left_alone() -> None:
    (item,) = output(
        PartStarted(0, ToolCall("c1", "apply_patch", '{"input":"x"}', custom=True)), PartFinished(0)
    )
    assert item["input"] == '{"input":"x"}'


def test_truncated_call_is_marked_incomplete() -> None:
    events: list[Event] = [PartStarted(0, ToolCall("c1", "shell")), ArgumentsDelta(0, '{"a'), PartFinished(0)]
    final = check(encoded(*events, Finished(Finish("length"))))[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["output"][0]["status"] == "incomplete"


def test_signature_of_a_call_is_in_an_item_that_clients_echo() -> None:
    call: list[Event] = [
        PartStarted(0, ToolCall("c1", "shell", "{}")),
        SignatureDelta(0, "gem"),
        PartFinished(0),
    ]
    items = output(*call, provider="g")
    body = {"model": "m", "input": [*items, {"type": "function_call_output", "call_id": "c1", "output": "x"}]}
    parts = decode_request(validate(json.dumps(body).encode())).messages[0].parts
    assert [(part.signature, part.origin) for part in parts if isinstance(part, ToolCall)] == [("gem", "g")]
    assert len(parts) == 1


def test_redacted_reasoning_comes_back_redacted() -> None:
    events: list[Event] = [PartStarted(0, Reasoning(redacted=True, signature="data")), PartFinished(0)]
    items = output(*events, provider="a")
    body = json.dumps({"model": "m", "input": items}).encode()
    (part,) = decode_request(validate(body)).messages[0].parts
    assert part == Reasoning(redacted=True, signature="data", origin="a", id="rs_abc_0")


def test_reasoning_keeps_the_id_of_a_responses_upstream() -> None:
    (item,) = output(PartStarted(0, Reasoning("x", id="rs_up")), PartFinished(0))
    assert item["id"] == "rs_up"


@pytest.mark.parametrize(
    ("annotation", "sent"),
    [
        (
            {
                "type": "url_citation",
                "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1},
            },
            {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1},
        ),
        (
            {"type": "web_search_result_location", "url": "u", "title": None, "cited_text": "c"},
            {"type": "url_citation", "url": "u", "title": "", "start_index": 1, "end_index": 1},
        ),
    ],
)
def test_citations_of_other_protocols_become_url_citations(annotation: Any, sent: Any) -> None:
    (item,) = output(
        PartStarted(0, Text("")), TextDelta(0, "x"), AnnotationDelta(0, annotation), PartFinished(0)
    )
    assert item["content"][0]["annotations"] == [sent]


def test_logprobs_of_chat_are_completed() -> None:
    entry = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    (item,) = output(PartStarted(0, Text("")), TextDelta(0, "a", (entry,)), PartFinished(0))
    assert item["content"][0]["logprobs"] == [
        {
            "token": "a",
            "logprob": -1.0,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
        }
    ]


def test_items_only_responses_has_pass_and_those_of_others_do_not() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    items = output(
        PartStarted(0, Opaque("responses", search)),
        PartFinished(0),
        PartStarted(1, Opaque("messages", {"type": "server_tool_use"})),
        PartFinished(1),
    )
    assert items == [search]


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
        ("refusal", "incomplete", {"reason": "content_filter"}),
        ("error", "failed", None),
    ],
)
def test_finishes(reason: Reason, status: str, details: Any) -> None:
    final = check(encoded(Finished(Finish(reason))))[-1]
    assert final["type"] == f"response.{status}"
    assert final["response"]["status"] == status
    assert final["response"]["incomplete_details"] == details


def test_usage_is_reported_or_estimated() -> None:
    counted = Usage(input=9, output=5, cache_read=3, cache_write=1, reasoning=2)
    assert check(encoded(UsageReported(counted), DONE))[-1]["response"]["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }
    guessed = check(encoded(PartStarted(0, Text("x" * 30)), DONE, input_tokens=7))[-1]["response"]["usage"]
    assert (guessed["input_tokens"], guessed["output_tokens"]) == (7, 11)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UpstreamFailed("broke"), "server_error"),
        (UpstreamLimited("slow"), "rate_limit_exceeded"),
        (UpstreamLimited("broke", code="insufficient_quota"), "insufficient_quota"),
        (UpstreamRejected("bad"), "invalid_prompt"),
    ],
)
def test_failure_ends_the_stream_without_looking_complete(error: GatewayError, code: str) -> None:
    stream = encoded(
        PartStarted(0, Text("a")),
        PartFinished(0),
        PartStarted(1, ToolCall("c1", "shell")),
        ArgumentsDelta(1, '{"cmd":"rm -rf /tmp'),
        Failed(error),
        DONE,
    )
    events = events_of(stream)
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.failed"
    assert final["status"] == "failed"
    assert final["error"] == {"code": code, "message": error.message}
    assert [item["type"] for item in final["output"]] == ["message"]


def test_answer_repeats_fields_of_the_request() -> None:
    body = {
        "model": "m",
        "input": "hi",
        "instructions": "be",
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "store": False,
        "truncation": "auto",
        "max_output_tokens": 99,
    }
    view = validate(json.dumps(body).encode()).view
    final = check(encoded(DONE, view=view))[-1]["response"]
    completed = {
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False, "description": None}],
        "reasoning": {"effort": "low", "summary": None},
    }
    assert {name: final[name] for name in body if name not in ("model", "input")} == {
        name: value for name, value in {**body, **completed}.items() if name not in ("model", "input")
    }
    assert (final["id"], final["created_at"], final["model"]) == ("resp_abc", 7, "m")


OPEN_RESPONSES = {
    "background": False,
    "completed_at": 9,
    "created_at": 7,
    "error": None,
    "frequency_penalty": 0.0,
    "id": "resp_abc",
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "presence_penalty": 0.5,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "status": "completed",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "auto",
    "tools": [
        {"type": "web_search"},
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False},
        {"type": "function", "name": "g", "description": "d", "parameters": {}, "strict": True},
    ],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def test_response_object_has_every_field_of_open_responses() -> None:
    body = {
        "model": "m",
        "input": "hi",
        "presence_penalty": 0.5,
        "text": {"format": None, "verbosity": "low"},
        "reasoning": {},
        "tools": [
            {"type": "web_search"},
            {"type": "function", "name": "f"},
            {"type": "function", "name": "g", "description": "d", "parameters": {}, "strict": True},
        ],
    }
    view = validate(json.dumps(body).encode()).view
    events = check(encoded(DONE, view=view, clock=lambda: 9.7))
    final = events[-1]["response"]
    assert {name: value for name, value in final.items() if name != "usage"} == OPEN_RESPONSES
    begun = events[0]["response"]
    assert (begun["completed_at"], begun["service_tier"], begun["tools"]) == (None, "auto", final["tools"])


@pytest.mark.parametrize(
    ("requested", "reported", "sent"),
    [
        (None, "on_demand", "default"),  # Groq
        (None, "", "default"),  # Snowflake
        ("flex", "", "flex"),
        ("flex", "priority", "priority"),
        ("standard_only", None, "default"),
    ],
)
def test_service_tier_is_one_that_the_sdk_knows(
    requested: str | None, reported: str | None, sent: str
) -> None:
    body = {"model": "m", "input": "hi", "service_tier": requested}
    end = Finished(Finish("stop"), {"service_tier": reported})
    events = check(encoded(end, view=validate(json.dumps(body).encode()).view))
    assert events[-1]["response"]["service_tier"] == sent


def test_completed_at_of_an_incomplete_answer_is_null() -> None:
    final = check(encoded(Finished(Finish("length")), clock=lambda: 9.7))[-1]["response"]
    assert (final["status"], final["completed_at"]) == ("incomplete", None)


parts = st.one_of(
    st.builds(Text, st.text(min_size=1)),
    st.builds(Refusal, st.text(min_size=1)),
    st.builds(Reasoning, st.text(min_size=1), signature=st.none() | st.text("abc", min_size=1)),
    st.builds(ToolCall, st.text("abc", min_size=1), st.sampled_from(["f", "g"]), st.just('{"a":1}')),
    st.builds(ToolCall, st.text("abc", min_size=1), st.just("p"), st.text(), custom=st.just(True)),
    st.builds(ToolCall, st.just("x"), st.just("f"), st.just("{}"), namespace=st.just("ns")),
)
usages = st.builds(Usage, input=st.integers(9, 99), output=st.integers(0, 99), cache_read=st.integers(0, 9))


def plain(answer: Response) -> tuple[Any, ...]:
    return tuple(map(plain_part, answer.parts)), answer.usage


def plain_part(part: Any) -> Any:
    """Return the part without fields of Responses alone: the id of reasoning, the start of a message."""
    if isinstance(part, Text):
        return replace(part, apart=False)
    return replace(part, id=None) if isinstance(part, Reasoning) else part


@given(st.lists(parts, max_size=5), usages)
def test_encoded_answers_decode_to_the_same_answer_streamed_or_whole(
    answered: list[Any], usage: Usage
) -> None:
    answer = Response(id="x", model="m", created=7, parts=tuple(answered), usage=usage)
    stream = b"".join(map(StreamEncoder(reply(request=None)).encode, unfold(answer)))
    final = check(stream)[-1]["response"]
    decoder = StreamDecoder()
    back = fold([*decoder.feed(stream), *decoder.close()])
    assert plain(back) == plain(answer)
    assert json.loads(encode_response(answer, reply(request=None))) == final


REFUSED = Finish("refusal", upstream_reason="refusal")


@pytest.mark.parametrize("text", [(), (PartStarted(0, Text("I")), PartFinished(0))], ids=["empty", "text"])
def test_refusal_of_anthropic_without_a_part_is_seen_by_the_client(text: tuple[Event, ...]) -> None:
    plain = check(encoded(*text, Finished(REFUSED)))[-1]["response"]
    assert (plain["status"], plain["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    details = {"type": "refusal", "category": "cyber", "explanation": "Blocked."}
    explained = check(encoded(*text, Finished(REFUSED, {"stop_details": details})))[-1]["response"]
    assert explained["status"] == "completed"
    assert explained["output"][0]["content"][-1] == {"type": "refusal", "refusal": "Blocked."}


def test_refusal_of_anthropic_without_a_part_in_a_whole_answer() -> None:
    details = {"type": "refusal", "category": None, "explanation": "Blocked."}
    response = Response(finish=REFUSED, extras={"stop_details": details})
    body = json.loads(encode_response(response, reply()))
    assert [part for item in body["output"] for part in item["content"]] == [
        {"type": "refusal", "refusal": "Blocked."}
    ]
    bare = json.loads(encode_response(Response(finish=REFUSED), reply()))
    assert (bare["status"], bare["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})


def test_refusal_part_is_not_repeated() -> None:
    end = Finished(REFUSED, {"stop_details": {"explanation": "Blocked."}})
    final = check(encoded(PartStarted(0, Refusal("No.")), PartFinished(0), end))[-1]["response"]
    assert final["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
