from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamError, UpstreamFailed, UpstreamLimited
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.grammar import check_broken_chat, check_chat
from routecodex.wire import json, sse
from tests.kit import answers
from tests.protocols.chat.samples import COUNTS, DONE, body, call, choice, chunks, frame, reply, role, usage
from tests.protocols.test_grammar import ANSWERS, frames_of


def passed(stream: bytes, to: ReplyContext | None = None, step: int = 1 << 30) -> bytes:
    """Relay the whole stream, fed in steps."""
    relay = Relay(to or reply())
    out = b"".join(relay.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    return out + relay.close()


def relayed(stream: bytes, **settings: Any) -> Relay:
    relay = Relay(reply(**settings))
    relay.feed(stream)
    relay.close()
    return relay


CLEAN = role() + choice(content="Hel") + choice(content="lo") + choice("stop")


@pytest.mark.parametrize("scene", ANSWERS)
@pytest.mark.parametrize("step", [1, 7, 1 << 30])
def test_a_clean_stream_passes_byte_for_byte(scene: str, step: int) -> None:
    stream = ANSWERS[scene]("chat", True).data
    assert passed(stream, step=step) == stream


def test_a_clean_stream_that_comes_at_once_is_not_even_copied() -> None:
    stream = CLEAN + DONE
    assert Relay(reply(include_usage=False)).feed(stream) is stream


def test_a_repair_leaves_the_frames_around_it_unchanged() -> None:
    wrong = frame(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": "eos"}])
    right = frame(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop"}])
    stream = role() + choice(content="Hel") + choice(content="lo")
    assert passed(stream + wrong + DONE, reply(include_usage=False)) == stream + right + DONE


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("together", [True, False])
def test_a_blank_line_too_many_is_passed_over(at: int, together: bool) -> None:
    parts = [role(), choice(content="Hel"), choice(content="lo"), choice("stop"), DONE]
    parts[at] += b"\n"
    relay = Relay(reply(include_usage=False))
    out = b"".join(map(relay.feed, [b"".join(parts)] if together else parts)) + relay.close()
    assert out.replace(b"\n\n\n", b"\n\n") == CLEAN + DONE


def test_a_clean_stream_passes_at_every_split() -> None:
    stream = ANSWERS["two tool calls"]("chat", True).data
    for cut in range(len(stream) + 1):
        relay = Relay(reply())
        assert relay.feed(stream[:cut]) + relay.feed(stream[cut:]) + relay.close() == stream, cut


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_other_line_ends_become_lf(ending: bytes) -> None:
    stream = CLEAN + usage() + DONE
    for step in (1, 5, 1 << 30):
        assert passed(stream.replace(b"\n", ending), step=step) == stream


def test_the_outcome_describes_the_relayed_stream() -> None:
    outcome = relayed(CLEAN + usage() + DONE).outcome
    assert (outcome.model, outcome.response_id) == ("gpt", "chatcmpl-1")
    assert (outcome.finish, outcome.sent_finish) == (Finish("stop", upstream_reason="stop"), "stop")
    assert outcome.usage == Usage(3, 2)
    assert outcome.error is None


def test_lifecycle_frames_are_held_until_there_is_content() -> None:
    relay = Relay(reply())
    assert relay.feed(b": processing\n\n" + role()) == b""
    assert not relay.started
    assert relay.feed(choice(content="Hi")) == role() + choice(content="Hi")
    assert relay.started
    assert relay.feed(choice(content="you")) == choice(content="you")


CONTENT = [
    choice(content="Hi"),
    choice(reasoning_content="Hm"),
    choice(reasoning="Hm"),
    choice(refusal="No"),
    call(0, "a", "f", ""),
    choice(function_call={"name": "f", "arguments": ""}),
    choice(audio={"id": "a", "data": "QUFB"}),
    choice(content="", images=[{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]),
    choice(reasoning_details=[{"type": "reasoning.text", "text": "Hm"}]),
    choice(annotations=[{"type": "url_citation"}]),
    choice("stop"),
]


@pytest.mark.parametrize("content", CONTENT, ids=range(len(CONTENT)))
def test_any_content_begins_the_answer(content: bytes) -> None:
    relay = Relay(reply())
    assert relay.feed(role() + content) == role() + content
    assert relay.started


NOTHING: list[Any] = [None, [], {}, ""]


@pytest.mark.parametrize("field", ["audio", "images", "reasoning_details"])
@pytest.mark.parametrize("value", NOTHING, ids=map(str, NOTHING))
def test_an_empty_field_does_not_begin_the_answer(field: str, value: Any) -> None:
    relay = Relay(reply())
    assert relay.feed(role() + choice(**{field: value})) == b""
    assert not relay.started


@pytest.mark.parametrize("content", CONTENT[:-1], ids=range(len(CONTENT) - 1))
def test_an_answer_with_other_content_than_text_is_not_empty(content: bytes) -> None:
    assert not relayed(role() + content + choice("stop") + DONE).outcome.empty


LATER = [
    choice(content="", annotations=[{"type": "url_citation"}]),
    choice(images=[{"type": "image_url", "image_url": {"url": "https://x"}}]),
    choice(reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}]),
]


@pytest.mark.parametrize("late", LATER, ids=range(len(LATER)))
def test_content_after_the_finish_is_relayed(late: bytes) -> None:
    stream = CLEAN + late + usage() + DONE
    for step in (1, 1 << 30):
        assert passed(stream, step=step) == stream


def test_comments_pass_once_the_answer_has_begun() -> None:
    stream = role() + choice(content="Hi") + b": still here\n\n" + choice(content="!")
    assert passed(stream + choice("stop") + usage() + DONE).count(b": still here\n\n") == 1


GLUED = frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=COUNTS)
LOOSE = frame(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": None}], usage=COUNTS)
LATE = frame(choices=[{"index": 0, "delta": {}, "finish_reason": None}], usage=COUNTS)
ENDS: list[tuple[str, bytes]] = [
    ("a clean end", choice("stop") + usage() + DONE),
    ("no [DONE]", choice("stop") + usage()),
    ("no blank line after [DONE]", choice("stop") + usage() + DONE[:-2]),
    ("no blank line after the usage", choice("stop") + usage()[:-2]),
    ("a space after [DONE]", choice("stop") + usage() + b"data: [DONE] \n\n"),
    ("usage glued to the finish", GLUED + DONE),
    ("usage glued to the finish, no [DONE]", GLUED),
    ("usage in every chunk", LOOSE + GLUED + usage() + DONE),
    ("usage before the finish", usage() + choice("stop") + DONE),
    ("usage twice", choice("stop") + usage() + usage() + DONE),
    ("no usage", choice("stop") + DONE),
    ("no usage and no [DONE]", choice("stop")),
    ("no finish", usage() + DONE),
    ("no finish and no usage", DONE),
    ("an empty finish", choice("") + choice("stop") + DONE),
    ("the finish with the last text", choice("stop", content="!") + usage() + DONE),
    ("the finish twice", choice("stop") + choice("stop") + usage() + DONE),
    ("the finish again with the usage", choice("stop") + GLUED + DONE),
    ("usage in an empty chunk after the finish", choice("stop") + LATE + DONE),
    ("an empty chunk after the finish", choice("stop") + choice() + usage() + DONE),
    ("an empty finish after the finish", choice("stop") + choice("") + usage() + DONE),
    ("[DONE] twice", choice("stop") + usage() + DONE + DONE),
    ("bytes after [DONE]", choice("stop") + usage() + DONE + choice(content="x") + b"data: {"),
    ("an empty frame", b"data: \n\n" + choice("stop") + b"data:\n\n" + DONE),
]


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("end", [row[1] for row in ENDS], ids=[row[0] for row in ENDS])
def test_every_end_becomes_a_proper_one(end: bytes, include_usage: bool) -> None:
    for step in (1, 1 << 30):
        out = passed(role() + choice(content="Hi") + end, reply(include_usage=include_usage), step)
        check_chat(out, include_usage=include_usage)
        ends = [chunk["choices"][0].get("finish_reason") for chunk in chunks(out) if chunk["choices"]]
        assert [end for end in ends if end] == ["stop"]


@pytest.mark.parametrize("empty_frame", [b"data:\n\n", b"data: \n\n", b"data:\r\n\r\n"])
@pytest.mark.parametrize("at", range(5))
def test_a_frame_without_data_is_left_out_however_the_bytes_are_cut(empty_frame: bytes, at: int) -> None:
    parts = [role(), choice(content="Hel"), choice(content="lo"), choice("stop"), usage()]
    stream = b"".join([*parts[:at], empty_frame, *parts[at:], DONE])
    for step in (1, 7, len(parts[0]), 1 << 30):
        assert passed(stream, step=step) == b"".join(parts) + DONE


@pytest.mark.parametrize("colon", [":", ": ", " :", " : "])
def test_finish_and_usage_are_found_with_any_spacing(colon: str) -> None:
    spaced = choice("length").replace(b'"finish_reason":', f'"finish_reason"{colon}'.encode())
    counted = usage(prompt_tokens=4).replace(b'"usage":', f'"usage"{colon}'.encode())
    for end in (spaced + counted, spaced + counted + DONE):
        relay = Relay(reply())
        out = relay.feed(role() + choice(content="Hi") + end) + relay.close()
        assert out == role() + choice(content="Hi") + spaced + counted + DONE
        assert relay.outcome.sent_finish == "length"
        assert relay.outcome.usage == Usage(4, 2)


@pytest.mark.parametrize("end", [row[1] for row in ENDS if b"prompt_tokens" in row[1]])
def test_the_upstreams_own_counts_are_sent(end: bytes) -> None:
    out = passed(role() + choice(content="Hi") + end)
    counts = chunks(out)[-1]["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (3, 2)


OWN = {
    **COUNTS,
    "cost": 0.010,
    "prompt_cache_miss_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
}
WITH_OWN = [
    frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=OWN),
    choice("stop") + frame(choices=[{"index": 0, "delta": {}, "finish_reason": None}], usage=OWN),
    frame(choices=[], usage=OWN) + choice("stop"),
]


@pytest.mark.parametrize("end", WITH_OWN, ids=["with the finish", "after the finish", "before the finish"])
def test_additional_counts_of_the_upstream_are_relayed(end: bytes) -> None:
    own = json.encode(OWN).replace(b":0.01,", b":1.00e-2,")
    stream = role() + choice(content="Hi") + end.replace(json.encode(OWN), own) + DONE
    for step in (1, 1 << 30):
        out = passed(stream, step=step)
        check_chat(out, include_usage=True)
        assert out.endswith(b'"choices":[],"usage":' + own + b"}\n\n" + DONE)
    assert relayed(stream).outcome.usage == Usage(3, 2, cache_read=1, cache_write=2, cost=10_000_000)


@pytest.mark.parametrize("partial", [{"completion_tokens": 2}, {**COUNTS, "prompt_tokens": "3"}])
def test_incomplete_counts_are_completed(partial: dict[str, Any]) -> None:
    end = frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=partial)
    check_chat(passed(role() + choice(content="Hi") + end + DONE), include_usage=True)


@pytest.mark.parametrize("step", [1, 400, 1 << 30])
def test_usage_is_estimated_if_the_upstream_gave_none(step: int) -> None:
    text = b"".join(choice(content="four") for _ in range(50))
    counts = chunks(passed(role() + text + choice("stop") + DONE, reply(input_tokens=7), step))[-1]["usage"]
    assert counts["prompt_tokens"] == 7
    assert 50 <= counts["completion_tokens"] <= 100
    long = choice(content="x" * 30_000)
    counts = chunks(passed(role() + long + long + choice("stop") + DONE))[-1]["usage"]
    assert 15_000 <= counts["completion_tokens"] <= 25_000


CALLS: list[tuple[str, bytes, list[tuple[int, str]]]] = [
    (
        "in order",
        call(0, "a", "f", "{") + call(0, arguments="}") + call(1, "b", "g", "{}"),
        [(0, "a"), (1, "b")],
    ),
    ("no index", call(None, "a", "f", "{") + call(None, arguments="}"), [(0, "a")]),
    ("two without index", call(None, "a", "f", "{}") + call(None, "b", "g", "{}"), [(0, "a"), (1, "b")]),
    (
        "all numbered 0",
        call(0, "a", "f", "{") + call(0, arguments="}") + call(0, "b", "g", "{") + call(0, arguments="}"),
        [(0, "a"), (1, "b")],
    ),
    ("numbered from 1", call(1, "a", "f", "{}") + call(2, "b", "g", "{}"), [(0, "a"), (1, "b")]),
    (
        "numbered from 1 in pieces",
        call(1, "a", "f", "{") + call(1, arguments="}") + call(2, "b", "g", "{") + call(2, arguments="}"),
        [(0, "a"), (1, "b")],
    ),
    (
        "interleaved",
        call(0, "a", "f", "{") + call(1, "b", "g", "{") + call(0, arguments="}") + call(1, arguments="}"),
        [(0, "a"), (1, "b")],
    ),
    ("id and name again", call(0, "a", "f", "{") + call(0, "a", "f", "}"), [(0, "a")]),
    ("a new id in every piece", call(0, "a", "f", "{") + call(0, "z", arguments="}"), [(0, "a")]),
    ("arguments as an object", call(0, "a", "f", {"x": 1}), [(0, "a")]),
    ("no arguments in the first piece", call(0, "a", "f") + call(0, arguments="{}"), [(0, "a")]),
    (
        "no type",
        choice(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]),
        [(0, "a")],
    ),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_calls_are_repaired_until_a_client_can_distinguish_them(
    stream: bytes, expected: list[tuple[int, str]], reason: str
) -> None:
    for step in (1, 1 << 30):
        out = passed(role() + stream + choice(reason) + usage() + DONE, step=step)
        check_chat(out, include_usage=True)
        entries = [
            entry
            for chunk in chunks(out)
            for each in chunk["choices"]
            for entry in each["delta"].get("tool_calls", [])
        ]
        assert [(entry["index"], entry["id"]) for entry in entries if entry.get("id")] == expected
        assert chunks(out)[-2]["choices"][0]["finish_reason"] == "tool_calls"


LATE_NAMES = [
    call(0, "a", arguments="") + call(0, name="f", arguments="{") + call(0, name="f", arguments="}"),
    call(0, "a", arguments="{") + call(0, name="f") + call(0, arguments="}"),
    call(None, "a", arguments="") + call(None, name="f", arguments="{}"),
    call(0, "a", "", "{") + call(0, "a", "f", "}"),
]


@pytest.mark.parametrize("pieces", LATE_NAMES, ids=range(len(LATE_NAMES)))
def test_a_name_after_the_first_delta_is_sent_once(pieces: bytes) -> None:
    for step in (1, 1 << 30):
        out = passed(role() + pieces + choice("tool_calls") + usage() + DONE, step=step)
        entries = [
            entry
            for chunk in chunks(out)
            for each in chunk["choices"]
            for entry in each["delta"].get("tool_calls", [])
        ]
        assert [entry["index"] for entry in entries] == [0] * len(entries)
        assert [entry["id"] for entry in entries if "id" in entry] == ["a"]
        assert "".join(entry["function"].get("name", "") for entry in entries) == "f"
        assert "".join(entry["function"].get("arguments", "") for entry in entries) == "{}"


def test_a_call_without_id_gets_one() -> None:
    nameless = choice(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}])
    out = passed(role() + nameless + choice("tool_calls") + usage() + DONE)
    check_chat(out, include_usage=True)


