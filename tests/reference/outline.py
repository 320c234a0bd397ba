"""Reference of `compile/outline.c` in Python: cuts the long texts out of a body."""

from __future__ import annotations

import re

from routecodex.wire import scan

_TOKEN = re.compile(
    rb'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|(?P<unit>u[0-9A-Fa-f]{4})))*")'
    rb"|(?P<opening>[\[{])|(?P<closing>[\]}])|[^\[\]{}\"\\]+"
)

_PAIRED = re.compile(rb'(?:[^"\\]|\\[^u]|\\u(?![dD][89a-fA-F])....|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*')
"""Text without an unpaired surrogate."""

_NUMERIC_ESCAPE = re.compile(rb'"(?:[^"\\]|\\(?!u00).)*\\u00', re.DOTALL)
"""Text with a numeric escape of one of the first 256 characters."""
_COLON = re.compile(rb"[\x00-\x20]*:[\x00-\x20]*")
_MARK = rb'"\u0000'
_MAX_DEPTH = 60


def cut(
    body: bytes, places: tuple[tuple[bytes, int], ...], shortest: int, opening: bytes, /
) -> tuple[bytes, bool] | None:
    """Replace long strings of a JSON body by marks; also return whether `opening` may occur in the body."""
    if scan.find_invalid_utf8(body) >= 0:
        return None
    may_open = opening in body
    pieces: list[bytes] = []
    nested = b""
    at = copied = 0
    key = key_end = 0
    while at < len(body):
        token = _TOKEN.match(body, at)
        if token is None:
            return None
        end = token.end()
        if token["string"]:
            if body.startswith(_MARK, at) or not _PAIRED.fullmatch(body, at + 1, end - 1):
                return None
            may_open = may_open or _NUMERIC_ESCAPE.match(body, at) is not None
            is_value = _COLON.fullmatch(body, key_end, at) is not None
            if end - at >= shortest and is_value and _is_in_place(body[key:key_end], nested, places):
                pieces += (body[copied:at], b'%b%d"' % (_MARK, at))
                copied = end
            key, key_end = at, end
        elif token["opening"]:
            nested += token["opening"]
            if len(nested) > _MAX_DEPTH:
                return None
        elif token["closing"]:
            if not nested:
                return None
            nested = nested[:-1]
        at = end
    if nested:
        return None
    return b"".join((*pieces, body[copied:])) if pieces else body, may_open


def _is_in_place(key: bytes, nested: bytes, places: tuple[tuple[bytes, int], ...]) -> bool:
    depth = len(nested)
    return nested == (b"{[" * depth)[:depth] and (key[1:-1], depth) in places
