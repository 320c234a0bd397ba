from __future__ import annotations

import pytest

from routecodex.canon.errors import BadRequest, ConfigError
from routecodex.providers.http import origin_of
from routecodex.providers.http.client import Headers, encode_head

ORIGIN = origin_of("http://api.test", environ={})


def head(headers: Headers, *, method: bytes = b"POST", path: bytes = b"/x", length: int = 0) -> bytes:
    return encode_head(ORIGIN, headers, method=method, path=path, length=length)


@pytest.mark.parametrize(
    "headers", [[(b"A", b"1"), (b"b", b"2")], b"A: 1\r\nb: 2\r\n"], ids=["pairs", "ready-made"]
)
def test_both_forms_of_headers_give_the_same_bytes(headers: Headers) -> None:
    assert head(headers) == (
        b"POST /x HTTP/1.1\r\nhost: api.test\r\naccept-encoding: identity\r\ncontent-length: 0\r\n"
        b"A: 1\r\nb: 2\r\n\r\n"
    )


def test_callers_own_host_and_accept_encoding_stand() -> None:
    given = [(b"Host", b"other.test"), (b"Accept-Encoding", b"gzip")]
    assert head(given, length=3) == (
        b"POST /x HTTP/1.1\r\ncontent-length: 3\r\nHost: other.test\r\nAccept-Encoding: gzip\r\n\r\n"
    )


def test_get_without_a_body_has_no_length() -> None:
    assert b"content-length" not in head(b"", method=b"GET")
    assert b"content-length: 1\r\n" in head(b"", method=b"GET", length=1)


@pytest.mark.parametrize("path", [b"/a b", b"/a\r\nx: y", b"/a\x00", b"/a\x7f"])
def test_path_that_would_break_the_request_line_is_refused(path: bytes) -> None:
    with pytest.raises(BadRequest, match="space or control"):
        head(b"", path=path)


@pytest.mark.parametrize("value", [b"key\n", b"a\r\nx: y", b"a\rb"])
def test_line_break_in_a_header_is_refused_without_showing_its_value(value: bytes) -> None:
    with pytest.raises(ConfigError, match="authorization") as caught:
        head([(b"x", b"1"), (b"authorization", value)])
    assert repr(value)[2:-1] not in caught.value.message


@pytest.mark.parametrize("block", [b"a: b", b"\r\n", b"a: b\r\n\r\n", b"a: b\r\n\r\nGET / HTTP/1.1\r\n"])
def test_broken_ready_made_block_is_refused(block: bytes) -> None:
    with pytest.raises(ConfigError, match="CR LF"):
        head(block)


@pytest.mark.parametrize("name", [b"Content-Length", b"transfer-encoding"])
def test_framing_headers_cannot_be_given(name: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot be configured"):
        head([(name, b"5")])