def test_calls_of_several_choices_are_kept_apart() -> None:
    def piece(index: int, **entry: Any) -> bytes:
        return choice(index=index, tool_calls=[{"type": "function", **entry}])

    stream = (
        role()
        + choice(index=1, role="assistant", content="")
        + piece(1, id="b", function={"name": "g", "arguments": "{}"})
        + piece(0, id="a", function={"name": "f", "arguments": "{}"})
        + choice("stop")
        + choice("stop", 1)
    )
    check_chat(passed(stream + usage() + DONE), include_usage=True)


FINISHES: list[tuple[str, bytes, str, str]] = [
    ("stop", choice(content="x"), "stop", "stop"),
    ("length", choice(content="x"), "length", "length"),
    ("content_filter", choice(content="x"), "content_filter", "content_filter"),
    ("length", call(0, "a", "f", '{"x'), "length", "length"),
    ("model_length", call(0, "a", "f", '{"x'), "length", "length"),
    ("stop", call(0, "a", "f", "{}"), "tool_calls", "tool_calls"),
    ("end_turn", call(0, "a", "f", "{}"), "tool_calls", "tool_calls"),
    ("tool_calls", choice(content="x"), "stop", "stop"),
    ("eos", choice(content="x"), "stop", "stop"),
    ("max_tokens", choice(content="x"), "length", "length"),
    ("sensitive", choice(content="x"), "content_filter", "content_filter"),
    (
        "function_call",
        choice(function_call={"name": "f", "arguments": "{}"}),
        "tool_calls",
        "function_call",
    ),
    ("stop", choice(function_call={"name": "f", "arguments": "{}"}), "tool_calls", "function_call"),
]


