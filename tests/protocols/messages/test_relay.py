from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamOverloaded, UpstreamTimeout
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.canon.response import fold
from routecodex.protocols.grammar import check_broken_messages, check_messages
from routecodex.protocols.grammar.frames import read
from routecodex.protocols.messages.relay import Relay
from routecodex.protocols.messages.whole import decode_response, relay_response
from routecodex.wire import json
from tests.protocols.messages.samples import (
    MESSAGE_STOP,
    PING,
    STREAMS,
    TEXT_STREAM,
    TOOL_STREAM,
    block,
    decoded,
    delta,
    end,
    frame,
    reply,
    start,
    stop,
    text,
)

CALL = [block(0, type="tool_use", id="a", name="f", input={}), stop(0)]
TEXT = [block(0, type="text", text=""), text(0, "a"), stop(0)]


def relayed(*pieces: bytes, **settings: Any) -> tuple[bytes, Relay]:
    relay = Relay(reply(**settings))
    out = b"".join(map(relay.feed, pieces))
    return out + relay.close(), relay


@pytest.mark.parametrize("name", STREAMS)
def test_a_clean_stream_passes_byte_for_byte(name: str) -> None:
    whole = b"".join(STREAMS[name])
    out, relay = relayed(whole)
    assert out == whole
    assert relay.ended
    assert relayed(*STREAMS[name])[0] == whole
    assert relayed(*(whole[i : i + 1] for i in range(len(whole))))[0] == whole
    for cut in range(0, len(whole), 7):
        assert relayed(whole[:cut], whole[cut:])[0] == whole


def test_the_outcome_describes_the_relayed_answer() -> None:
    outcome = relayed(*TOOL_STREAM)[1].outcome
    assert (outcome.model, outcome.response_id) == ("claude", "msg_1")
    assert outcome.finish == Finish("tool_calls", upstream_reason="tool_use")
    assert outcome.sent_finish == "tool_use"
    assert outcome.usage == Usage(input=10, output=9)
    assert outcome.signatures == ["c2ln", "c2VjcmV0"]
    assert outcome.error is None


AFTER_STOP = [
    text(0, "JUNK"),
    block(0, type="text", text="JUNK") + text(0, "JUNK") + stop(0),
    b"event: content_block_delta\ndata: JUNK\n\n",
    frame(type="error", error={"type": "api_error", "message": "JUNK"}),
    frame(type="ping", JUNK=1),
]


@pytest.mark.parametrize("late", AFTER_STOP, ids=range(len(AFTER_STOP)))
def test_nothing_but_the_end_follows_the_stop_reason(late: bytes) -> None:
    assert relayed(*TEXT_STREAM[:-1], late, MESSAGE_STOP)[0] == b"".join(TEXT_STREAM)
    assert relayed(*TEXT_STREAM[:-1], late)[0] == b"".join(TEXT_STREAM)
    events = decoded(*TEXT_STREAM[:-1], late, MESSAGE_STOP)
    assert fold(events) == fold(decoded(*TEXT_STREAM))


def test_a_break_after_the_stop_reason_leaves_the_answer_complete() -> None:
    relay = Relay(reply())
    out = b"".join(map(relay.feed, TEXT_STREAM[:-1])) + relay.fail(UpstreamTimeout("silence"))
    assert out == b"".join(TEXT_STREAM)
    assert (relay.ended, relay.outcome.error) == (True, None)


def test_nothing_leaves_before_there_is_content() -> None:
    relay = Relay(reply())
    for piece in (TEXT_STREAM[0], PING, TEXT_STREAM[2]):
        assert relay.feed(piece) == b""
        assert not relay.started
    assert relay.feed(TEXT_STREAM[3]) == TEXT_STREAM[0] + PING + TEXT_STREAM[2] + TEXT_STREAM[3]
    assert relay.started


def test_an_error_before_content_is_raised_so_that_another_target_can_answer() -> None:
    relay = Relay(reply(provider="acme"))
    relay.feed(TEXT_STREAM[0])
    with pytest.raises(UpstreamOverloaded):
        relay.feed(frame(type="error", error={"type": "overloaded_error", "message": "busy"}))
    empty = Relay(reply())
    empty.feed(TEXT_STREAM[0] + TEXT_STREAM[2])
    with pytest.raises(UpstreamFailed):
        empty.close()


def test_an_error_after_content_is_an_error_event() -> None:
    busy = frame(type="error", error={"type": "overloaded_error", "message": "busy"})
    out, relay = relayed(*TEXT_STREAM[:5], busy, *TEXT_STREAM[5:])
    check_broken_messages(out)
    assert isinstance(relay.outcome.error, UpstreamOverloaded)


@pytest.mark.parametrize("name", STREAMS)
def test_a_truncated_stream_never_looks_complete(name: str) -> None:
    stream = STREAMS[name]
    for count in range(len(stream) - 2):
        relay = Relay(reply())
        out = b"".join(map(relay.feed, stream[:count]))
        if not relay.started:
            with pytest.raises(UpstreamFailed):
                relay.close()
            continue
        out += relay.close()
        check_broken_messages(out)
        assert relay.ended
        assert relay.outcome.error is not None


