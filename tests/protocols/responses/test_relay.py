from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited, UpstreamTimeout
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.relay import Relay
from routecodex.protocols.responses.validate import validate
from routecodex.protocols.responses.whole import relay_response
from tests.protocols.responses.grammar import events_of
from tests.protocols.responses.streams import (
    CALL_FRAMES,
    COMPLETED,
    CREATED,
    FULL,
    OUTPUT,
    REQUEST_FIELDS,
    TEXT_FRAMES,
    USAGE,
    frame,
    response,
)

STREAM = b"".join(FULL)


def relay() -> Relay:
    return Relay(ReplyContext(id="abc", created=7, model="m"))


def relayed(*pieces: bytes) -> tuple[bytes, Relay]:
    pipe = relay()
    return b"".join(map(pipe.feed, pieces)) + pipe.close(), pipe


def test_clean_stream_passes_byte_for_byte_however_it_is_cut() -> None:
    assert relayed(*FULL)[0] == STREAM
    assert relayed(*(STREAM[i : i + 1] for i in range(len(STREAM))))[0] == STREAM
    for cut in range(0, len(STREAM), 7):
        assert relayed(STREAM[:cut], STREAM[cut:])[0] == STREAM


@pytest.mark.parametrize("nothing", [b"data:\n\n", b"data: \n\n", b"event: ping\ndata:\n\n"])
def test_a_frame_without_data_is_left_out_however_the_bytes_are_cut(nothing: bytes) -> None:
    stream = nothing.join(FULL)
    for step in (1, 7, len(FULL[0]), len(stream)):
        assert relayed(*(stream[at : at + step] for at in range(0, len(stream), step)))[0] == STREAM


def test_outcome_is_filled() -> None:
    outcome = relayed(STREAM)[1].outcome
    assert (outcome.response_id, outcome.model, outcome.sent_finish) == ("resp_1", "gpt", "completed")
    assert outcome.finish == Finish("tool_calls", upstream_reason="completed")
    assert outcome.usage == Usage(input=10, output=5, cache_read=4, reasoning=2)
    assert outcome.signatures == ["gAAA"]
    assert outcome.body is not None
    assert json.loads(outcome.body) == response(output=OUTPUT, usage=USAGE)


def test_client_and_history_get_all_items_where_the_final_output_is_empty() -> None:
    end = frame("response.completed", sequence_number=20, response=response(usage=USAGE))
    passed, pipe = relayed(*FULL[:-1], end)
    assert events_of(passed)[-1] == events_of(COMPLETED[0])[0]
    assert pipe.outcome.body is not None
    assert json.loads(pipe.outcome.body)["output"] == OUTPUT
    assert pipe.outcome.finish == Finish("tool_calls", upstream_reason="completed")


def test_lifecycle_frames_are_held_until_there_is_content() -> None:
    pipe = relay()
    held = [*CREATED, *TEXT_FRAMES[:2]]
    assert b"".join(map(pipe.feed, held)) == b""
    assert not pipe.started
    assert pipe.feed(TEXT_FRAMES[2]) == b"".join([*held, TEXT_FRAMES[2]])
    assert pipe.started


def test_a_frame_that_is_too_large_fails_the_answer() -> None:
    long = b"data: " + b"x" * (33 << 20)
    with pytest.raises(UpstreamFailed) as caught:
        relay().feed(long)
    assert caught.value.code == "upstream_unparsable"
    pipe = relay()
    pipe.feed(b"".join([*CREATED, *TEXT_FRAMES[:3]]))
    assert events_of(pipe.feed(long))[-1]["type"] == "response.failed"
    assert pipe.ended


def test_invalid_utf_8_of_the_upstream_is_relayed_or_replaced() -> None:
    broken = b'data: {"type":"response.failed","response":{"error":{"message":"no \xff","code":"x"}}}\n\n'
    with pytest.raises(UpstreamFailed, match="no \ufffd"):
        relay().feed(broken)
    item = frame("response.output_item.done", sequence_number=2, item={"type": "message", "x": "?"})
    item = item.replace(b"?", b"\xff")
    end = frame("response.completed", sequence_number=3, response=response(output=OUTPUT, usage=USAGE))
    assert relayed(*CREATED, item, end)[0] == b"".join([*CREATED, item, end])