@pytest.mark.parametrize(
    ("finish_reason", "content", "reason", "expected"), FINISHES, ids=range(len(FINISHES))
)
def test_the_finish_reason_is_corrected(
    finish_reason: str, content: bytes, reason: str, expected: str
) -> None:
    stream = role() + content + choice(finish_reason) + usage() + DONE
    out = passed(stream)
    same = finish_reason == expected
    assert out == stream.replace(
        choice(finish_reason),
        choice(expected) if same else sse.frame(json.encode(chunks(choice(expected))[0])),
    )
    outcome = relayed(stream).outcome
    assert outcome.finish is not None
    assert (outcome.finish.reason, outcome.finish.upstream_reason, outcome.sent_finish) == (
        reason,
        finish_reason,
        expected,
    )


@pytest.mark.parametrize("scene", ["text", "two tool calls", "thinking", "refusal", "length"])
def test_a_stream_cut_at_any_frame_never_looks_complete(scene: str) -> None:
    frames = frames_of(ANSWERS[scene]("chat", True))
    end = next(at for at, item in enumerate(frames) if b'"finish_reason":"' in item)
    for cut in range(end + 1):
        relay = Relay(reply())
        out = relay.feed(b"".join(frames[:cut]))
        if not relay.started:
            assert out == b""
            with pytest.raises(UpstreamFailed) as caught:
                relay.close()
            assert caught.value.code == "upstream_truncated"
            continue
        out += relay.close()
        check_broken_chat(out)
        assert relay.ended
        assert relay.outcome.error is not None
        assert relay.outcome.error.code == "upstream_truncated"
    for cut in range(end + 1, len(frames)):
        check_chat(passed(b"".join(frames[:cut])), include_usage=True)


