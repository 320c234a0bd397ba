from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamError, UpstreamFailed, UpstreamLimited
from routecodex.canon.events import Event, Finished, PartStarted, Started, Usage
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Tool
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.chat.whole import decode_response, encode_response, relay_response
from routecodex.protocols.grammar import check_json
from routecodex.wire import json
from tests.protocols.chat.samples import chunks, foreign_request, reply, written
from tests.protocols.test_grammar import ANSWERS

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def answer(finish: str | None = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    head = {"id": "c-1", "object": "chat.completion", "created": 5, "model": "gpt"}
    return json.encode({**head, "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


DECODED: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"content": "Hi"}, (Text("Hi"),)),
    ({"content": None}, ()),
    ({"content": [{"type": "text", "text": "Hi"}]}, (Text("Hi"),)),
    ({"content": "Hi", "reasoning_content": "Hm"}, (Reasoning("Hm"), Text("Hi"))),
    ({"content": None, "refusal": "No."}, (Refusal("No."),)),
    ({"content": "Hi", "annotations": [{"a": 1}]}, (Text("Hi", annotations=({"a": 1},)),)),
    (
        {"content": "Hi", "tool_calls": [CALL, {**CALL, "id": "b"}]},
        (Text("Hi"), ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")),
    ),
    (
        {"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]},
        (ToolCall("a", "f", '{"x":1}'),),
    ),
    (
        {"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "p", "input": "x"}}]},
        (ToolCall("a", "p", "x", custom=True),),
    ),
]


@pytest.mark.parametrize(("message", "parts"), DECODED, ids=range(len(DECODED)))
def test_whole_answers_are_understood(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    calls = any(isinstance(part, ToolCall) for part in parts)
    finish = Finish("tool_calls" if calls else "stop", upstream_reason="stop")
    assert fold(decode_response(answer(**message))) == Response("c-1", "gpt", 5, parts, finish, Usage(3, 2))


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"[]", b"{}", b'{"choices":[]}', b'{"choices":null}', b"<html>", b'{"id":"x"}']
)
def test_an_invalid_answer_is_rejected(body: bytes) -> None:
    for read in (decode_response, lambda body: relay_response(body, reply())):
        with pytest.raises(UpstreamFailed) as caught:
            read(body)
        assert caught.value.code == "upstream_unparsable"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow", "code": 429}, UpstreamLimited),
        ({"message": "oops"}, UpstreamFailed),
        ("oops", UpstreamFailed),
    ],
)
def test_an_error_inside_an_answer_is_raised(error: Any, kind: type[UpstreamError]) -> None:
    body = json.encode({"id": "x", "choices": [{"message": {"content": "half"}}], "error": error})
    for read in (decode_response, lambda body: relay_response(body, reply())):
        with pytest.raises(kind):
            read(body)


@pytest.mark.parametrize("scene", ANSWERS)
def test_real_answers_pass_and_can_be_written_again(scene: str) -> None:
    body = ANSWERS[scene]("chat", False).data
    passed, outcome = relay_response(body, reply())
    assert passed == body
    assert outcome.usage is not None
    assert outcome.finish == fold(decode_response(body)).finish
    check_json("chat", encode_response(fold(decode_response(body)), reply()))


def test_an_answer_is_written_to_the_letter() -> None:
    response = Response(
        "up-1",
        "gpt",
        9,
        (
            Reasoning("Hm"),
            Text("Hi", annotations=({"type": "a", "a": {"x": 1}},)),
            ToolCall("a", "f", '{"x":1}'),
            ToolCall("b", "g"),
        ),
        Finish("tool_calls"),
        Usage(3, 2),
        ({"token": "Hi"},),
    )
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    message = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "reasoning_content": "Hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
        "annotations": [{"type": "a", "a": {"x": 1}}],
    }
    assert json.decode(encode_response(response, reply())) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": [{"token": "Hi"}], "refusal": None},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": usage,
    }


def message_of(response: Response, **settings: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.decode(encode_response(response, reply(**settings)))["choices"][0]["message"]
    return value


def test_an_answer_without_text_has_no_content() -> None:
    assert message_of(Response()) == {"role": "assistant", "content": None, "refusal": None}
    assert message_of(Response(parts=(Refusal("No."),)))["refusal"] == "No."


def test_images_go_to_chat_clients_as_they_came() -> None:
    assert message_of(Response(parts=(Text("See:"), Opaque("chat", IMAGE))))["images"] == [IMAGE]


def test_a_call_cut_off_before_its_arguments_is_not_completed() -> None:
    response = Response(parts=(ToolCall("a", "f"),), finish=Finish("length"))
    assert message_of(response)["tool_calls"][0]["function"]["arguments"] == ""


def test_custom_calls_come_back_as_custom_calls() -> None:
    request = foreign_request(tools=(Tool("patch", "custom"), Tool("read", namespace="files")))
    calls = (
        ToolCall("a", "patch", '{"input":"free"}'),
        ToolCall("b", "patch", "own", custom=True),
        ToolCall("c", "files__read", "{}"),
    )
    message = message_of(Response(parts=calls, finish=Finish("tool_calls")), request=request)
    assert message["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "free"}},
        {"id": "b", "type": "custom", "custom": {"name": "patch", "input": "own"}},
        {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}},
    ]


def test_usage_is_estimated_if_the_upstream_gave_none() -> None:
    parts = (Text("x" * 12), ToolCall("a", "f", "y" * 18))
    body = json.decode(encode_response(Response(parts=parts), reply(input_tokens=7)))
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 11)


