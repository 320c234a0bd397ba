"""The scans that take longest on large bodies and streams: bytes in, a number or a yes out.

This is what they promise, and what runs from the sources. Where the hot path is compiled, `compile/scan.c`
does the same in their place.
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
"""What a JSON string may hold between its quotes."""

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
"""The line before a chunk, without extensions."""

_MEMBER = re.compile(rb'"([^"]*)":(?:"([ !#-\[\]-~]*)"|(0|[1-9][0-9]{0,14})|null)(?=[,}])')
"""A member of a JSON object that is plain, and whole."""
_unpack_byte = Struct("B").unpack_from
_BACKSLASH = 92
_COMMA = 44

_PIECE = 8192
"""Bytes of a text that are looked at together: what they decode to stays in the processor's cache."""


def frames_end(run: bytes, at: int, head: bytes, tail: bytes, /) -> int:
    """Where the frames end that begin there, each of head, inside of a JSON string, tail; there if none do.

    There is no frame without a head, and none that begins before the first byte.
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
    """How many bytes of the text may stand inside a JSON string: up to a quote, or to a stray backslash."""
    return _text_end(text, 0)


def string_end(text: bytes, at: int, /) -> int:
    """Where the string closes whose inside begins there: at the first quote that is not escaped.

    -1 if it does not, or begins before the first byte or behind the last.
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
    """The values of the plain members of a JSON object from there on, by these names, and where they end.

    What has another name is not plain, or comes a second time, or has a value other than null, a whole number
    of up to 15 digits, or a string of ASCII without escapes. Names are of such characters too.
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
    """What the plain chunks hold that begin there and are here wholly, and where they end.

    A chunk with an extension is not plain, and neither is the last one, which is empty. None begins before
    the first byte, or behind the last.
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
    """Whether the needle stands anywhere in the body."""
    # A single byte is found in no time; from the end the rest is found twice as fast as from the beginning.
    return needle[:1] in body and body.rfind(needle) >= 0


def find(body: bytes, needle: bytes, at: int, /) -> int:
    """Where the needle stands first, from there on; -1 when that is nowhere, or outside of the body."""
    return body.find(needle, at) if at >= 0 else -1


def find_first(body: bytes, needles: tuple[bytes, ...], at: int, /) -> int:
    """Where the first of the needles stands, from there on; -1 when none does, or outside of the body."""
    first = -1
    for needle in needles:
        found = find(body, needle, at) if first < 0 else body.find(needle, at, first + len(needle) - 1)
        if found >= 0:
            first = found
    return first


def find_invalid_utf8(body: bytes, /) -> int:
    """Where the first character begins that is none in UTF-8; -1 when all are."""
    if body.isascii():
        return -1
    at = 0
    try:
        while len(body) - at > _PIECE:
            # A character that a piece cuts in two is left for the next one.
            at += utf_8_decode(body[at : at + _PIECE])[1]
        body[at:].decode()
    except UnicodeDecodeError as exc:
        return at + exc.start
    return -1


def first_byte(value: Raw | bytes, /) -> int:
    """What a value begins with; one that is empty has no sign, and is refused."""
    return _unpack_byte(value)[0]  # type: ignore[no-any-return]  # the format is that of a byte


def _text_end(run: bytes, start: int) -> int:
    text = _STRING_TEXT.match(run, start)
    assert text is not None
    return text.end()
