from __future__ import annotations

import pytest

from routecodex.server.http import HttpRequest


def request(target: bytes, **headers: str) -> HttpRequest:
    return HttpRequest("GET", target, headers=headers)


@pytest.mark.parametrize(
    ("target", "raw_path", "path", "query"),
    [
        (b"/v1/models", b"/v1/models", "/v1/models", ""),
        (b"/a?b=c?d", b"/a", "/a", "b=c?d"),
        (b"/a%20b/%E4%BD%A0", b"/a%20b/%E4%BD%A0", "/a b/你", ""),
        (b"/v1beta/models/m:generateContent?alt=sse", b"/v1beta/models/m:generateContent",
         "/v1beta/models/m:generateContent", "alt=sse"),
        (b"*", b"*", "*", ""),
        (b"upstream.test:443", b"upstream.test:443", "upstream.test:443", ""),
        (b"http://h.test/p?q", b"/p", "/p", "q"),
        (b"http://h.test", b"/", "/", ""),
        (b"http://h.test?q", b"/", "/", "q"),
    ],
)  # fmt: skip
def test_target_is_split_and_decoded(target: bytes, raw_path: bytes, path: str, query: str) -> None:
    parsed = request(target)
    assert (parsed.target, parsed.raw_path, parsed.path, parsed.query) == (target, raw_path, path, query)


def test_absolute_target_decides_the_host() -> None:
    assert request(b"http://user@right.test:80/p", host="wrong.test").headers == {"host": "right.test:80"}


@pytest.mark.parametrize("target", [b"/%", b"/%a", b"/%zz", b"/%ff", b"/\xff"])
def test_path_that_does_not_decode_is_a_value_error(target: bytes) -> None:
    with pytest.raises(ValueError):
        request(target)


def test_query_parameters_are_decoded_and_the_first_one_counts() -> None:
    parsed = request(b"/?alt=sse&key=a%2Bb+c&alt=json&flag&n%61me=x")
    names = ["alt", "key", "flag", "name", "missing"]
    assert [parsed.query_param(name) for name in names] == ["sse", "a+b c", "", "x", None]


def test_request_without_a_query_has_no_parameters() -> None:
    assert request(b"/").query_param("alt") is None


def test_representation_shows_no_secrets() -> None:
    parsed = request(b"/v1/x?key=hidden", authorization="Bearer hidden")
    assert repr(parsed) == "<HttpRequest GET /v1/x>"
