from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from routecodex.protocols.grammar import (
    GrammarViolation,
    check_broken,
    check_error,
    check_json,
    check_messages,
    check_stream,
)
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call, Counts
from tests.kit.steps import Json, Sse

ANSWERS: dict[str, Callable[[str, bool], Json | Sse]] = {
    "text": lambda p, s: answers.text(p, "Hello, world: ✓", s),
    "one tool call": lambda p, s: answers.tool_call(p, "look", {"at": "the sky"}, "call_1", s),
    "a call without arguments": lambda p, s: answers.tool_call(p, "look", {}, None, s),
    "two tool calls": lambda p, s: answers.tool_calls(
        p, Call("look", {"at": 1}), Call("look", {"at": 1}), stream=s, text="Let me see."
    ),
    "thinking": lambda p, s: answers.thinking(p, "Hm, well.", "Yes.", s),
    "refusal": lambda p, s: answers.refusal(p, "I will not.", s),
    "length": lambda p, s: answers.length(p, "And so on and", s),
    "cache and reasoning tokens": lambda p, s: answers.counted(p, "Cheap.", s),
    "nothing": lambda p, s: answers.compose(p, stream=s, counts=Counts(output=0)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "chat": {"include_usage": True},
    "messages": {"message_stop_after_calls": True},
}


def frames_of(answer: Json | Sse) -> list[bytes]:
    assert isinstance(answer, Sse)
    return list(answer.frames)


def check(protocol: str, body: bytes) -> None:
    check_stream(protocol, body, **OPTIONS.get(protocol, {}))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ANSWERS)
def test_streams_of_providers_are_well_formed(protocol: str, name: str) -> None:
    check(protocol, ANSWERS[name](protocol, True).data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ANSWERS)
def test_whole_answers_of_providers_are_well_formed(protocol: str, name: str) -> None:
    check_json(protocol, ANSWERS[name](protocol, False).data)


def test_custom_calls_are_well_formed() -> None:
    for protocol in PROTOCOLS:
        call = Call("patch", "*** Begin", "call_1", custom=True)
        check(protocol, answers.tool_calls(protocol, call, stream=True).data)
        check_json(protocol, answers.tool_calls(protocol, call, stream=False).data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_error_envelopes_are_well_formed(protocol: str, status: int) -> None:
    check_error(protocol, status, answers.error(protocol, status, "no").data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_error_envelope_of_another_protocol_is_rejected(protocol: str) -> None:
    other = "gemini" if protocol != "gemini" else "messages"
    with pytest.raises(GrammarViolation):
        check_error(protocol, 400, answers.error(other, 400, "no").data)


def test_usage_is_there_exactly_when_requested() -> None:
    for requested in (True, False):
        body = answers.text("chat", "Hello", True, include_usage=requested).data
        check_stream("chat", body, include_usage=requested)
        with pytest.raises(GrammarViolation, match="usage chunk"):
            check_stream("chat", body, include_usage=not requested)


def test_a_tool_turn_ends_with_or_without_message_stop_as_required() -> None:
    frames = frames_of(answers.tool_call("messages", "look", {}, "c", True))
    whole, without_stop = b"".join(frames), b"".join(frames[:-1])
    check_messages(whole)
    check_messages(without_stop)
    check_messages(whole, message_stop_after_calls=True)
    check_messages(without_stop, message_stop_after_calls=False)
    with pytest.raises(GrammarViolation, match="tool turn"):
        check_messages(whole, message_stop_after_calls=False)
    with pytest.raises(GrammarViolation, match="tool turn"):
        check_messages(without_stop, message_stop_after_calls=True)


def test_other_turns_always_have_a_message_stop() -> None:
    frames = answers.text("messages", "Hello", True).data.split(b"\n\n")
    with pytest.raises(GrammarViolation, match="no message_stop"):
        check_messages(b"\n\n".join(frames[:-2]) + b"\n\n", message_stop_after_calls=False)


BROKEN = {
    "chat": b'data: {"error":{"message":"cut","type":"upstream_error","code":null}}\n\n',
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"cut"}}\n\n',
    "gemini": b'data: {"error":{"code":502,"message":"cut","status":"INTERNAL"}}\n\n',
}


