from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai.errors import APIError

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
from routecodex.protocols.gemini import CODEC

GATEWAY_ERRORS: list[tuple[GatewayError, int, str]] = [
    (BadRequest("x"), 400, "INVALID_ARGUMENT"),
    (Unauthorized("x"), 401, "UNAUTHENTICATED"),
    (UpstreamRejected("x", status=403), 403, "PERMISSION_DENIED"),
    (NotFound("x"), 404, "NOT_FOUND"),
    (TooLarge("x"), 413, "INVALID_ARGUMENT"),
    (UpstreamLimited("x"), 429, "RESOURCE_EXHAUSTED"),
    (Overloaded("x"), 503, "UNAVAILABLE"),
    (UpstreamOverloaded("x"), 503, "UNAVAILABLE"),
    (UpstreamFailed("x"), 502, "INTERNAL"),
    (UpstreamRefusedKey("x"), 424, "FAILED_PRECONDITION"),
    (UpstreamTimeout("x"), 504, "DEADLINE_EXCEEDED"),
]


@pytest.mark.parametrize(("error", "status", "name"), GATEWAY_ERRORS)
def test_gateway_errors_have_googles_status_names(error: GatewayError, status: int, name: str) -> None:
    sent, envelope = CODEC.encode_error(error)
    assert sent == status
    assert envelope["error"] == {"code": status, "message": "x", "status": name}
    assert envelope.get("code") == error.code
    assert next(iter(envelope)) == "error"
    assert APIError(sent, envelope).status == name


def test_fields_retry_delays_and_details_are_sent() -> None:
    error = BadRequest("bad", param="contents", details={"a": 1}, retry_after=90)
    envelope = CODEC.encode_error(error)[1]
    assert envelope["details"] == {"a": 1}
    assert "code" not in envelope
    assert envelope["error"]["details"] == [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "contents", "description": "bad"}],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "60s"},
    ]


def google(code: int, status: str, *details: Any, message: str = "x") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
GOOGLE_ERRORS: list[tuple[int, Any, type[UpstreamError]]] = [
    (400, google(400, "INVALID_ARGUMENT"), UpstreamRejected),
    (400, google(400, "INVALID_ARGUMENT", KEY), UpstreamRefusedKey),
    (400, google(400, "INVALID_ARGUMENT", message="API key not valid."), UpstreamRefusedKey),
    (401, google(401, "UNAUTHENTICATED"), UpstreamRefusedKey),
    (403, google(403, "PERMISSION_DENIED"), UpstreamRefusedKey),
    (404, google(404, "NOT_FOUND"), UpstreamRejected),
    (429, google(429, "RESOURCE_EXHAUSTED"), UpstreamLimited),
    (429, [google(429, "RESOURCE_EXHAUSTED")], UpstreamLimited),
    (500, google(500, "INTERNAL"), UpstreamFailed),
    (503, google(503, "UNAVAILABLE"), UpstreamOverloaded),
    (504, google(504, "DEADLINE_EXCEEDED"), UpstreamTimeout),
    (502, "<html>", UpstreamFailed),
    (400, {"error": "odd"}, UpstreamRejected),
    (400, [], UpstreamRejected),
]


@pytest.mark.parametrize(("status", "body", "kind"), GOOGLE_ERRORS)
def test_googles_errors_are_typed(status: int, body: Any, kind: type[UpstreamError]) -> None:
    error = CODEC.decode_error(status, {}, json.dumps(body).encode(), "google")
    assert type(error) is kind
    assert error.provider == "google"
    assert error.upstream_status == status


def test_googles_retry_delay_is_read() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}
    body = json.dumps(google(429, "RESOURCE_EXHAUSTED", info)).encode()
    error = CODEC.decode_error(429, {}, body, "google")
    assert error.retry_after == 17.5
    assert error.code == "rate_limit_exceeded"
    assert CODEC.decode_error(429, {"retry-after": "3"}, body, "google").retry_after == 3


def test_a_page_of_html_is_not_shown() -> None:
    error = CODEC.decode_error(502, {}, b"<html><body>Bad gateway", "google")
    assert "<" not in error.message


@pytest.mark.parametrize("details", [5, "x", {"a": 1}, [5, None]])
def test_details_of_another_type_are_skipped(details: Any) -> None:
    body = json.dumps({"error": {"message": "no", "details": details}}).encode()
    assert CODEC.decode_error(413, {}, body, "up").message
