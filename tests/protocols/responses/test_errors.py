from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Overloaded,
    Unauthorized,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
)
from routecodex.protocols.responses.errors import decode_error, encode_error


@pytest.mark.parametrize(
    ("status", "error", "kind", "mapped"),
    [
        (400, {"message": "bad", "param": "input"}, UpstreamRejected, 400),
        (401, {"message": "key"}, UpstreamRefusedKey, 424),
        (403, {"message": "key"}, UpstreamRefusedKey, 424),
        (404, {"message": "no model"}, UpstreamRejected, 404),
        (413, {"message": "big"}, UpstreamRejected, 413),
        (422, {"message": "bad"}, UpstreamRejected, 422),
        (429, {"message": "slow"}, UpstreamLimited, 429),
        (429, {"message": "pay", "code": "insufficient_quota"}, UpstreamLimited, 429),
        (500, {"message": "oh"}, UpstreamFailed, 502),
        (503, {"message": "oh", "type": "overloaded_error"}, UpstreamOverloaded, 503),
        (504, {"message": "late"}, UpstreamTimeout, 504),
        (529, {"message": "full"}, UpstreamOverloaded, 503),
    ],
)
def test_error_responses_are_typed(
    status: int, error: dict[str, Any], kind: type[GatewayError], mapped: int
) -> None:
    found = decode_error(status, {}, json.dumps({"error": error}).encode(), "p")
    assert type(found) is kind
    assert found.status == mapped
    assert found.provider == "p"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"plain"}', "plain"),
        (b'{"message":"top"}', "top"),
        (b'{"detail":"fast"}', "fast"),
        (b'{"detail":[{"loc":["body"],"msg":"no"}]}', '[{"loc":["body"],"msg":"no"}]'),
        (b"just text", "just text"),
        (b"<html>no</html>", "HTTP 400 without a message"),
        (b"", "HTTP 400 without a message"),
        (b'{"error":{"message":"m","code":7}}', "m"),
    ],
)
def test_message_is_found_in_every_envelope(body: bytes, message: str) -> None:
    assert decode_error(400, {}, body, "p").message == message


def test_retry_after_is_read() -> None:
    assert decode_error(429, {"retry-after": "7"}, b"{}", "p").retry_after == 7


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("b", param="input[0]"), 400, "invalid_request_error"),
        (Unauthorized("u"), 401, "invalid_request_error"),
        (NotFound("n"), 404, "invalid_request_error"),
        (UpstreamLimited("l"), 429, "rate_limit_error"),
        (Overloaded("o"), 503, "server_error"),
        (UpstreamFailed("f"), 502, "server_error"),
        (UpstreamTimeout("t"), 504, "server_error"),
    ],
)
def test_envelope(error: GatewayError, status: int, kind: str) -> None:
    sent, envelope = encode_error(error)
    assert sent == status
    assert envelope["error"] == {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.code,
    }
    assert envelope.get("code") == error.code


def test_details_are_next_to_the_error() -> None:
    _, envelope = encode_error(BadRequest("b", code="c", details={"a": 1}))
    assert (envelope["code"], envelope["details"]) == ("c", {"a": 1})
    assert "details" not in encode_error(BadRequest("b"))[1]
