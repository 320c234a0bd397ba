"""Byte searches that take the most time on large bodies and streams.

Where the hot path is compiled, `compile/scan.c` replaces this module and does the same.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from struct import Struct

from msgspec import Raw

IN_C: bool = False
"""Whether this module is C. It may only select the cheaper of two paths that have the same result. Not
final, or mypyc would inline the value."""

_STRING_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*')
"""The text of a JSON string between its quotes."""

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
"""The size line of a chunk, without extensions."""

_MEMBER = re.compile(rb'"([^"]*)":(?:"([ !#-\[\]-~]*)"|(0|[1-9][0-9]{0,14})|null)(?=[,}])')
"""A complete plain member of a JSON object."""
_unpack_byte = Struct("B").unpack_from
_BACKSLASH = 92
_COMMA = 44

_PIECE = 8192
"""Bytes decoded at a time: the decoded text fits into the processor's cache."""


def frames_end(run: bytes, at: int, head: bytes, tail: bytes, /) -> int:
    """Return the end of the run of frames at `at`, each of head, text of a JSON string and tail.

    Without such a frame, with an empty head or a negative offset, return `at`.
    """
    if not head or at < 0:
        return at
    skip, end = len(head), len(tail)
    while run[at : at + skip] == head:
        quote = run.find(b'"', at + skip)
        if quote < 0:
            break
        if run[quote - 1] == _BACKSLASH:
            quote = _text_end(run, at + skip)
        if quote == len(run) or run[quote : quote + end] != tail:
            break
        at = quote + end
    return at


def text_length(text: bytes, /) -> int:
    """Count the bytes that may be text of a JSON string: up to a quote, or to a trailing backslash."""
    return _text_end(text, 0)


def string_end(text: bytes, at: int, /) -> int:
    """Find the quote that closes the string whose text starts at `at`: the first one that is not escaped.

    Return -1 if there is none, or if `at` is outside of the text.
    """
    while at >= 0 and (quote := text.find(b'"', at)) >= 0:
        before = text[at:quote]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return quote
        at = quote + 1
    return -1


def plain_members(
    run: bytes, at: int, names: tuple[bytes, ...], /
) -> tuple[tuple[str | int | None, ...], int]:
    """Read plain members of a JSON object from `at` on; return their values by name, and their end.

    A plain member has one of the names, for the first time, and its value is null, a whole number of up to 15
    digits or an ASCII string without escapes. The first member that is not plain ends them.
    """
    values: dict[bytes, str | int | None] = {}
    begin, end = at, at
    while begin >= 0 and (found := _MEMBER.match(run, min(begin, len(run)))) is not None:
        name, text, number = found.groups()
        if name not in names or name in values:
            break
        values[name] = text.decode() if text is not None else int(number) if number is not None else None
        end = found.end()
        if run[end] != _COMMA:
            break
        begin = end + 1
    return tuple(map(values.get, names)), end


def unchunk(data: bytes, at: int, /) -> tuple[bytes, int]:
    """Return the bodies of the complete plain chunks from `at` on, and the end of these chunks.

    A chunk with an extension is not plain, nor is the last chunk, which is empty.
    """
    bodies: list[bytes] = []
    while at >= 0 and (line := _CHUNK_SIZE.match(data, min(at, len(data)))) is not None:
        begin = line.end()
        end = begin + int(line[1], 16)
        if end == begin or data[end : end + 2] != b"\r\n":
            break
        bodies.append(data[begin:end])
        at = end + 2
    return b"".join(bodies), at


def contains(body: bytes, needle: bytes, /) -> bool:
    """Return whether the needle occurs in the body."""
    # One byte is found fastest, by memchr; CPython searches longer needles twice as fast from the end.
    return needle[:1] in body and body.rfind(needle) >= 0


def find(body: bytes, needle: bytes, at: int, /) -> int:
    """Return the first offset of the needle from `at` on; -1 if there is none or `at` is outside."""
    return body.find(needle, at) if at >= 0 else -1


def find_first(body: bytes, needles: tuple[bytes, ...], at: int, /) -> int:
    """Return the first offset of any needle from `at` on; -1 if there is none or `at` is outside."""
    first = -1
    for needle in needles:
        found = find(body, needle, at) if first < 0 else body.find(needle, at, first + len(needle) - 1)
        if found >= 0:
            first = found
    return first


def find_invalid_utf8(body: bytes, /) -> int:
    """Return the offset of the first invalid UTF-8 character; -1 if all are valid."""
    if body.isascii():
        return -1
    at = 0
    try:
        while len(body) - at > _PIECE:
            # A character that crosses the end of a piece belongs to the next piece.
            at += utf_8_decode(body[at : at + _PIECE])[1]
        body[at:].decode()
    except UnicodeDecodeError as exc:
        return at + exc.start
    return -1


def first_byte(value: Raw | bytes, /) -> int:
    """Return the first byte of a value; raise an error if it is empty."""
    return _unpack_byte(value)[0]  # type: ignore[no-any-return]  # "B" unpacks to an int


def _text_end(run: bytes, start: int) -> int:
    text = _STRING_TEXT.match(run, start)
    assert text is not None
    return text.end()
