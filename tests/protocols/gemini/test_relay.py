from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.protocols.codec import Pipe, ReplyContext
from routecodex.protocols.gemini import CODEC

REPLY = ReplyContext(id="abc", created=1, model="alias")


def chunk(*parts: Any, usage: int = 0, **candidate: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}],
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": usage},
    }


def frames(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in chunks)


def run(*pieces: bytes) -> tuple[bytes, Pipe]:
    pipe = CODEC.relay(REPLY)
    out = b"".join(pipe.feed(piece) for piece in pieces)
    return out + pipe.close(), pipe


CALL = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "A-_="}
CLEAN = frames(
    {"usageMetadata": {"promptTokenCount": 10}},
    chunk({"text": "Hm", "thought": True}, usage=1),
    chunk({"text": "Hel"}, usage=2),
    chunk({"text": "lo"}, usage=3),
    chunk(CALL, usage=4),
    chunk({"text": ""}, usage=5, finishReason="STOP"),
)


def test_a_clean_stream_passes_byte_for_byte_however_it_is_cut() -> None:
    for at in range(len(CLEAN)):
        out, pipe = run(CLEAN[:at], CLEAN[at:])
        assert out == CLEAN
        assert pipe.ended
        assert pipe.outcome.finish == Finish("tool_calls", upstream_reason="STOP")
        assert pipe.outcome.usage == Usage(input=10, output=5)
    out, pipe = run(*[bytes([byte]) for byte in CLEAN])
    assert out == CLEAN
    outcome = pipe.outcome
    assert (outcome.model, outcome.response_id) == ("gemini-2.5-flash", "r1")
    assert (outcome.sent_finish, outcome.signatures) == ("STOP", ["A+/="])


def test_frames_are_held_until_there_is_content() -> None:
    pipe = CODEC.relay(REPLY)
    first, second = CLEAN.split(b"\n\n")[:2]
    assert pipe.feed(first + b"\n\n") == b""
    assert not pipe.started
    assert pipe.feed(second + b"\n\n") == first + b"\n\n" + second + b"\n\n"
    assert pipe.started


def test_usage_in_relayed_frames_is_counted_after_a_failure() -> None:
    out, pipe = run(frames(chunk({"text": "A"}, usage=1)), frames(chunk({"text": "B"}, usage=7)))
    assert json.loads(out.split(b"\n\n")[2][6:])["code"] == "upstream_truncated"
    assert pipe.outcome.usage == Usage(input=10, output=7)
    assert pipe.outcome.error is not None
    assert pipe.outcome.error.code == "upstream_truncated"


def test_a_stream_cut_off_at_any_frame_never_looks_complete() -> None:
    blocks = [block + b"\n\n" for block in CLEAN.split(b"\n\n")[:-1]]
    for count in range(len(blocks)):
        if count < 2:
            with pytest.raises(UpstreamFailed):
                run(*blocks[:count])
            continue
        out, pipe = run(*blocks[:count])
        assert out.startswith(b"".join(blocks[:count]))
        assert b"finishReason" not in out
        assert out[len(b"".join(blocks[:count])) :].startswith(b'data: {"error":')
        assert pipe.outcome.finish is None


BROKEN = UpstreamFailed("the connection broke")
ERROR = frames({"error": {"code": 500, "message": "JUNK", "status": "INTERNAL"}})
LATE = [
    ERROR,
    b"data: JUNK\n\n",
    b'data: {"JUNK"\n\n',
    frames({"JUNK": 1})[:-5] + b"\n\n",
    frames(chunk({"text": "JUNK"}, usage=9)),
    frames(chunk({"functionCall": {"name": "JUNK"}}, usage=9)),
]


@pytest.mark.parametrize("late", LATE, ids=range(len(LATE)))
def test_nothing_but_usage_follows_the_finish(late: bytes) -> None:
    for pieces in ((CLEAN + late,), (CLEAN, late)):
        out, pipe = run(*pieces)
        assert out == CLEAN
        assert (pipe.outcome.error, pipe.outcome.finish) == (
            None,
            Finish("tool_calls", upstream_reason="STOP"),
        )


