"""What a provider's refusal means, for every protocol: the table of statuses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from routecodex.canon.errors import (
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnknownModel,
)
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.grammar import check_error
from routecodex.protocols.upstream_errors import (
    names_unknown_model,
    plain_text,
    retry_after,
    stream_truncated,
    upstream_error,
)
from routecodex.wire import json
from tests.kit import answers

STATUSES: list[tuple[int, type[UpstreamError], int]] = [
    (400, UpstreamRejected, 400),
    (404, UpstreamRejected, 404),
    (405, UpstreamRejected, 405),
    (409, UpstreamRejected, 409),
    (413, UpstreamRejected, 413),
    (415, UpstreamRejected, 415),
    (422, UpstreamRejected, 422),
    (401, UpstreamRefusedKey, 424),
    (403, UpstreamRefusedKey, 424),
    (402, UpstreamLimited, 429),
    (429, UpstreamLimited, 429),
    (500, UpstreamFailed, 502),
    (501, UpstreamFailed, 502),
    (502, UpstreamFailed, 502),
    (503, UpstreamFailed, 502),
    (520, UpstreamFailed, 502),
    (408, UpstreamTimeout, 504),
    (504, UpstreamTimeout, 504),
    (529, UpstreamOverloaded, 503),
]


@pytest.mark.parametrize(("status", "kind", "shown"), STATUSES)
def test_a_status_means_one_kind_of_error(status: int, kind: type[UpstreamError], shown: int) -> None:
    error = upstream_error(status, " said so ", provider="up")
    assert type(error) is kind
    assert (error.status, error.provider, error.upstream_status) == (shown, "up", status)
    if kind is not UpstreamRefusedKey:
        assert error.message == "said so"


PROTOCOLS = ("chat", "responses", "messages", "gemini")


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize(("status", "kind", "shown"), STATUSES)
def test_a_client_sees_the_table_whatever_the_two_protocols(
    upstream: str, client: str, status: int, kind: type[UpstreamError], shown: int
) -> None:
    refused = answers.error(upstream, status, "it went wrong")
    error = CODECS[upstream].decode_error(status, {}, refused.data, "up")
    if (upstream, status) in LOUDER:
        kind, shown = LOUDER[upstream, status]
    assert isinstance(error, kind), error
    told, envelope = CODECS[client].encode_error(error)
    check_error(client, told, json.encode(envelope))
    overloaded = kind is UpstreamOverloaded and client == "messages"
    refused_key = kind is UpstreamRefusedKey and client == "responses"
    assert told == (529 if overloaded else 400 if refused_key else shown)


LOUDER: dict[tuple[str, int], tuple[type[UpstreamError], int]] = {
    # Gemini says UNAVAILABLE for 503, which is its word for overloaded.
    ("gemini", 503): (UpstreamOverloaded, 503),
}


WORDS: list[tuple[int, str | None, str | None, type[UpstreamError]]] = [
    (400, "invalid_api_key", None, UpstreamRefusedKey),
    (400, "API_KEY_INVALID", None, UpstreamRefusedKey),
    (500, None, "authentication_error", UpstreamRefusedKey),
    (403, "insufficient_quota", None, UpstreamRefusedKey),
    (400, "insufficient_quota", None, UpstreamLimited),
    (429, None, "insufficient_quota", UpstreamLimited),
    (500, "quota_exceeded", None, UpstreamLimited),
    (500, None, "overloaded_error", UpstreamOverloaded),
    (503, "UNAVAILABLE", None, UpstreamOverloaded),
    (429, "engine_overloaded_error", None, UpstreamLimited),
    (404, "model_not_found", "invalid_request_error", UpstreamUnknownModel),
    (400, "model_not_found", None, UpstreamUnknownModel),
    (400, None, "model_not_found", UpstreamUnknownModel),
    (403, "model_not_found", None, UpstreamRefusedKey),
    (422, "model_not_found", None, UpstreamRejected),
]


@pytest.mark.parametrize(("status", "code", "kind_said", "kind"), WORDS, ids=range(len(WORDS)))
def test_some_words_say_more_than_the_status(
    status: int, code: str | None, kind_said: str | None, kind: type[UpstreamError]
) -> None:
    assert type(upstream_error(status, "x", provider="up", code=code, type=kind_said)) is kind


NAMED: list[tuple[int, str, bool]] = [
    (404, "model: glm-4.5", True),
    (404, "models/GLM-4.5 is not found for API version v1beta", True),
    (404, 'model "glm-4.5" not found, try pulling it first', True),
    (404, "Not found the model glm-4.5.", True),
    (404, "Not Found", False),
    (404, "model: glm-4.5-air", False),
    (404, "model: glm-4.5.1", False),
    (404, "model: z-glm-4.5", False),
    (404, "model: glm-4.5:free", False),
    (400, "model: glm-4.5", False),
]


@pytest.mark.parametrize(("status", "message", "named"), NAMED)
def test_a_404_that_names_the_model_is_about_it(status: int, message: str, named: bool) -> None:
    error = upstream_error(status, message, provider="up")
    assert isinstance(error, UpstreamRejected)
    assert names_unknown_model(error, "glm-4.5") is named


def test_a_used_up_quota_has_its_own_code() -> None:
    assert upstream_error(429, "x", provider="up", code="insufficient_quota").code == "insufficient_quota"
    assert upstream_error(402, "x", provider="up").code == "insufficient_quota"
    assert upstream_error(429, "x", provider="up").code == "rate_limit_exceeded"


USED_UP = [
    (400, "Your credit balance is too low to access the Anthropic API."),
    (429, "Insufficient balance or no resource package. Please recharge."),
    (429, "余额不足或无可用资源包,请充值。"),
]


@pytest.mark.parametrize(("status", "message"), USED_UP)
def test_used_up_credit_that_is_told_in_words_alone_is_a_quota(status: int, message: str) -> None:
    error = upstream_error(status, message, provider="up")
    assert (type(error), error.code, error.message) == (UpstreamLimited, "insufficient_quota", message)


def test_a_failing_provider_that_speaks_of_balance_has_failed() -> None:
    assert type(upstream_error(500, "insufficient balance", provider="up")) is UpstreamFailed


def test_a_refused_key_keeps_the_provider_message_apart_and_without_a_masked_key() -> None:
    error = upstream_error(401, "Incorrect key sk-ab****yz. Get one", provider="up")
    assert error.provider_message == "Incorrect key ***. Get one"
    assert error.message == "provider 'up' rejected the gateway's key (HTTP 401); check its configured keys"
    assert error.code == "upstream_auth"


def test_the_field_and_code_of_a_rejected_request_are_passed_on() -> None:
    error = upstream_error(400, "x", provider="up", code="too_long", param="messages[1]")
    assert (error.code, error.param) == ("too_long", "messages[1]")


def test_long_messages_are_cut_and_empty_ones_are_named() -> None:
    assert len(upstream_error(400, "x" * 9000, provider="up").message) == 2000
    assert upstream_error(500, " \n", provider="up").message == "HTTP 500 without a message"


NOW = 1_445_412_480.0
WAITS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": " 1.5 "}, 1.5),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:00:00 GMT"}, 0.0),
    ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:00:00 GMT"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-5"}, None),
    ({"retry-after": ""}, None),
    ({"retry-after": "\u00b2"}, None),
    ({"retry-after": "1.2.3"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), WAITS, ids=range(len(WAITS)))
def test_the_wish_to_wait_is_understood(headers: Mapping[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=NOW) == seconds


def test_the_wish_to_wait_stays_with_the_error() -> None:
    for status in (429, 402, 529, 500):
        assert upstream_error(status, "x", provider="up", headers={"retry-after": "9"}).retry_after == 9.0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"oops", "oops"),
        (b"  <!DOCTYPE html><html>", ""),
        (b"", ""),
        (b"caf\xe9", "caf\ufffd"),
        (b"x" * 5000, "x" * 2000),
    ],
)
def test_a_body_that_is_no_json_becomes_a_line(body: bytes, text: str) -> None:
    assert plain_text(body) == text


def test_a_truncated_answer_is_the_upstreams_fault() -> None:
    error = stream_truncated()
    assert (type(error), error.status, error.code) == (UpstreamFailed, 502, "upstream_truncated")
    assert error.message == "the upstream stream ended before the answer was complete"
