"""Reference of `compile/plain_heads.c` in Python: parses plain heads of requests and responses."""

from __future__ import annotations

import re
from typing import Final

MAX_BYTES: int = 8192

_MAX_HEADERS: Final = 64
_REQUEST_LINE: Final = re.compile(rb"POST (/[!\"$-~]*) HTTP/1\.1\r\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) [\t -~]*\r\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~]*)\r\n")
_ONCE: Final = {
    b"connection": re.compile(rb"(?i:keep-alive)"),
    b"content-length": re.compile(rb"[0-9]{1,15}"),
    b"host": re.compile(rb".*"),
    b"transfer-encoding": re.compile(rb"(?i:chunked)"),
}
"""Headers that must not be repeated, with the values that are plain."""
_NEVER: Final = frozenset({b"expect", b"proxy-connection", b"te", b"trailer", b"upgrade"})
_BODILESS: Final = frozenset({204, 304})
_CHUNKED: Final = -1


def parse_request(data: bytes, names: dict[bytes, str], /) -> tuple[bytes, dict[str, str], int, int] | None:
    """Parse the plain head of a POST at the start of the data: target, headers, body offset, body length."""
    line = _REQUEST_LINE.match(data)
    found = line and _headers(data, line.end())
    if not line or not found:
        return None
    fields, start = found
    framing = _framing(fields)
    if framing is None or b"host" not in framing or b"transfer-encoding" in framing:
        return None
    headers = {
        names.get(name) or name.decode("ascii").lower(): value.decode("ascii").rstrip(" \t")
        for name, value in fields
    }
    if len(headers) < len(fields) or b"content-length" not in framing:
        return None
    return line[1], headers, start, int(framing[b"content-length"])


def parse_response(data: bytes, /) -> tuple[int, list[tuple[bytes, bytes]], int, int] | None:
    """Parse a plain response head at the start of the data: status, headers, body offset, body length."""
    line = _STATUS_LINE.match(data)
    found = line and _headers(data, line.end())
    if not line or not found or int(line[1]) in _BODILESS:
        return None
    fields, start = found
    framing = _framing(fields)
    if framing is None or (b"content-length" in framing) is (b"transfer-encoding" in framing):
        return None
    headers = [(name.lower(), value) for name, value in fields]
    return int(line[1]), headers, start, int(framing.get(b"content-length", _CHUNKED))


def _headers(data: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int] | None:
    """Split the header lines from an offset on; None if they do not end or exceed a limit."""
    fields: list[tuple[bytes, bytes]] = []
    while (line := _HEADER.match(data, at)) is not None:
        fields.append((line[1], line[2]))
        at = line.end()
    end = at + 2
    is_plain = data[at:end] == b"\r\n" and end <= MAX_BYTES and len(fields) <= _MAX_HEADERS
    return (fields, end) if is_plain else None


def _framing(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """Pick the headers that frame the message; None if one of them is not plain."""
    framing: dict[bytes, bytes] = {}
    for name, value in fields:
        key = name.lower()
        rule = _ONCE.get(key)
        if key in _NEVER or key in framing or (rule is not None and rule.fullmatch(value) is None):
            return None
        if rule is not None:
            framing[key] = value
    return framing