def test_a_stream_cut_in_the_middle_of_a_frame_never_looks_complete() -> None:
    head = role() + choice(content="Hi")
    tail = call(0, "a", "f", '{"cmd":"rm -rf build/tmp"}') + choice("tool_calls")
    for cut in range(len(tail) - 2):
        check_broken_chat(passed(head + tail[:cut]))


def test_all_requested_choices_must_finish() -> None:
    two = reply(view=validate(body(n=2)).view)
    begun = role() + choice(index=1, role="assistant", content="a") + choice("stop")
    relay = Relay(two)
    assert b'"error"' in relay.feed(begun) + relay.close()
    assert relay.outcome.error is not None
    check_chat(passed(begun + choice("stop", 1) + usage(), two), include_usage=True)


ERROR = sse.frame(json.encode({"error": {"message": "slow down", "type": "limit", "code": 429}}))


def test_an_error_before_any_content_is_raised() -> None:
    for stream in (ERROR, role() + ERROR):
        with pytest.raises(UpstreamLimited, match="slow down") as caught:
            Relay(reply()).feed(stream)
        assert caught.value.provider == "acme"


def test_an_error_after_content_ends_the_stream() -> None:
    relay = Relay(reply())
    begun = role() + choice(content="Hi")
    out = relay.feed(begun + ERROR + choice("stop") + DONE)
    assert out == begun + ERROR
    check_broken_chat(out)
    assert relay.ended
    assert isinstance(relay.outcome.error, UpstreamLimited)
    assert relay.feed(DONE) + relay.close() + relay.fail(UpstreamFailed("x")) == b""


