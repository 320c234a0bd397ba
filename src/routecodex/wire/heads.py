"""The heads of plain requests and answers: those of which any two parsers think the same.

This is what they promise, and what the tests hold `compile/heads.c` against, which does the same where the
hot path is compiled. There a plain head goes past llhttp. What is not plain is not wrong: llhttp decides.

A plain head is whole, not long, and of visible ASCII. It says in one way how long the body is, keeps the
connection, and asks for nothing else.
"""

from __future__ import annotations

import re
from typing import Final

IN_C: bool = False
"""Whether these are machine code: going past llhttp pays only then."""
LONGEST: int = 8192
"""Bytes of a head from which on it is not plain."""

_MOST: Final = 64
_REQUEST: Final = re.compile(rb"POST (/[!\"$-~]*) HTTP/1\.1\r\n")
_ANSWER: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) [\t -~]*\r\n")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~]*)\r\n")
_ONCE: Final = {
    b"connection": re.compile(rb"(?i:keep-alive)"),
    b"content-length": re.compile(rb"[0-9]{1,15}"),
    b"host": re.compile(rb".*"),
    b"transfer-encoding": re.compile(rb"(?i:chunked)"),
}
"""Headers that may not stand twice, and which values of theirs are plain."""
_NEVER: Final = frozenset({b"expect", b"proxy-connection", b"te", b"trailer", b"upgrade"})
_BODILESS: Final = frozenset({204, 304})
_CHUNKED: Final = -1


def request(data: bytes, names: dict[bytes, str], /) -> tuple[bytes, dict[str, str], int, int] | None:
    """Target and headers of the POST whose plain head begins the data, where its body begins, and its length.

    `names` has spellings of headers in lower case, always the same. No header may stand twice.
    """
    line = _REQUEST.match(data)
    found = line and _fields(data, line.end())
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


def response(data: bytes, /) -> tuple[int, list[tuple[bytes, bytes]], int, int] | None:
    """Status and headers of the answer whose plain head begins the data, where its body begins, its length.

    Names are in lower case; blanks behind a value belong to it. A body in chunks is -1 long.
    """
    line = _ANSWER.match(data)
    found = line and _fields(data, line.end())
    if not line or not found or int(line[1]) in _BODILESS:
        return None
    fields, start = found
    framing = _framing(fields)
    if framing is None or (b"content-length" in framing) is (b"transfer-encoding" in framing):
        return None
    headers = [(name.lower(), value) for name, value in fields]
    return int(line[1]), headers, start, int(framing.get(b"content-length", _CHUNKED))


def _fields(data: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int] | None:
    """The lines of headers that begin there, and where they end, unless they are too many or do not."""
    fields: list[tuple[bytes, bytes]] = []
    while (line := _FIELD.match(data, at)) is not None:
        fields.append((line[1], line[2]))
        at = line.end()
    end = at + 2
    return (fields, end) if data[at:end] == b"\r\n" and end <= LONGEST and len(fields) <= _MOST else None


def _framing(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """What they say of the message as such; None when that is not plain."""
    framing: dict[bytes, bytes] = {}
    for name, value in fields:
        key = name.lower()
        rule = _ONCE.get(key)
        if key in _NEVER or key in framing or (rule is not None and rule.fullmatch(value) is None):
            return None
        if rule is not None:
            framing[key] = value
    return framing
