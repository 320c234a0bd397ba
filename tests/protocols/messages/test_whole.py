from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import TextBlock

from routecodex.canon.errors import UpstreamFailed, UpstreamOverloaded
from routecodex.canon.events import AnswerPart, Usage
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols import sealed_signatures
from routecodex.protocols.grammar import check_json
from routecodex.protocols.messages.thinking import carry_signature
from routecodex.protocols.messages.whole import decode_response, encode_response, relay_response
from routecodex.wire import json
from tests.protocols.messages import samples
from tests.protocols.messages.samples import MESSAGE_STOP, STREAMS, decoded, encoded, end, reply, start, stop


def answer(*content: dict[str, Any], **fields: Any) -> bytes:
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 5},
    }
    return json.encode({**whole, **fields})


CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
TEXT = {"type": "text", "text": "hi"}
PARTS = (
    Reasoning("t", "s"),
    Reasoning(signature="d", redacted=True),
    Text("hi", annotations=({"type": "char_location"},)),
    ToolCall("a", "f", '{"x":1}'),
    Opaque("messages", {"type": "server_tool_use", "id": "s", "name": "w", "input": {"q": 1}}),
    Opaque("messages", {"type": "container_upload", "file_id": "f"}),
)


def test_an_answer_is_read_as_the_stream_would_be() -> None:
    response = Response(
        "m", "x", None, PARTS, Finish("tool_calls", upstream_reason="tool_use"), Usage(8, 4, 5)
    )
    body = encode_response(response, reply())
    check_json("messages", body)
    assert fold(decode_response(body)) == Response(
        "msg_abc", "x", None, PARTS, response.finish, response.usage
    )
    assert fold(decoded(encoded(list(unfold(response))))) == fold(decode_response(body))


@pytest.mark.parametrize("name", STREAMS)
def test_stream_and_whole_answer_are_equal(name: str) -> None:
    response = fold(decoded(*STREAMS[name]))
    whole = fold(decode_response(encode_response(response, reply())))
    streamed = fold(decoded(encoded(list(unfold(response)))))
    assert [_with_input(part) for part in streamed.parts] == list(whole.parts)
    assert (whole.finish, whole.usage) == (streamed.finish, streamed.usage)


def _with_input(part: Any) -> Any:
    """A call without arguments has an empty input in a whole answer."""
    return ToolCall(part.id, part.name, "{}") if isinstance(part, ToolCall) and not part.arguments else part


def test_parts_that_clients_cannot_read_are_left_out() -> None:
    parts = (Text("a", annotations=({"type": "url_citation"},)), Text(""), Opaque("chat", {}), Refusal("no"))
    content = json.decode(encode_response(Response(parts=parts), reply()))["content"]
    assert content == [{"type": "text", "text": "a"}, {"type": "text", "text": "no"}]


def test_signatures_leave_sealed() -> None:
    parts = (Reasoning("t", "s"), ToolCall("a", "f", "{}", signature="z"))
    content = json.decode(encode_response(Response(parts=parts), reply(provider="acme")))["content"]
    assert content == [
        {"type": "thinking", "thinking": "t", "signature": sealed_signatures.seal("acme", "s")},
        {"type": "redacted_thinking", "data": carry_signature("acme", "a", signature="z")},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    ]


def test_a_refusal_keeps_its_details() -> None:
    details = {"type": "refusal", "category": "cyber"}
    body = answer(stop_reason="refusal", stop_details=details)
    response = fold(decode_response(body))
    assert response.finish.reason == "refusal"
    assert json.decode(encode_response(response, reply()))["stop_details"] == details


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"content":"x"}', b'{"content":[{"type":5}]}']
)
def test_an_invalid_answer_is_an_upstream_failure(body: bytes) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        decode_response(body)
    assert caught.value.code == "upstream_unparsable"