def test_a_break_after_the_finish_leaves_the_answer_complete() -> None:
    pipe = CODEC.relay(REPLY)
    assert pipe.feed(CLEAN) + pipe.fail(BROKEN) == CLEAN
    assert (pipe.ended, pipe.outcome.error) == (True, None)
    assert pipe.outcome.usage == Usage(input=10, output=5)


@pytest.mark.parametrize("late", [b"", ERROR], ids=["break", "error"])
def test_a_finish_without_usage_gets_it_before_the_end(late: bytes) -> None:
    bare = usageless({"text": "A"}, finishReason="STOP")
    pipe = CODEC.relay(REPLY)
    out = pipe.feed(frames(bare) + late) + pipe.fail(BROKEN)
    (block,) = out.split(b"\n\n")[:-1]
    assert json.loads(block[6:])["usageMetadata"]["totalTokenCount"] == 1
    assert pipe.outcome.error is None


def test_other_candidates_follow_the_finish_of_the_first() -> None:
    more = chunk({"text": "B"}, index=1)
    stream = frames(chunk({"text": "A"}, usage=1, finishReason="STOP"), more, more)
    assert run(stream)[0] == stream


def test_a_finish_in_every_chunk_does_not_prove_the_end() -> None:
    stream = frames(chunk({"text": "A"}, finishReason="STOP"), chunk({"text": "B"}, finishReason="STOP"))
    pipe = CODEC.relay(REPLY)
    out = pipe.feed(stream) + pipe.fail(BROKEN)
    assert out.startswith(stream + b'data: {"error":')
    assert pipe.outcome.error is BROKEN
    assert run(stream)[0] == stream


def test_an_error_before_content_is_raised_and_after_it_sent() -> None:
    error = frames({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}})
    with pytest.raises(UpstreamLimited):
        run(error)
    text = frames(chunk({"text": "A"}))
    out, pipe = run(text + error + text)
    assert out.startswith(text + b'data: {"error":{"code":429,')
    assert out.count(b"\n\n") == 2
    assert isinstance(pipe.outcome.error, UpstreamLimited)


def test_a_finish_reason_that_contradicts_the_calls_is_corrected() -> None:
    stream = frames(chunk(CALL), chunk({"text": ""}, finishReason="UNEXPECTED_TOOL_CALL"))
    out, pipe = run(stream)
    assert out == frames(chunk(CALL)) + out[len(frames(chunk(CALL))) :]
    assert json.loads(out.split(b"\n\n")[1][6:])["candidates"][0]["finishReason"] == "STOP"
    assert pipe.outcome.finish == Finish("tool_calls", upstream_reason="UNEXPECTED_TOOL_CALL")
    assert pipe.outcome.sent_finish == "STOP"


def test_other_finish_reasons_are_kept() -> None:
    stream = frames(chunk({"text": "A"}, finishReason="RECITATION"))
    out, pipe = run(stream)
    assert out == stream
    assert (pipe.outcome.finish, pipe.outcome.sent_finish) == (
        Finish("content_filter", upstream_reason="RECITATION"),
        "RECITATION",
    )


def test_frames_that_no_gemini_client_expects_are_removed() -> None:
    odd = b": hi\n\n" + CLEAN.replace(b"\n\n", b"\r\n\r\n: ping\r\n\r\n").replace(
        b"data: ", b"event: x\r\ndata:"
    )
    out, _ = run(odd + b"data: [DONE]\n\n")
    assert out == CLEAN


def test_a_json_array_is_passed_on_as_frames() -> None:
    pieces = [json.loads(block[6:]) for block in CLEAN.split(b"\n\n") if block]
    out, pipe = run(json.dumps(pieces, indent=1).encode())
    assert [json.loads(block[6:]) for block in out.split(b"\n\n") if block] == pieces
    assert pipe.outcome.sent_finish == "STOP"


def test_no_frame_follows_the_end() -> None:
    pipe = CODEC.relay(REPLY)
    pipe.feed(frames(chunk({"text": "A"})))
    assert pipe.fail(UpstreamFailed("gone")).startswith(b'data: {"error":{"code":502,')
    assert pipe.ended
    assert pipe.feed(CLEAN) + pipe.close() + pipe.fail(UpstreamFailed("again")) == b""


