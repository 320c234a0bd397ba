from __future__ import annotations

import pytest

from routecodex.canon.errors import (
    BadRequest,
    ClientError,
    ConfigError,
    GatewayError,
    Kind,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    ProviderNotAvailable,
    TooLarge,
    Unauthorized,
    UpgradeRequired,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOutOfCredit,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
    kind_of_status,
)

TREE: list[tuple[type[GatewayError], type[GatewayError], int, Kind, str | None]] = [
    (BadRequest, ClientError, 400, "invalid_request", None),
    (Unauthorized, ClientError, 401, "authentication", "invalid_api_key"),
    (NotFound, ClientError, 404, "not_found", "not_found"),
    (MethodNotAllowed, ClientError, 405, "invalid_request", "method_not_allowed"),
    (TooLarge, ClientError, 413, "too_large", "request_too_large"),
    (UpgradeRequired, ClientError, 426, "invalid_request", "websocket_not_supported"),
    (ProviderNotAvailable, GatewayError, 503, "overloaded", "PROVIDER_NOT_AVAILABLE"),
    (Overloaded, GatewayError, 503, "overloaded", "overloaded"),
    (ConfigError, GatewayError, 500, "api", None),
    (UpstreamRejected, UpstreamError, 400, "invalid_request", None),
    (UpstreamRefusedKey, UpstreamError, 424, "key_unusable", "upstream_auth"),
    (UpstreamOutOfCredit, UpstreamError, 424, "key_unusable", "upstream_quota"),
    (UpstreamLimited, UpstreamError, 429, "rate_limit", "rate_limit_exceeded"),
    (UpstreamOverloaded, UpstreamError, 503, "overloaded", "overloaded"),
    (UpstreamFailed, UpstreamError, 502, "api", "upstream_error"),
    (UpstreamTimeout, UpstreamError, 504, "timeout", "upstream_timeout"),
]


@pytest.mark.parametrize(("error", "parent", "status", "kind", "code"), TREE)
def test_the_type_says_whose_fault_it_is(
    error: type[GatewayError], parent: type[GatewayError], status: int, kind: Kind, code: str | None
) -> None:
    raised = error("what happened")
    assert isinstance(raised, parent)
    assert (raised.status, raised.kind, raised.code) == (status, kind, code)
    assert raised.message == str(raised) == "what happened"
    assert (raised.param, raised.details, raised.retry_after) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request"),
        (401, "authentication"),
        (402, "permission"),
        (403, "permission"),
        (404, "not_found"),
        (408, "timeout"),
        (409, "invalid_request"),
        (413, "too_large"),
        (422, "invalid_request"),
        (429, "rate_limit"),
        (500, "api"),
        (502, "api"),
        (503, "overloaded"),
        (504, "timeout"),
        (529, "overloaded"),
    ],
)
def test_a_status_stands_for_a_kind(status: int, kind: Kind) -> None:
    assert kind_of_status(status) == kind


def test_what_is_given_overrides_the_defaults_of_one_error_only() -> None:
    error = UpstreamRejected(
        "too long", status=413, code="c", param="p", details={"a": 1}, retry_after=2.0, provider="up"
    )
    assert (error.status, error.kind, error.code) == (413, "too_large", "c")
    assert (error.param, error.details, error.retry_after) == ("p", {"a": 1}, 2.0)
    assert (error.provider, error.upstream_status) == ("up", None)
    assert UpstreamRejected("x").status == 400


@pytest.mark.parametrize(
    ("error", "status", "kind", "message", "details"),
    [
        (
            ProviderNotAvailable.unknown("not.found"),
            404,
            "not_found",
            "Requested provider not.found not found in provider registry",
            {"provider": "not.found"},
        ),
        (
            ProviderNotAvailable.disabled("glm"),
            403,
            "permission",
            "Requested provider glm is disabled",
            {"provider": "glm", "reason": "disabled"},
        ),
        (
            ProviderNotAvailable.unhealthy("glm", 7.5),
            503,
            "overloaded",
            "Requested provider glm is not available (health check failed)",
            {"provider": "glm", "reason": "unhealthy"},
        ),
        (
            ProviderNotAvailable.not_allowed("glm", "openai"),
            403,
            "permission",
            "No route has a target that the allow list permits (glm,openai); <**clear**> clears the list",
            {"provider": "glm,openai", "reason": "not_allowed"},
        ),
    ],
)
def test_a_target_asked_for_by_name_says_why_it_cannot_be_used(
    error: ProviderNotAvailable, status: int, kind: Kind, message: str, details: dict[str, str]
) -> None:
    assert (error.status, error.kind, error.message) == (status, kind, message)
    assert (error.code, error.details) == ("PROVIDER_NOT_AVAILABLE", details)


def test_an_unhealthy_target_says_when_it_may_be_back() -> None:
    assert ProviderNotAvailable.unhealthy("glm", 7.5).retry_after == 7.5
    assert ProviderNotAvailable.unhealthy("glm").retry_after is None
