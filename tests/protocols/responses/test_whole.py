from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.canon.response import fold
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.decode_stream import StreamDecoder
from routecodex.protocols.responses.whole import decode_response, relay_response
from tests.protocols.responses.streams import FULL, OUTPUT, USAGE, response

REPLY = ReplyContext(id="abc", created=7, model="m")


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_whole_answer_equals_the_streamed_one() -> None:
    decoder = StreamDecoder()
    streamed = fold([*decoder.feed(b"".join(FULL)), *decoder.close()])
    assert fold(decode_response(body(response(output=OUTPUT, usage=USAGE)))) == streamed


def test_answer_is_relayed_unchanged_with_its_outcome() -> None:
    sent = body(response(output=OUTPUT, usage=USAGE, odd=[1]))
    passed, outcome = relay_response(sent, REPLY)
    assert passed is sent
    assert outcome.body is sent
    assert (outcome.response_id, outcome.model, outcome.sent_finish) == ("resp_1", "gpt", "completed")
    assert outcome.finish == Finish("tool_calls", upstream_reason="completed")
    assert outcome.usage == Usage(input=10, output=5, cache_read=4, reasoning=2)
    assert outcome.signatures == ["gAAA"]


def test_incomplete_answer_passes() -> None:
    sent = body(response("incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert relay_response(sent, REPLY)[1].finish == Finish("length", upstream_reason="max_output_tokens")


@pytest.mark.parametrize(
    "sent",
    [b"", b"<html>", b"[]", b'"x"', b"{}", b'{"choices":[]}', body(response("in_progress")), b"\xff\xfe"],
)
def test_a_body_that_is_not_an_answer_is_an_upstream_failure(sent: bytes) -> None:
    for reader in (decode_response, lambda data: relay_response(data, REPLY)):
        with pytest.raises(UpstreamFailed) as caught:
            reader(sent)
        assert caught.value.code == "upstream_unparsable"


@pytest.mark.parametrize(
    "sent",
    [
        {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
        response("failed", error={"code": "rate_limit_exceeded", "message": "slow down"}),
    ],
)
def test_error_inside_an_answer_is_raised(sent: Any) -> None:
    with pytest.raises(UpstreamLimited, match="slow down"):
        decode_response(body(sent))
    with pytest.raises(UpstreamLimited, match="slow down"):
        relay_response(body(sent), REPLY)