def test_a_call_is_content() -> None:
    pipe = relay()
    pipe.feed(CALL_FRAMES[0])
    assert pipe.started


def test_failure_before_content_is_raised() -> None:
    failed = response("failed", error={"code": "rate_limit_exceeded", "message": "slow"})
    for last in (
        frame("response.failed", response=failed),
        frame("error", code="rate_limit_exceeded", message="s"),
    ):
        pipe = relay()
        pipe.feed(CREATED[0])
        with pytest.raises(UpstreamLimited):
            pipe.feed(last)


def test_truncation_before_content_is_raised() -> None:
    pipe = relay()
    pipe.feed(CREATED[0])
    with pytest.raises(UpstreamFailed):
        pipe.close()


@pytest.mark.parametrize("count", range(5, len(FULL)))
def test_truncation_after_content_ends_as_failed(count: int) -> None:
    passed, pipe = relayed(*FULL[:count])
    assert passed.startswith(b"".join(FULL[:count]))
    (event,) = events_of(passed[len(b"".join(FULL[:count])) :])
    assert event["type"] == "response.failed"
    assert event["response"]["id"] == "resp_1"
    assert event["response"]["status"] == "failed"
    assert isinstance(pipe.outcome.error, UpstreamFailed)
    assert b"response.completed" not in passed


def test_failure_has_the_next_sequence_number() -> None:
    pipe = relay()
    pipe.feed(b"".join([*CREATED, frame("response.output_text.delta", sequence_number=41, delta="x")]))
    (event,) = events_of(pipe.fail(UpstreamTimeout("silent")))
    assert event["sequence_number"] == 42
    assert pipe.ended
    assert pipe.fail(UpstreamTimeout("silent")) == b""


@pytest.mark.parametrize("run", [0, 1])
def test_comments_do_not_hide_the_sequence_number_of_the_last_frame(run: int) -> None:
    delta = frame("response.output_text.delta", sequence_number=41, delta="x")
    pipe = relay()
    pipe.feed(b"".join([*CREATED, delta, b": OPENROUTER PROCESSING\n\n" * run]))
    pipe.feed(b": OPENROUTER PROCESSING\n\n")
    (event,) = events_of(pipe.fail(UpstreamTimeout("silent")))
    assert event["sequence_number"] == 42


def test_text_about_errors_passes_as_it_came_and_failures_in_the_same_run_are_found() -> None:
    text = frame(
        "response.output_text.delta", sequence_number=5, delta='event: error failed "complete" [DONE]'
    )
    failed = frame("response.failed", sequence_number=6, response=response("failed", error={"message": "m"}))
    passed, pipe = relayed(*FULL[:5], text + text + failed + text)
    assert passed.startswith(b"".join([*FULL[:5], text, text]))
    assert [event["type"] for event in events_of(passed)][-2:] == [
        "response.output_text.delta",
        "response.failed",
    ]
    assert isinstance(pipe.outcome.error, UpstreamFailed)


def test_failed_response_after_content_passes_and_is_noted() -> None:
    error = {"code": "server_error", "message": "x"}
    failed = frame("response.failed", sequence_number=15, response=response("failed", error=error))
    passed, pipe = relayed(*CREATED, *TEXT_FRAMES, failed)
    assert passed.endswith(failed)
    assert isinstance(pipe.outcome.error, UpstreamFailed)


def test_error_event_after_content_becomes_a_failed_response() -> None:
    passed, _ = relayed(*CREATED, *TEXT_FRAMES, frame("error", code="server_error", message="x"))
    assert passed.count(b"event: response.failed") == 1
    assert b"event: error" not in passed


def test_no_frame_follows_the_end() -> None:
    passed, pipe = relayed(STREAM + b"data: [DONE]\n\n", STREAM)
    assert passed == STREAM
    assert pipe.ended


def test_failure_without_a_created_frame_has_a_whole_object() -> None:
    pipe = relay()
    pipe.feed(TEXT_FRAMES[2])
    (event,) = events_of(pipe.close())
    assert event["response"]["id"] == "resp_abc"
    assert event["response"]["error"]["code"] == "server_error"


def test_bare_completed_is_an_answer() -> None:
    assert relayed(*COMPLETED)[0] == COMPLETED[0]