def broken_tail(protocol: str, frames: list[bytes]) -> bytes:
    if protocol != "responses":
        return BROKEN[protocol]
    response = msgspec.json.decode(frames[0].partition(b"data: ")[2])["response"]
    failure = {"status": "failed", "error": {"code": "server_error", "message": "cut"}}
    event = {"type": "response.failed", "sequence_number": len(frames), "response": response | failure}
    return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broken_stream_may_stop_anywhere_but_ends_with_an_error(protocol: str) -> None:
    frames = frames_of(answers.text(protocol, "Hello, hello, hello", True))
    for cut in (1, 2, 3):
        head = b"".join(frames[:cut]) if cut < len(frames) else b""
        if b"finishReason" in head:
            break
        check_broken(protocol, head + broken_tail(protocol, frames[:cut]))
        check_broken(protocol, head, aborted=True)
        with pytest.raises(GrammarViolation):
            check(protocol, head)
        with pytest.raises(GrammarViolation):
            check(protocol, head + broken_tail(protocol, frames[:cut]))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_complete_stream_is_not_broken(protocol: str) -> None:
    frames = frames_of(answers.text(protocol, "Hello", True))
    body = b"".join(frames)
    with pytest.raises(GrammarViolation):
        check_broken(protocol, body)
    with pytest.raises(GrammarViolation):
        check_broken(protocol, body, aborted=True)
    with pytest.raises(GrammarViolation):
        check_broken(protocol, body + broken_tail(protocol, frames))