ODD_ERRORS = ["boom", {"msg": "boom"}, {"message": "boom"}, {"message": "boom", "type": None}]


@pytest.mark.parametrize("error", ODD_ERRORS, ids=range(len(ODD_ERRORS)))
def test_an_unusual_error_is_sent_in_chats_shape(error: Any) -> None:
    out = passed(role() + choice(content="Hi") + sse.frame(json.encode({"error": error})))
    check_broken_chat(out)
    assert chunks(out)[-1]["error"]["message"] == "boom"


def test_a_refused_key_in_the_middle_of_a_stream_is_not_shown() -> None:
    error = {"message": "Incorrect API key: sk-1234", "type": "auth", "code": "invalid_api_key"}
    out = passed(role() + choice(content="Hi") + sse.frame(json.encode({"error": error})))
    check_broken_chat(out)
    assert b"sk-1234" not in out


BROKEN = b'data: {"error":{"message":"slow \xff down","type":"t","code":429}}\n\n'


def test_an_error_that_is_not_utf_8_is_decoded_as_far_as_possible() -> None:
    with pytest.raises(UpstreamLimited, match="slow \ufffd down"):
        Relay(reply()).feed(role() + BROKEN)
    out = passed(role() + choice(content="Hi") + BROKEN)
    check_broken_chat(out)
    assert chunks(out)[-1]["error"]["message"] == "slow \ufffd down"


