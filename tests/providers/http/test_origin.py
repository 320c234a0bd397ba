from __future__ import annotations

import ssl

import pytest

from routecodex.canon.errors import ConfigError
from routecodex.providers.http import TlsOptions, origin_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.test/v1", ("http", "example.test", 80, b"example.test")),
        ("https://Example.test:443/", ("https", "example.test", 443, b"example.test")),
        ("https://example.test:8443", ("https", "example.test", 8443, b"example.test:8443")),
        ("http://[::1]:9000/v1", ("http", "::1", 9000, b"[::1]:9000")),
        ("http://model_server:80", ("http", "model_server", 80, b"model_server")),
        ("http://bücher.test", ("http", "xn--bcher-kva.test", 80, b"xn--bcher-kva.test")),
    ],
)
def test_base_url_is_taken_apart(url: str, expected: tuple[str, str, int, bytes]) -> None:
    origin = origin_of(url, environ={})
    assert (origin.scheme, origin.host, origin.port, origin.host_header) == expected
    assert (origin.tls is not None) == (origin.scheme == "https")


@pytest.mark.parametrize(
    "url", ["example.test", "ftp://example.test", "http://", "http://a b/", "http://x:99999", "http://x:y"]
)
def test_unusable_base_url_is_a_config_error_naming_it(url: str) -> None:
    with pytest.raises(ConfigError, match="base URL"):
        origin_of(url, environ={})


def test_key_in_the_base_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        origin_of("https://user:s3cret@example.test/v1", environ={})
    assert "s3cret" not in caught.value.message


def test_equal_base_urls_give_equal_origins_that_share_connections() -> None:
    one, two = (origin_of(f"https://example.test/{path}", environ={}) for path in "ab")
    assert (one, hash(one)) == (two, hash(two))


def test_certificates_are_verified_unless_switched_off() -> None:
    strict = origin_of("https://example.test", environ={}).tls
    lax = origin_of("https://example.test", tls=TlsOptions(verify=False), environ={}).tls
    assert strict is not None
    assert lax is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