def test_comments_are_allowed_between_frames_except_on_gemini() -> None:
    for protocol in PROTOCOLS:
        first, *rest = frames_of(answers.text(protocol, "Hello", True))
        body = b": keep-alive\n\n" + first + b": keep-alive\n\n" + b"".join(rest)
        if protocol == "gemini":
            with pytest.raises(GrammarViolation, match="comment"):
                check(protocol, body)
            continue
        check(protocol, body)
        with pytest.raises(GrammarViolation, match="after the last"):
            check(protocol, body + b": keep-alive\n\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["text", "two tool calls", "thinking"])
def test_no_frame_can_be_left_out_or_sent_twice(protocol: str, name: str) -> None:
    frames = frames_of(ANSWERS[name](protocol, True))
    unchecked = UNCHECKED[protocol]
    for number, frame in enumerate(frames):
        if any(mark in frame for mark in unchecked):
            continue
        for body in (frames[:number] + frames[number + 1 :], frames[: number + 1] + frames[number:]):
            with pytest.raises(GrammarViolation):
                check(protocol, b"".join(body))


# Frames whose absence or repetition a grammar cannot detect: text deltas and pings.
UNCHECKED: dict[str, tuple[bytes, ...]] = {
    "chat": (b'"content":"', b'"reasoning_content"', b'"arguments":"'),
    "messages": (b"content_block_delta", b"ping"),
    "responses": (),
    "gemini": (b'"text"', b'"functionCall"'),
}


CHANGES: list[tuple[str, str, str, str]] = [
    ("chat", "text", '"object":"chat.completion.chunk"', '"object":"chunk"'),
    ("chat", "text", '"id":"chatcmpl-', '"id":"other-'),
    ("chat", "text", '"role":"assistant",', ""),
    ("chat", "text", '"finish_reason":"stop"', '"finish_reason":"end"'),
    ("chat", "text", '"finish_reason":"stop"', '"finish_reason":"tool_calls"'),
    ("chat", "one tool call", '"finish_reason":"tool_calls"', '"finish_reason":"stop"'),
    ("chat", "one tool call", '"type":"function",', ""),
    ("chat", "two tool calls", '{"index":1,', "{"),
    ("chat", "two tool calls", '{"index":1,', '{"index":2,'),
    ("chat", "one tool call", '\\"at', "at"),
    ("messages", "text", "event: message_start", "event: start"),
    ("messages", "text", '"text_delta","text"', '"thinking_delta","thinking"'),
    ("messages", "text", '"index":0,"content_block"', '"index":1,"content_block"'),
    ("messages", "text", '"stop_reason":"end_turn"', '"stop_reason":"stop"'),
    ("messages", "one tool call", '"stop_reason":"tool_use"', '"stop_reason":"end_turn"'),
    ("messages", "one tool call", '"input":{}', '"input":{"a":1}'),
    ("messages", "text", '"usage":{"input_tokens":21,"cache_creation_input_tokens":0', '"used":{"a":0'),
    ("responses", "text", '"sequence_number":3', '"sequence_number":4'),
    ("responses", "text", '"delta":"Hello,"', '"delta":"Hullo,"'),
    ("responses", "text", "event: response.completed", "event: response.done"),
    ("responses", "text", '"status":"in_progress"', '"status":"completed"'),
    ("responses", "text", '"usage":{', '"used":{'),
    ("responses", "one tool call", '"arguments":"{\\"at', '"arguments":"{\\"to'),
    ("responses", "thinking", '"summary_index":0', '"summary_index":1'),
    ("gemini", "text", '"role":"model"', '"role":"assistant"'),
    ("gemini", "text", '"finishReason":"STOP"', '"finishReason":"stop"'),
    ("gemini", "text", ',"finishReason":"STOP"', ""),
    ("gemini", "text", "data: ", "event: x\ndata: "),
    ("gemini", "one tool call", '"args":{"at":"the sky"}', '"args":"the sky"'),
]


@pytest.mark.parametrize(("protocol", "name", "old", "new"), CHANGES)
def test_a_small_change_is_rejected(protocol: str, name: str, old: str, new: str) -> None:
    body = ANSWERS[name](protocol, True).data
    assert old.encode() in body, f"{old!r} is not in the stream"
    with pytest.raises(GrammarViolation):
        check(protocol, body.replace(old.encode(), new.encode(), 1))


def test_only_chat_has_a_done_frame() -> None:
    for protocol in ("messages", "responses", "gemini"):
        with pytest.raises(GrammarViolation):
            check(protocol, answers.text(protocol, "Hello", True).data + b"data: [DONE]\n\n")


def half_frames(body: bytes) -> Iterator[bytes]:
    yield body[:-1]
    yield body[:-20]
    yield body.replace(b"data: {", b"data: {{", 1)
    yield body.replace(b"data: {", b"id: 1\ndata: {", 1)
    yield b""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_that_are_not_frames_are_rejected(protocol: str) -> None:
    for body in half_frames(answers.text(protocol, "Hello", True).data):
        with pytest.raises(GrammarViolation):
            check(protocol, body)


WHOLE_CHANGES = [
    ("chat", "text", '"finish_reason":"stop"', '"finish_reason":null'),
    ("chat", "one tool call", '"finish_reason":"tool_calls"', '"finish_reason":"stop"'),
    ("messages", "text", '"stop_reason":"end_turn"', '"stop_reason":null'),
    ("messages", "one tool call", '"input":{', '"input":[],"was":{'),
    ("responses", "text", '"status":"completed"', '"status":"in_progress"'),
    ("responses", "text", '"total_tokens":30', '"total_tokens":31'),
    ("gemini", "text", '"finishReason":"STOP",', ""),
    ("gemini", "text", '"usageMetadata"', '"usage"'),
]


@pytest.mark.parametrize(("protocol", "name", "old", "new"), WHOLE_CHANGES)
def test_a_small_change_of_a_whole_answer_is_noticed(protocol: str, name: str, old: str, new: str) -> None:
    body = ANSWERS[name](protocol, False).data
    assert old.encode() in body, f"{old!r} is not in the answer"
    with pytest.raises(GrammarViolation):
        check_json(protocol, body.replace(old.encode(), new.encode(), 1))


_OTHER_VALUES: tuple[Any, ...] = (None, 7, "x", True, [], [7], {}, {"x": 7}, [[]])


def _replaced(value: Any, random: Random) -> Any:
    """Return the value with one value somewhere in it replaced by one of another type."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(sorted(value))
        return {**value, key: _replaced(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], _replaced(value[at], random), *value[at + 1 :]]
    return random.choice(_OTHER_VALUES)


def _check_raises_nothing_else(check: Callable[[], None]) -> bool:
    """Return whether the check found a violation; any other error fails the test."""
    try:
        check()
    except GrammarViolation:
        return True
    return False


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_a_provider_sends_the_check_raises_nothing_but_a_violation(protocol: str) -> None:
    random = Random(5)  # the same cases in every run
    found = 0
    for make in ANSWERS.values():
        frames = frames_of(make(protocol, True))
        whole = msgspec.json.decode(make(protocol, False).data)
        for _ in range(60):
            body = msgspec.json.encode(_replaced(whole, random))
            found += _check_raises_nothing_else(partial(check_json, protocol, body))
            at = random.randrange(len(frames))
            head, mark, data = frames[at].rpartition(b"data: ")
            if data.startswith(b"{"):
                changed = msgspec.json.encode(_replaced(msgspec.json.decode(data), random))
                stream = b"".join([*frames[:at], head + mark + changed + b"\n\n", *frames[at + 1 :]])
                found += _check_raises_nothing_else(partial(check, protocol, stream))
    assert found > 100


def test_bytes_that_are_not_utf_8_are_a_violation() -> None:
    with pytest.raises(GrammarViolation, match="not UTF-8 at byte 6"):
        check_stream("gemini", b"data: \xff\n\n")