NEED_REPAIR = [
    choice("eos", content="Hi", x="?"),
    frame(
        choices=[{"index": 0, "delta": {"content": "Hi", "x": "?"}, "finish_reason": "stop"}], usage=COUNTS
    ),
]


@pytest.mark.parametrize("broken", NEED_REPAIR, ids=range(len(NEED_REPAIR)))
def test_a_frame_that_needs_repair_and_cannot_be_read_breaks_the_answer(broken: bytes) -> None:
    broken = broken.replace(b"?", b"\xff")
    with pytest.raises(UpstreamFailed) as caught:
        Relay(reply()).feed(role() + broken)
    assert caught.value.code == "upstream_unparsable"
    check_broken_chat(passed(role() + choice(content="Hi") + broken + DONE))


def test_an_empty_upstream_stream_is_raised() -> None:
    for stream in (b"", b": hi\n\n", DONE, role(), role() + DONE, role() + usage() + DONE):
        with pytest.raises(UpstreamError) as caught:
            passed(stream)
        assert caught.value.code == "upstream_truncated"


@pytest.mark.parametrize("junk", [b"data: hello\n\n", b"data: [1]\n\n", b"data: {\n\n"])
def test_an_invalid_chunk_breaks_the_answer(junk: bytes) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        passed(junk)
    assert caught.value.code == "upstream_unparsable"


