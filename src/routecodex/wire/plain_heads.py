"""Parses plain heads of requests and responses: those that all HTTP parsers read in the same way.

From the sources both functions return None and llhttp parses every head. Where the hot path is compiled,
`compile/plain_heads.c` takes the place of this module and parses plain heads without calling back for every
header. The tests compare the C with `tests/reference/plain_heads.py`.

A plain head is complete, at most `MAX_BYTES` long and of visible ASCII. It has at most 64 headers, states the
length of the body in exactly one way, keeps the connection alive and has no `Expect`, `Upgrade`, `TE`,
`Trailer` or `Proxy-Connection`. A head that is not plain is not an error: llhttp decides about it.
"""

from __future__ import annotations

MAX_BYTES: int = 8192
"""Length of the longest plain head. Not final, or mypyc would inline the value."""


def parse_request(data: bytes, names: dict[bytes, str], /) -> tuple[bytes, dict[str, str], int, int] | None:
    """Parse the plain head of a POST at the start of the data: target, headers, body offset, body length.

    Header names are lower case; `names` maps known spellings to shared strings, and must be the same dict in
    every call. None if the head is not plain, has a header twice, or does not state a `Content-Length`.
    """
    return None


def parse_response(data: bytes, /) -> tuple[int, list[tuple[bytes, bytes]], int, int] | None:
    """Parse a plain response head at the start of the data: status, headers, body offset, body length.

    Header names are lower case; values keep trailing blanks. The length of a chunked body is -1. None if the
    head is not plain, or its status is below 200 or one that has no body (204, 304).
    """
    return None