def test_a_stream_cut_inside_a_frame_is_truncated() -> None:
    whole = b"".join(TEXT_STREAM)
    out, relay = relayed(whole[: whole.index(b", w") + 2])
    check_broken_messages(out)
    assert relay.outcome.error is not None


def test_a_tool_turn_ends_as_its_client_needs_it() -> None:
    lawful, relay = relayed(b"".join(TOOL_STREAM), message_stop_after_calls=False)
    assert lawful == b"".join(TOOL_STREAM[:-1])
    assert relay.ended
    check_messages(lawful, message_stop_after_calls=False)
    without = b"".join(TOOL_STREAM[:-1])
    assert relayed(without, message_stop_after_calls=False)[0] == without
    assert relayed(without, message_stop_after_calls=True)[0] == b"".join(TOOL_STREAM)
    stream = b"".join(TEXT_STREAM)
    assert relayed(stream, message_stop_after_calls=False)[0] == stream


REPAIRED: list[tuple[list[bytes], str, str | None]] = [
    ([*CALL, end("end_turn"), MESSAGE_STOP], "tool_use", None),
    ([*CALL, end("stop_sequence", "END"), MESSAGE_STOP], "tool_use", None),
    ([*TEXT, end("tool_use"), MESSAGE_STOP], "end_turn", None),
    ([*TEXT, MESSAGE_STOP], "end_turn", None),
    ([*CALL, MESSAGE_STOP], "tool_use", None),
    ([*TEXT, end("stop_sequence", "END"), MESSAGE_STOP], "stop_sequence", "END"),
    ([*TEXT, end("refusal"), MESSAGE_STOP], "refusal", None),
    ([*TEXT, end("model_context_window_exceeded"), MESSAGE_STOP], "model_context_window_exceeded", None),
    ([*TEXT, end(None), end("end_turn"), end("end_turn"), MESSAGE_STOP, MESSAGE_STOP], "end_turn", None),
    ([*TEXT, end("end_turn"), PING], "end_turn", None),
    ([*TEXT[:2], end("max_tokens")], "max_tokens", None),
    ([*TEXT, end("end_turn"), frame(type="error", error={"type": "api_error"})], "end_turn", None),
    ([text(0, "unannounced"), end("end_turn")], "end_turn", None),
    (
        [*TEXT[:2], block(1, type="text", text=""), text(1, "b"), stop(0), stop(1), end("end_turn")],
        "end_turn",
        None,
    ),
    (
        [
            CALL[0],
            delta(0, type="input_json_delta", partial_json='{"x":'),
            stop(0),
            end("max_tokens"),
            MESSAGE_STOP,
        ],
        "max_tokens",
        None,
    ),
    (
        [CALL[0], delta(0, type="input_json_delta", partial_json="{}"), stop(0), end("max_tokens")],
        "tool_use",
        None,
    ),
]


@pytest.mark.parametrize(("frames", "reason", "sequence"), REPAIRED)
@pytest.mark.parametrize("together", [True, False])
def test_protocol_errors_of_the_upstream_are_repaired(
    frames: list[bytes], reason: str, sequence: str | None, together: bool
) -> None:
    pieces = [start(), *frames]
    out, relay = relayed(*([b"".join(pieces)] if together else pieces))
    if reason != "model_context_window_exceeded":
        check_messages(out, message_stop_after_calls=True)
    assert relay.outcome.sent_finish == reason
    finish = fold(decoded(out)).finish
    assert (finish.upstream_reason, finish.sequence if reason == "stop_sequence" else None) == (
        reason,
        sequence,
    )


def test_an_old_client_does_not_see_refusal() -> None:
    out, relay = relayed(start(), *TEXT, end("refusal"), MESSAGE_STOP, knows_refusal=False)
    assert relay.outcome.sent_finish == "stop_sequence"
    assert fold(decoded(out)).finish.upstream_reason == "stop_sequence"