def test_a_blocked_prompt_passes_as_it_came() -> None:
    stream = frames({"promptFeedback": {"blockReason": "SAFETY"}})
    out, pipe = run(stream)
    assert out == stream
    assert pipe.outcome.finish == Finish("content_filter", upstream_reason="SAFETY")


def test_a_whole_answer_passes_byte_for_byte() -> None:
    body = json.dumps(chunk(CALL, usage=3, finishReason="STOP"), indent=2).encode()
    passed, outcome = CODEC.relay_response(body, REPLY)
    assert passed == body
    assert outcome.usage == Usage(input=10, output=3)
    assert (outcome.sent_finish, outcome.signatures) == ("STOP", ["A+/="])


def test_a_finish_reason_of_a_whole_answer_that_contradicts_the_calls_is_corrected() -> None:
    body = json.dumps(chunk(CALL, finishReason="MAX_TOKENS")).encode()
    passed, outcome = CODEC.relay_response(body, REPLY)
    assert json.loads(passed) == chunk(CALL, finishReason="STOP")
    assert outcome.finish == Finish("tool_calls", upstream_reason="MAX_TOKENS")


def test_a_body_that_is_not_an_answer_is_raised() -> None:
    with pytest.raises(UpstreamFailed):
        CODEC.relay_response(b"<html>", REPLY)
    with pytest.raises(UpstreamLimited):
        CODEC.relay_response(b'{"error":{"code":429,"message":"x"}}', REPLY)


def usageless(*parts: Any, **candidate: Any) -> dict[str, Any]:
    answer = chunk(*parts, **candidate)
    del answer["usageMetadata"]
    return answer


WITHOUT_USAGE = frames(
    usageless({"text": "Hel"}),
    *(usageless({"text": "lo!"}) for _ in range(9)),
    usageless(CALL),
    usageless({"text": ""}, finishReason="STOP"),
)


@pytest.mark.parametrize("step", [1, 100, 10**6])
def test_missing_usage_is_estimated_in_the_last_frame(step: int) -> None:
    pipe = CODEC.relay(ReplyContext(id="abc", created=1, model="alias", input_tokens=9))
    pieces = (WITHOUT_USAGE[at : at + step] for at in range(0, len(WITHOUT_USAGE), step))
    out = b"".join(map(pipe.feed, pieces))
    *before, last = WITHOUT_USAGE.split(b"\n\n")[:-1]
    assert out == b"".join(block + b"\n\n" for block in before)
    end = json.loads(pipe.close()[6:])
    # 30 characters of text and `{}`.
    assert end.pop("usageMetadata") == {
        "promptTokenCount": 9,
        "candidatesTokenCount": 11,
        "totalTokenCount": 20,
    }
    assert end == json.loads(last[6:])
    assert pipe.outcome.usage == Usage(input=9, output=11, estimated=True)


def test_finish_reasons_in_every_chunk_without_usage_pass_in_order() -> None:
    chunks = [usageless({"text": text}, finishReason="STOP") for text in "abc"]
    out, pipe = run(*(frames(one) for one in chunks))
    answers = [json.loads(block[6:]) for block in out.split(b"\n\n")[:-1]]
    assert [answer.pop("usageMetadata", None) is not None for answer in answers] == [False, False, True]
    assert answers == chunks
    assert pipe.outcome.usage == Usage(output=2, estimated=True)


def test_text_after_a_finish_without_usage_does_not_pass() -> None:
    end, more = usageless({"text": "a"}, finishReason="STOP"), usageless({"text": "b"})
    out, pipe = run(frames(end), frames(more))
    answer = json.loads(out[6:])
    assert answer.pop("usageMetadata")["totalTokenCount"] == 1
    assert answer == end
    assert pipe.ended


def test_missing_usage_of_a_whole_answer_is_estimated() -> None:
    answer = usageless({"text": "Hello"}, finishReason="STOP")
    sent, outcome = CODEC.relay_response(json.dumps(answer).encode(), REPLY)
    assert outcome.usage == Usage(output=2, estimated=True)
    assert json.loads(sent)["usageMetadata"]["totalTokenCount"] == 2
