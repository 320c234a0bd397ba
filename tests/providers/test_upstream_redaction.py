from __future__ import annotations

import base64

import pytest

from routecodex.canon.errors import UpstreamRejected
from routecodex.providers.http import origin_of
from routecodex.providers.upstream import SecretRedactor, configured_secrets

DIRECT = origin_of("https://api.example.com", environ={})
PROXIED = origin_of(
    "https://api.example.com", environ={"https_proxy": "http://ann:pass%20word@proxy.example.com:3128"}
)


def named(name: str, value: str) -> set[str]:
    """Return the secrets of a value under this name, as a header and in the query."""
    header = set(configured_secrets([], headers={name: value}, query={}, origin=DIRECT))
    assert header == set(configured_secrets([], headers={}, query={name: value}, origin=DIRECT))
    return header


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("cf-aig-authorization", "Bearer tok-en", "tok-en"),
        ("Proxy-Authorization", "Basic YTpi", "YTpi"),
        ("Ocp-Apim-Subscription-Key", "0123abcd", "0123abcd"),
        ("x-auth", "hunter2", "hunter2"),
        ("Cookie", "sid=1", "sid=1"),
        ("code", "pc-0123456789", "pc-0123456789"),
    ],
)
def test_a_value_that_may_be_a_secret_is_one(name: str, value: str, secret: str) -> None:
    assert named(name, value) == {secret}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-title", "app"),
        ("X-Title", "My great application"),
        ("HTTP-Referer", "https://example.com"),
        ("api-version", "2026-10-21"),
        ("anthropic-beta", "interleaved-thinking-2025-05-14"),
        ("x-mode", "fast"),
    ],
)
def test_what_everybody_may_know_or_is_too_short_is_none(name: str, value: str) -> None:
    assert named(name, value) == set()


def test_the_password_of_a_proxy_is_a_secret_in_both_its_spellings() -> None:
    sent = base64.b64encode(b"ann:pass word").decode()
    assert set(configured_secrets(["sk-1"], headers={}, query={}, origin=PROXIED)) == {
        "sk-1",
        sent,
        "pass word",
    }


def test_secrets_are_hidden_in_every_field_of_an_error() -> None:
    error = UpstreamRejected(
        "no sk-secret!", code="c sk-secret", param="p sk-secret", details={"a": ["sk-secret", 1]}
    )
    SecretRedactor(["sk-secret"]).error(error)
    assert (error.message, str(error), error.code, error.param, error.details) == (
        "no ***!",
        "no ***!",
        "c ***",
        "p ***",
        {"a": ["***", 1]},
    )


def test_fields_that_are_not_told_stay_so() -> None:
    error = UpstreamRejected("no")
    SecretRedactor(["sk-secret"]).error(error)
    assert (error.message, error.code, error.param, error.details) == ("no", None, None, None)


def test_a_secret_is_known_as_it_stands_in_a_query() -> None:
    assert SecretRedactor(["a/b c+d"]).text("?key=a%2Fb+c%2Bd&x=a/b c+d") == "?key=***&x=***"


def test_a_secret_within_another_leaves_nothing_of_that() -> None:
    assert SecretRedactor(["secret", "secret-two"]).data(b"secret-two, secret") == b"***, ***"


def test_a_key_too_short_to_keep_a_secret_spoils_no_message() -> None:
    assert SecretRedactor(["", "none", "key"]).text("none of the keys") == "none of the keys"