def test_missing_usage_is_estimated() -> None:
    head = b'event: message_start\ndata: {"type":"message_start","message":' + (
        b'{"id":"m","type":"message","role":"assistant","model":"x","content":[],'
        b'"stop_reason":null,"stop_sequence":null}}\n\n'
    )
    bare = frame(type="message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None})
    out, relay = relayed(head, *TEXT, bare, MESSAGE_STOP)
    check_messages(out)
    assert relay.outcome.usage is not None
    assert relay.outcome.usage.estimated
    assert relay.outcome.usage.input == 7


@pytest.mark.parametrize("name", STREAMS)
def test_sloppy_framing_is_repaired(name: str) -> None:
    whole = b"".join(STREAMS[name])
    nameless = b"".join(part.partition(b"\n")[2] for part in STREAMS[name])
    assert relayed(nameless)[0] == whole
    assert relayed(whole.replace(b"\n", b"\r\n"))[0] == whole
    assert relayed(whole.replace(b"\n\n", b"\n\n: comment\n\n"))[0] == whole
    mixed = [part.partition(b"\n")[2] if number % 2 else part for number, part in enumerate(STREAMS[name])]
    assert relayed(b"".join(mixed))[0] == whole
    assert relayed(*mixed)[0] == whole


def test_nothing_follows_the_end() -> None:
    relay = Relay(reply())
    relay.feed(b"".join(TEXT_STREAM))
    assert relay.feed(b"".join(TEXT_STREAM)) == b""
    assert relay.fail(UpstreamFailed("late")) == b""
    assert relay.close() == b""
    assert relay.outcome.error is None


def test_a_stream_can_be_failed_from_outside() -> None:
    relay = Relay(reply())
    out = relay.feed(b"".join(TEXT_STREAM[:4])) + relay.fail(UpstreamTimeout("silent"))
    check_broken_messages(out)
    assert relay.ended
    assert isinstance(relay.outcome.error, UpstreamTimeout)
    assert relay.close() == b""


def test_unknown_events_are_relayed() -> None:
    new = frame(type="content_block_hint", index=0)
    stream = [*TEXT_STREAM[:4], new, *TEXT_STREAM[4:]]
    assert relayed(*stream)[0] == b"".join(stream)


LATE = frame(type="message_delta", delta={}, usage={"output_tokens": 40, "server_tool_use": {"n": 1}})
UNCOUNTED = frame(type="message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None})


@pytest.mark.parametrize(
    ("ending", "sequence"),
    [(end("end_turn"), None), (end("stop_sequence", "END"), "END"), (UNCOUNTED, None)],
)
def test_usage_after_the_stop_reason_is_sent(ending: bytes, sequence: str | None) -> None:
    out, relay = relayed(start(), *TEXT, ending, LATE, MESSAGE_STOP)
    check_messages(out)
    assert relay.outcome.usage == Usage(input=10, output=40)
    deltas = [sent.json for sent in read(out) if sent.event == "message_delta"]
    reason = "stop_sequence" if sequence else "end_turn"
    assert deltas[1]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert deltas[1]["usage"] == {
        "output_tokens": 40,
        "server_tool_use": {"n": 1},
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def test_a_second_end_without_new_usage_is_dropped() -> None:
    stream = [start(), *TEXT, end("end_turn"), MESSAGE_STOP]
    for again in (end("end_turn"), end("max_tokens"), UNCOUNTED, frame(type="message_delta", delta={})):
        out, relay = relayed(*stream[:-1], again, MESSAGE_STOP)
        assert out == b"".join(stream)
        assert relay.outcome.usage == Usage(input=10, output=9)


def programmatic_calls(*last: dict[str, Any]) -> list[dict[str, Any]]:
    """Return blocks in which code calls a tool of the client (Anthropic, code_execution_20250825)."""
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    return [
        {"type": "server_tool_use", "id": "srv_1", "name": "code_execution", "input": {"code": "roll()"}},
        {"type": "tool_use", "id": "a", "name": "roll", "input": {}, "caller": caller},
        *last,
    ]


ANSWERED = programmatic_calls(
    {"type": "code_execution_tool_result", "tool_use_id": "srv_1", "content": {"stdout": "6"}},
    {"type": "text", "text": "A six."},
)


@pytest.mark.parametrize(
    ("blocks", "said", "sent"),
    [
        (ANSWERED, "end_turn", "end_turn"),
        (programmatic_calls(), "tool_use", "tool_use"),
        (programmatic_calls(), "end_turn", "tool_use"),
        ([*ANSWERED, {"type": "tool_use", "id": "b", "name": "f", "input": {}}], "end_turn", "tool_use"),
    ],
)
def test_calls_that_code_of_the_provider_made_are_open_until_its_result(
    blocks: list[dict[str, Any]], said: str, sent: str
) -> None:
    frames = [frame for at, fields in enumerate(blocks) for frame in (block(at, **fields), stop(at))]
    stream = [start(), *frames, end(said), MESSAGE_STOP]
    assert relayed(*stream)[1].outcome.sent_finish == sent
    assert (fold(decoded(*stream)).finish.reason == "tool_calls") is (sent == "tool_use")
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": blocks}
    usage = {"input_tokens": 1, "output_tokens": 1}
    answer = json.encode({**body, "stop_reason": said, "stop_sequence": None, "usage": usage})
    assert json.decode(relay_response(answer, reply())[0])["stop_reason"] == sent
    assert (fold(decode_response(answer)).finish.reason == "tool_calls") is (sent == "tool_use")


def test_bytes_that_are_not_utf8_in_a_frame_to_repair_are_replaced() -> None:
    begun = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","x":"\xc2"}}\n\n'
    served, relay = relayed(begun, *TEXT, UNCOUNTED, frame(type="message_stop"))
    assert "\ufffd".encode() in served
    assert relay.outcome.finish is not None


def test_an_index_that_is_a_bool_is_not_one() -> None:
    odd = text(0, "b").replace(b'"index":0', b'"index":true')
    served, _ = relayed(start(), TEXT[0], odd, TEXT[1], TEXT[2], end("end_turn"), MESSAGE_STOP)
    assert served.count(b"content_block_start\n") == 1