def test_a_frame_without_end_breaks_the_answer() -> None:
    relay = Relay(reply())
    out = relay.feed(role() + choice(content="Hi"))
    out += relay.feed(b"data: ") + relay.feed(b"x" * (33 << 20))
    check_broken_chat(out + relay.close())
    with pytest.raises(UpstreamFailed):
        Relay(reply()).feed(b"x" * (33 << 20))


def test_a_stream_that_cannot_go_on_is_ended_by_an_error() -> None:
    relay = Relay(reply())
    out = relay.feed(role() + choice(content="Hi")) + relay.fail(UpstreamFailed("broken"))
    check_broken_chat(out)
    assert relay.ended
    assert relay.outcome.error is not None
    assert relay.close() == b""


MARKED = [
    '"finish_reason":"stop"',
    '{"usage":{"prompt_tokens":1}}',
    "data: [DONE]\n\n",
    '{"error":{"message":"no"}}',
    "tool_calls function_call",
    '"object":"x"',
]


@pytest.mark.parametrize("text", MARKED)
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_marks_inside_the_models_text_are_text(text: str, field: str) -> None:
    deltas: list[dict[str, Any]] = [{field: text}, {field: f"a {text} b"}, {"content": "!"}]
    reason = [choice(**delta) for delta in deltas]
    stream = role() + choice(content="Hi") + b"".join(reason) + choice("stop") + usage() + DONE
    for step in (1, 1 << 30):
        assert passed(stream, step=step) == stream


def test_an_upstream_that_leaves_out_the_head_gets_one_in_every_chunk() -> None:
    def bare(**delta: Any) -> bytes:
        return sse.frame(json.encode({"choices": [{"index": 0, "delta": delta}]}))

    end = sse.frame(json.encode({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    text = bare(role="assistant", content="a") + bare(content="b") + bare(content="c")
    for step in (1, 1 << 30):
        out = passed(text + end + DONE, step=step)
        check_chat(out, include_usage=True)
        assert {chunk["id"] for chunk in chunks(out)} == {"chatcmpl-abc"}


def test_the_first_chunk_may_be_without_choices() -> None:
    filtered = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
    stream = CLEAN + usage() + DONE
    out = passed(sse.frame(json.encode(filtered)) + stream)
    assert out.endswith(stream)
    assert chunks(out)[0]["prompt_filter_results"] == []
    assert relayed(sse.frame(json.encode(filtered)) + CLEAN + DONE).outcome.response_id == "chatcmpl-1"


def test_content_as_a_list_passes() -> None:
    odd = choice(content=[{"type": "text", "text": "Hi"}])
    stream = role() + odd + odd + choice("stop") + usage() + DONE
    assert passed(stream) == stream


def test_broken_streams_of_upstreams_stay_broken() -> None:
    check_broken_chat(passed(b"".join(frames_of(answers.cut_off("chat", "Hello there, you")))))
    check_broken_chat(passed(answers.stream_error("chat", "Hello there, you").data))


@pytest.mark.parametrize(
    "junk",
    [
        {"choices": 5},
        {"choices": [{"index": [0], "delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"index": {}, "delta": [[]], "finish_reason": "eos"}]},
        {"choices": [{"delta": {"annotations": 5, "tool_calls": "x"}, "finish_reason": "eos"}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "f"}, {"custom": ["x"]}, 5]}}]},
    ],
)
def test_values_of_unexpected_types_do_not_break_the_relay(junk: dict[str, Any]) -> None:
    relay = relayed(role() + choice(content="Hi") + frame(**junk) + choice("stop") + DONE)
    assert relay.outcome.finish is not None