PASSED: list[tuple[str | None, dict[str, Any], str, str]] = [
    ("stop", {"content": "x"}, "stop", "stop"),
    ("stop", {"tool_calls": [CALL]}, "tool_calls", "tool_calls"),
    ("tool_calls", {"tool_calls": [CALL]}, "tool_calls", "tool_calls"),
    ("function_call", {"tool_calls": [CALL]}, "tool_calls", "tool_calls"),
    (None, {"tool_calls": [CALL]}, "tool_calls", "tool_calls"),
    (None, {"content": "x"}, "stop", "stop"),
    ("length", {"tool_calls": [CALL]}, "length", "length"),
    ("model_length", {"tool_calls": [CALL]}, "length", "length"),
    ("eos", {"content": "x"}, "stop", "stop"),
    ("sensitive", {"content": "x"}, "content_filter", "content_filter"),
    ("tool_calls", {"content": "x"}, "stop", "stop"),
    ("function_call", {"function_call": {"name": "f", "arguments": "{}"}}, "tool_calls", "function_call"),
    ("stop", {"function_call": {"name": "f", "arguments": "{}"}}, "tool_calls", "function_call"),
]


@pytest.mark.parametrize(("finish_reason", "message", "reason", "sent"), PASSED, ids=range(len(PASSED)))
def test_a_wrong_finish_reason_is_corrected(
    finish_reason: str | None, message: dict[str, Any], reason: str, sent: str
) -> None:
    body = answer(finish_reason, **message)
    passed, outcome = relay_response(body, reply())
    expected = json.decode(body)
    expected["choices"][0]["finish_reason"] = sent
    assert json.decode(passed) == expected
    assert outcome.finish is not None
    assert (outcome.finish.reason, outcome.sent_finish) == (reason, sent)
    assert (outcome.model, outcome.response_id, outcome.usage) == ("gpt", "c-1", Usage(3, 2))
    if finish_reason == sent:
        assert passed == body


EMPTINESS: list[tuple[dict[str, Any], bool]] = [
    ({"content": "x"}, False),
    ({"content": None, "audio": {"id": "a", "data": "QUFB", "transcript": "hi"}}, False),
    ({"content": "", "images": [IMAGE]}, False),
    ({"content": "", "audio": None, "images": []}, True),
    ({"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]}, True),
]


@pytest.mark.parametrize(("message", "empty"), EMPTINESS, ids=range(len(EMPTINESS)))
def test_an_answer_without_text_audio_and_images_is_empty(message: dict[str, Any], empty: bool) -> None:
    assert relay_response(answer("stop", **message), reply())[1].empty is empty


def test_an_answer_that_needs_repair_and_cannot_be_read_is_rejected() -> None:
    body = answer("eos", content="x", y="?").replace(b"?", b"\xff")
    with pytest.raises(UpstreamFailed) as caught:
        relay_response(body, reply())
    assert caught.value.code == "upstream_unparsable"


def test_every_choice_is_corrected_separately() -> None:
    choices = [
        {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"},
        {"index": 1, "message": {"tool_calls": [CALL]}, "finish_reason": "stop"},
    ]
    passed, _ = relay_response(json.encode({"choices": choices, "new": 1}), reply())
    assert [choice["finish_reason"] for choice in json.decode(passed)["choices"]] == ["stop", "tool_calls"]
    assert json.decode(passed)["new"] == 1


def test_two_messages_of_one_answer_stand_apart() -> None:
    response = Response(parts=(Text("One,"), Text(" and."), Text("Two.", apart=True)))
    (choice,) = json.decode(encode_response(response, reply()))["choices"]
    assert choice["message"]["content"] == "One, and.\n\nTwo."
    message = [chunk["choices"] for chunk in chunks(written(list(unfold(response))))]
    reason = [choice["delta"].get("content") or "" for choices in message for choice in choices]
    assert "".join(reason) == "One, and.\n\nTwo."


def test_the_service_tier_of_an_answer_is_sent() -> None:
    response = Response(parts=(Text("Hi"),), extras={"service_tier": "flex", "odd": 1})
    assert json.decode(encode_response(response, reply()))["service_tier"] == "flex"
    assert {chunk["service_tier"] for chunk in chunks(written(list(unfold(response))))} == {"flex"}
    late: list[Event] = [
        Started(),
        PartStarted(0, Text("Hi")),
        Finished(Finish("stop"), {"service_tier": "flex"}),
    ]
    assert [chunk.get("service_tier") for chunk in chunks(written(late))] == [None, None, "flex", "flex"]


@pytest.mark.parametrize(("reported", "sent"), [("on_demand", "default"), ("", None)])
def test_a_service_tier_that_the_sdk_does_not_know_is_not_sent(reported: str, sent: str | None) -> None:
    """Responses endpoints of Groq and Snowflake."""
    response = Response(parts=(Text("Hi"),), extras={"service_tier": reported})
    assert json.decode(encode_response(response, reply())).get("service_tier") == sent
    assert {chunk.get("service_tier") for chunk in chunks(written(list(unfold(response))))} == {sent}


def test_a_whole_answer_in_delta_arrives_as_a_message() -> None:
    message = {"role": "assistant", "content": "Hello"}
    body, outcome = relay_response(answer(content="Hello").replace(b'"message"', b'"delta"'), reply())
    assert json.decode(body)["choices"] == [{"index": 0, "finish_reason": "stop", "message": message}]
    assert not outcome.empty


def test_a_content_part_whose_type_is_not_a_text_is_a_text() -> None:
    message = {"role": "assistant", "content": [{"type": ["x"], "text": "Hi"}]}
    body = json.encode({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert fold(decode_response(body)).parts == (Text("Hi"),)


def test_a_choice_that_is_not_an_object_is_not_counted() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "eos"}
    served, outcome = relay_response(json.encode({"id": "c", "choices": [1.5, choice]}), reply())
    assert json.decode(served)["choices"] == [1.5, {**choice, "finish_reason": "stop"}]
    assert outcome.finish is not None