def test_an_error_in_place_of_an_answer_is_raised() -> None:
    body = json.encode({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    for take in (decode_response, lambda data: relay_response(data, reply())):
        with pytest.raises(UpstreamOverloaded):
            take(body)


def test_a_valid_answer_is_relayed_unchanged() -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    body = answer(thinking, {"type": "redacted_thinking", "data": "d"}, CALL, stop_reason="tool_use", new=1)
    passed, outcome = relay_response(body, reply())
    assert passed is body
    assert (outcome.model, outcome.response_id) == ("claude", "msg_1")
    assert outcome.finish == Finish("tool_calls", upstream_reason="tool_use")
    assert outcome.sent_finish == "tool_use"
    assert outcome.usage == Usage(input=8, output=4, cache_read=5)
    assert outcome.signatures == ["s", "d"]


@pytest.mark.parametrize(
    ("content", "stop_reason", "knows", "sent"),
    [
        ([CALL], "end_turn", True, "tool_use"),
        ([CALL], None, True, "tool_use"),
        ([TEXT], "tool_use", True, "end_turn"),
        ([TEXT], None, True, "end_turn"),
        ([TEXT], "refusal", False, "stop_sequence"),
        ([TEXT], "refusal", True, "refusal"),
        ([TEXT], "model_context_window_exceeded", True, "model_context_window_exceeded"),
        ([TEXT], "tomorrow", True, "tomorrow"),
    ],
)
def test_a_wrong_stop_reason_is_corrected(
    content: list[dict[str, Any]], stop_reason: str | None, knows: bool, sent: str
) -> None:
    body = answer(*content, stop_reason=stop_reason, new=1.50)
    passed, outcome = relay_response(body, reply(knows_refusal=knows))
    assert outcome.sent_finish == sent
    assert json.decode(passed) == {**json.decode(body), "stop_reason": sent}


def test_missing_usage_is_estimated() -> None:
    passed, outcome = relay_response(answer(TEXT, usage=None), reply())
    assert outcome.usage is not None
    assert outcome.usage.estimated
    assert json.decode(passed)["usage"]["input_tokens"] == 7


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "redacted_thinking", "data": None}, Reasoning(redacted=True)),
        ({"type": "thinking", "thinking": None, "signature": None}, Reasoning()),
        ({"type": "text", "text": "hi", "citations": 7}, Text("hi")),
        ({"type": "text", "text": "hi", "citations": {"enabled": True}}, Text("hi")),
        ({"type": "document", "source": None}, Opaque("messages", {"type": "document", "source": None})),
        (
            {"type": "search_result", "content": 7},
            Opaque("messages", {"type": "search_result", "content": 7}),
        ),
    ],
)
def test_an_unexpected_value_in_a_block_is_ignored_as_in_a_stream(
    block: dict[str, Any], expected: AnswerPart
) -> None:
    assert fold(decode_response(answer(block))).parts == (expected,)
    streamed = [start(), samples.block(0, **block), stop(0), end("end_turn"), MESSAGE_STOP]
    assert fold(decoded(*streamed)).parts == (expected,)


@pytest.mark.parametrize("name", ["text", "thinking"])
@pytest.mark.parametrize("value", [7, ["t"], {"t": 1}])
def test_a_text_of_another_type_makes_an_answer_unreadable(name: str, value: Any) -> None:
    with pytest.raises(UpstreamFailed):
        decode_response(answer({"type": name, name: value}))


def test_a_citation_of_an_unexpected_type_is_left_out() -> None:
    odd: tuple[Any, ...] = (
        {"type": ["char_location"]},
        {"type": {"a": 1}},
        {"type": None},
        {},
        "char_location",
    )
    response = Response(parts=(Text("hi", annotations=(*odd, {"type": "char_location"})),))
    value = json.decode(encode_response(response, reply()))
    assert value["content"] == [{**TEXT, "citations": [{"type": "char_location"}]}]
    assert fold(decoded(encoded(list(unfold(response))))).parts == (
        Text("hi", annotations=({"type": "char_location"},)),
    )


def test_pages_that_another_protocol_cites_are_results_of_a_web_search() -> None:
    """Gemini's grounding, as its decoder reports it; the types are those of Anthropic's SDK."""
    page = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 2}
    response = Response(parts=(Text("It is so.", annotations=(page,)),))
    (block,) = json.decode(encode_response(response, reply()))["content"]
    location = {
        "type": "web_search_result_location",
        "url": "https://a",
        "title": "A",
        "cited_text": "It",
        "encrypted_index": "rcx1.citation",
    }
    assert block == {"type": "text", "text": "It is so.", "citations": [location]}
    assert TextBlock.model_validate(block, strict=True).citations is not None


def test_a_name_that_is_not_utf8_does_not_stop_a_repair() -> None:
    body = b'{"type":"message","\xdcd":1,"content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}'
    served, outcome = relay_response(body, reply())
    assert "\ufffdd" in json.decode(served)
    assert outcome.usage is not None
