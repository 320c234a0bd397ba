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
from routecodex.protocols.chat.errors import decode_error, encode_error, typed_error
from routecodex.protocols.grammar import check_error
from routecodex.wire import json

DECODED: list[tuple[int, Any, type[UpstreamError], int, str]] = [
    (400, {"error": {"message": "bad", "type": "invalid_request_error"}}, UpstreamRejected, 400, "bad"),
    (404, {"error": {"message": "no model"}}, UpstreamRejected, 404, "no model"),
    (413, {"error": {"message": "long"}}, UpstreamRejected, 413, "long"),
    (422, {"detail": [{"loc": ["n"], "msg": "odd"}]}, UpstreamRejected, 422, '[{"loc":["n"],"msg":"odd"}]'),
    (400, {"detail": "bad"}, UpstreamRejected, 400, "bad"),
    (400, {"object": "error", "message": "bad", "code": 40001}, UpstreamRejected, 400, "bad"),
    (400, {"error": "bad"}, UpstreamRejected, 400, "bad"),
    (400, {"error": None, "message": "bad"}, UpstreamRejected, 400, "bad"),
    (400, {"error": {}}, UpstreamRejected, 400, "HTTP 400 without a message"),
    (400, "bad", UpstreamRejected, 400, "bad"),
    (429, {"error": {"message": "slow", "code": "rate_limit_exceeded"}}, UpstreamLimited, 429, "slow"),
    (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, UpstreamLimited, 429, "pay"),
    (402, {"error": {"message": "pay"}}, UpstreamLimited, 429, "pay"),
    (500, {"error": {"message": "oops"}}, UpstreamFailed, 502, "oops"),
    (503, {"error": {"message": "busy"}}, UpstreamFailed, 502, "busy"),
    (503, {"error": {"message": "busy", "type": "overloaded_error"}}, UpstreamOverloaded, 503, "busy"),
    (529, {"error": {"message": "busy"}}, UpstreamOverloaded, 503, "busy"),
    (504, {"error": {"message": "late"}}, UpstreamTimeout, 504, "late"),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "client_status", "message"), DECODED, ids=range(len(DECODED))
)
def test_error_responses_are_decoded(
    status: int, body: Any, kind: type[UpstreamError], client_status: int, message: str
) -> None:
    error = decode_error(status, {}, json.encode(body), "up")
    assert type(error) is kind
    assert (error.status, error.message, error.provider, error.upstream_status) == (
        client_status,
        message,
        "up",
        status,
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_never_shown_as_the_clients_own(status: int) -> None:
    envelope = {"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}
    error = decode_error(status, {}, json.encode(envelope), "up")
    assert isinstance(error, UpstreamRefusedKey)
    assert error.status == 424
    assert "sk-secret" not in error.message


def test_code_and_param_of_the_upstream_are_passed_on() -> None:
    envelope = {"error": {"message": "bad", "code": "context_length_exceeded", "param": "messages"}}
    error = decode_error(400, {}, json.encode(envelope), "up")
    assert (error.code, error.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html><body>Bad gateway</body></html>", "HTTP 502 without a message"),
        (b"  upstream connect error \n", "upstream connect error"),
        (b"", "HTTP 502 without a message"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_a_body_that_is_not_json_becomes_a_line_of_text(body: bytes, message: str) -> None:
    assert decode_error(502, {}, body, "up").message == message


def test_retry_after_is_kept() -> None:
    assert decode_error(429, {"retry-after": "7"}, b"{}", "up").retry_after == 7.0


INSIDE: list[tuple[Any, type[UpstreamError]]] = [
    ({"message": "slow", "code": 429}, UpstreamLimited),
    ({"message": "bad", "code": 400}, UpstreamRejected),
    ({"message": "busy", "type": "overloaded_error"}, UpstreamOverloaded),
    ({"message": "key", "code": "invalid_api_key"}, UpstreamRefusedKey),
    ({"message": "late", "code": 504}, UpstreamTimeout),
    ({"message": "oops", "code": 7}, UpstreamFailed),
    ({"message": "oops"}, UpstreamFailed),
    ("oops", UpstreamFailed),
]


@pytest.mark.parametrize(("error", "kind"), INSIDE, ids=range(len(INSIDE)))
def test_an_error_inside_an_answer_has_the_status_of_its_code(error: Any, kind: type[UpstreamError]) -> None:
    assert type(typed_error(200, error, provider="up")) is kind


ENCODED: list[tuple[GatewayError, int, str]] = [
    (BadRequest("x", param="n"), 400, "invalid_request_error"),
    (Unauthorized("x"), 401, "invalid_request_error"),
    (NotFound("x"), 404, "not_found_error"),
    (TooLarge("x"), 413, "invalid_request_error"),
    (Overloaded("x"), 503, "overloaded_error"),
    (UpstreamRejected("x", status=422), 422, "invalid_request_error"),
    (UpstreamRefusedKey("x"), 424, "upstream_error"),
    (UpstreamLimited("x"), 429, "rate_limit_error"),
    (UpstreamOverloaded("x"), 503, "overloaded_error"),
    (UpstreamFailed("x"), 502, "api_error"),
    (UpstreamTimeout("x"), 504, "timeout_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), ENCODED, ids=[type(row[0]).__name__ for row in ENCODED])
def test_errors_have_chats_envelope(error: GatewayError, status: int, kind: str) -> None:
    client_status, envelope = encode_error(error)
    assert (client_status, envelope["error"]["type"]) == (status, kind)
    check_error("chat", client_status, json.encode(envelope))


def test_code_and_details_stand_at_the_top_only_when_there_are_some() -> None:
    error = BadRequest("x", param="n", code="c", details={"a": 1})
    inner = {"message": "x", "type": "invalid_request_error", "param": "n", "code": "c"}
    assert encode_error(error) == (400, {"error": inner, "code": "c", "details": {"a": 1}})
    assert set(encode_error(BadRequest("x"))[1]) == {"error"}