def without(stream: bytes, *, names: bool = False, numbers: bool = False, usage: bool = False) -> bytes:
    """Return the stream with gaps that compatible servers leave."""
    frames = []
    for event in events_of(stream):
        if numbers:
            event.pop("sequence_number")
        if usage and event["type"] == "response.completed":
            event["response"].pop("usage")
        name = b"" if names else f"event: {event['type']}\n".encode()
        frames.append(name + b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
    return b"".join(frames)


@pytest.mark.parametrize("step", [1, 50, 10**6])
@pytest.mark.parametrize(
    ("names", "numbers"),
    [(True, False), (False, True), (True, True)],
    ids=["Bedrock Mantle", "no numbers", "neither"],
)
def test_missing_event_lines_and_sequence_numbers_are_added(names: bool, numbers: bool, step: int) -> None:
    stream = without(STREAM, names=names, numbers=numbers)
    passed, pipe = relayed(*(stream[at : at + step] for at in range(0, len(stream), step)))
    assert events_of(passed) == events_of(STREAM)
    assert pipe.outcome.usage == Usage(input=10, output=5, cache_read=4, reasoning=2)


def test_missing_usage_is_estimated_and_nothing_else_changes() -> None:
    passed, pipe = relayed(without(STREAM, usage=True))
    *before, end = events_of(passed)
    *same, clean = events_of(STREAM)
    assert before == same
    # Reasoning, text and arguments have 6 + 5 + 7 characters.
    assert pipe.outcome.usage == Usage(output=7, estimated=True)
    usage = end["response"].pop("usage")
    assert (usage["output_tokens"], usage["total_tokens"]) == (7, 7)
    assert end["response"] == {name: value for name, value in clean["response"].items() if name != "usage"}
    assert json.loads(pipe.outcome.body or b"")["usage"] == usage


def test_failure_of_a_mended_stream_has_the_next_sequence_number() -> None:
    passed, _ = relayed(without(b"".join(FULL[:12]), names=True, numbers=True))
    events = events_of(passed)
    assert [event["sequence_number"] for event in events] == list(range(13))
    assert events[-1]["type"] == "response.failed"


def test_missing_usage_of_a_whole_answer_is_estimated() -> None:
    body = json.dumps(response(output=OUTPUT)).encode()
    sent, outcome = relay_response(body, ReplyContext(id="abc", created=7, model="m", input_tokens=9))
    assert outcome.usage == Usage(input=9, output=7, estimated=True)
    assert json.loads(sent)["usage"]["total_tokens"] == 16
    assert outcome.body == sent


REQUEST = validate(
    b'{"model":"m","input":"hi","top_p":0.5,"store":false,"tools":[{"type":"function","name":"f"}]}'
)
FUNCTION = {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False}
ECHOED = {**REQUEST_FIELDS, "top_p": 0.5, "store": False, "tools": [FUNCTION]}


def reply_to_request() -> ReplyContext:
    return ReplyContext(id="abc", created=7, model="m", view=REQUEST.view, clock=lambda: 9.5)


def sparse(status: str, **fields: Any) -> dict[str, Any]:
    """Return the response object of a compatible server, without most fields."""
    return {"id": "resp_1", "object": "response", "created_at": 7, "model": "gpt", "status": status, **fields}


def test_fields_that_the_response_object_lacks_are_added() -> None:
    body = json.dumps(sparse("completed", output=OUTPUT, usage=USAGE, temperature=None)).encode()
    sent, outcome = relay_response(body, reply_to_request())
    whole = response(output=OUTPUT, usage=USAGE, **ECHOED)
    assert json.loads(sent) == whole
    assert outcome.body == sent


HEADERS = {"OpenAI-Model": "gpt-mini", "x-codex-turn-state": "s", "x-models-etag": "e"}


def test_headers_of_the_upstream_in_events_are_not_passed_on() -> None:
    def told(kind: str, number: int, **fields: Any) -> bytes:
        return frame(kind, sequence_number=number, headers=HEADERS, **fields)

    end = response(output=OUTPUT, usage=USAGE)
    stream = [
        told("response.created", 0, response={**response(output=[]), "headers": HEADERS}),
        told("response.metadata", 1, metadata={"a": "b"}),
        *FULL[2:-1],
        told("response.completed", 20, response={**end, "headers": HEADERS}),
    ]
    passed, pipe = relayed(*stream)
    events = events_of(passed)
    assert b"headers" not in passed
    assert events[0] == {"type": "response.created", "sequence_number": 0, "response": response(output=[])}
    assert events[1] == {"type": "response.metadata", "sequence_number": 1, "metadata": {"a": "b"}}
    assert events[2:-1] == events_of(b"".join(FULL[2:-1]))
    assert events[-1] == {"type": "response.completed", "sequence_number": 20, "response": end}
    assert pipe.outcome.body is not None
    assert json.loads(pipe.outcome.body) == end


def test_headers_of_the_upstream_in_a_whole_answer_are_not_passed_on() -> None:
    whole = response(output=OUTPUT, usage=USAGE)
    sent, outcome = relay_response(json.dumps({**whole, "headers": HEADERS}).encode(), reply_to_request())
    assert "headers" not in json.loads(sent)
    assert outcome.body == sent


def test_fields_that_the_response_object_has_stay() -> None:
    has = {"store": True, "service_tier": "flex", "completed_at": 8, "metadata": None, "reasoning": None}
    body = json.dumps(sparse("completed", output=OUTPUT, usage=USAGE, **has)).encode()
    sent = json.loads(relay_response(body, reply_to_request())[0])
    assert {name: sent[name] for name in has} == has


def test_functions_of_the_response_object_have_every_field() -> None:
    tools = [{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}]
    body = json.dumps(response(output=OUTPUT, usage=USAGE, tools=tools)).encode()
    sent = json.loads(relay_response(body, reply_to_request())[0])
    assert sent["tools"] == [{**FUNCTION, "strict": True}, {"type": "web_search"}]


def test_usage_has_its_details() -> None:
    body = json.dumps(response(output=OUTPUT, usage={"input_tokens": 3, "output_tokens": 2, "x": 1})).encode()
    usage = json.loads(relay_response(body, reply_to_request())[0])["usage"]
    assert (usage["input_tokens_details"]["cached_tokens"], usage["total_tokens"], usage["x"]) == (0, 5, 1)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
def test_fields_that_the_response_objects_of_a_stream_lack_are_added(end: str) -> None:
    error = {"code": "server_error", "message": "x"} if end == "failed" else None
    details = {"reason": "max_output_tokens"} if end == "incomplete" else None
    stream = [
        frame("response.created", sequence_number=0, response=sparse("in_progress", output=[])),
        frame("response.in_progress", sequence_number=1, response=sparse("in_progress", output=[])),
        *FULL[2:-1],
        frame(
            f"response.{end}",
            sequence_number=20,
            response=sparse(end, output=OUTPUT, usage=USAGE, error=error, incomplete_details=details),
        ),
    ]
    pipe = Relay(reply_to_request())
    events = events_of(b"".join(map(pipe.feed, stream)) + pipe.close())
    assert events[2:-1] == events_of(b"".join(FULL[2:-1]))
    begun = response("in_progress", **{**ECHOED, "service_tier": "auto"})
    assert [event["response"] for event in events[:2]] == [begun, begun]
    final = {"output": OUTPUT, "usage": USAGE, "error": error, "incomplete_details": details}
    assert events[-1]["response"] == response(end, **final, **ECHOED)
    assert [event["sequence_number"] for event in events] == [*range(len(events) - 1), 20]


def test_a_stream_with_sparse_objects_that_is_cut_off_fails_with_a_whole_object() -> None:
    pipe = Relay(reply_to_request())
    created = frame("response.created", sequence_number=0, response=sparse("in_progress", output=[]))
    passed = b"".join(map(pipe.feed, [created, *FULL[2:12]])) + pipe.close()
    assert events_of(passed)[-1]["response"].keys() == response().keys()


def test_the_answer_names_the_response_that_the_gateway_continued() -> None:
    request = validate(b'{"model":"m","input":"hi","previous_response_id":"resp_0"}')
    reply = ReplyContext(id="abc", created=7, model="m", view=request.view)
    body = json.dumps(response(output=OUTPUT, usage=USAGE)).encode()
    assert json.loads(relay_response(body, reply)[0])["previous_response_id"] == "resp_0"
    body = json.dumps(response(output=OUTPUT, usage=USAGE, previous_response_id="resp_up")).encode()
    assert relay_response(body, reply)[0] == body
