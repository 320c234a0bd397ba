from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
)
from routecodex.protocols.grammar import check_error
from routecodex.protocols.messages.errors import decode_error, encode_error, error_frame
from routecodex.wire import json

ENCODED: list[tuple[GatewayError, int, str]] = [
    (BadRequest("x"), 400, "invalid_request_error"),
    (BadRequest("x", status=422), 422, "invalid_request_error"),
    (Unauthorized("x"), 401, "authentication_error"),
    (NotFound("x"), 404, "not_found_error"),
    (TooLarge("x"), 413, "request_too_large"),
    (Overloaded("x"), 503, "overloaded_error"),
    (UpstreamRejected("x", status=403), 403, "permission_error"),
    (UpstreamRefusedKey("x"), 424, "api_error"),
    (UpstreamLimited("x"), 429, "rate_limit_error"),
    (UpstreamOverloaded("x"), 529, "overloaded_error"),
    (UpstreamFailed("x"), 502, "api_error"),
    (UpstreamTimeout("x"), 504, "timeout_error"),
]


@pytest.mark.parametrize(("error", "status", "type"), ENCODED)
def test_errors_have_their_status_and_type(error: GatewayError, status: int, type: str) -> None:
    sent_status, envelope = encode_error(error)
    assert (sent_status, envelope["error"]) == (status, {"type": type, "message": "x"})
    assert envelope.get("code") == error.code
    check_error("messages", sent_status, json.encode(envelope))


def test_code_and_details_stand_at_the_top() -> None:
    error = BadRequest("x", code="c", details={"d": 1})
    assert encode_error(error)[1] == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "x"},
        "code": "c",
        "details": {"d": 1},
    }


def test_an_error_event_has_the_same_envelope() -> None:
    frame = error_frame(UpstreamOverloaded("busy"))
    assert (
        frame == b"event: error\ndata: " + json.encode(encode_error(UpstreamOverloaded("busy"))[1]) + b"\n\n"
    )


def envelope(type: str, message: str = "why") -> bytes:
    return json.encode({"type": "error", "error": {"type": type, "message": message}})


DECODED: list[tuple[int, bytes, type[UpstreamError], str]] = [
    (400, envelope("invalid_request_error"), UpstreamRejected, "why"),
    (404, envelope("not_found_error"), UpstreamRejected, "why"),
    (413, envelope("request_too_large"), UpstreamRejected, "why"),
    (401, envelope("authentication_error"), UpstreamRefusedKey, "rejected the gateway's key"),
    (403, envelope("permission_error"), UpstreamRefusedKey, "rejected the gateway's key"),
    (429, envelope("rate_limit_error"), UpstreamLimited, "why"),
    (500, envelope("api_error"), UpstreamFailed, "why"),
    (529, envelope("overloaded_error"), UpstreamOverloaded, "why"),
    (500, envelope("overloaded_error"), UpstreamOverloaded, "why"),
    (504, b"", UpstreamTimeout, "HTTP 504 without a message"),
    (502, b"<html>bad gateway</html>", UpstreamFailed, "HTTP 502 without a message"),
    (400, b"plain words", UpstreamRejected, "plain words"),
    (400, b'{"error":"short"}', UpstreamRejected, "short"),
    (400, b'{"message":"bare"}', UpstreamRejected, "bare"),
    (422, b'{"detail":[{"loc":"x"}]}', UpstreamRejected, '[{"loc":"x"}]'),
    (400, b"[1]", UpstreamRejected, "HTTP 400 without a message"),
]


@pytest.mark.parametrize(("status", "body", "kind", "message"), DECODED)
def test_error_responses_are_decoded(status: int, body: bytes, kind: type[Any], message: str) -> None:
    error = decode_error(status, {}, body, "acme")
    assert type(error) is kind
    assert message in error.message
    assert (error.provider, error.upstream_status) == ("acme", status)


def test_retry_after_of_a_provider_is_kept() -> None:
    error = decode_error(429, {"retry-after": "12"}, envelope("rate_limit_error"), "acme")
    assert error.retry_after == 12
