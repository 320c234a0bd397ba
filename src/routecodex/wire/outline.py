"""A large body without its long texts: what is left is decoded in a fraction of the time.

This is what `cut` promises. From the sources it takes longer than it saves, and is not used (`scan.IN_C`);
where the hot path is compiled, `compile/outline.c` does the same in its place.
"""

from __future__ import annotations

import re

from routecodex.wire import scan

_TOKEN = re.compile(
    rb'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|(?P<unit>u[0-9A-Fa-f]{4})))*")'
    rb"|(?P<opening>[\[{])|(?P<closing>[\]}])|[^\[\]{}\"\\]+"
)
_PAIRED = re.compile(rb'(?:[^"\\]|\\[^u]|\\u(?![dD][89a-fA-F])....|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*')
"""Text without half a pair of surrogates that lacks the other one."""
_NUMBERED = re.compile(rb'"(?:[^"\\]|\\(?!u00).)*\\u00', re.DOTALL)
"""A text that has an escape for one of the first 256 characters."""
_COLON = re.compile(rb"[\x00-\x20]*:[\x00-\x20]*")
_MARK = rb'"\u0000'
_DEEPEST = 60


def cut(
    body: bytes, places: tuple[tuple[bytes, int], ...], shortest: int, opening: bytes, /
) -> tuple[bytes, bool] | None:
    """The body with a mark in place of each long string that is a value there: NUL, and where it began.

    And whether `opening` may stand somewhere in it: either it does, or one of the first 256 characters is
    written as an escape with its number.

    Places are keys, and how deep the objects lie that may have them. Objects and lists lie in each other in
    turn: 1 is the body itself, 3 an object in a list of it, 5 one in a list of that.
    Every string is checked: its UTF-8, its escapes, its halves of surrogate pairs. None when one of them is
    not as it should be, or begins like a mark; then nothing is known of the body, but that it has to be read
    as it is. The body itself when nothing in it is that long.
    """
    if scan.not_utf8(body) >= 0:
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
            may_open = may_open or _NUMBERED.match(body, at) is not None
            is_value = _COLON.fullmatch(body, key_end, at) is not None
            if end - at >= shortest and is_value and _is_in_place(body[key:key_end], nested, places):
                pieces += (body[copied:at], b'%b%d"' % (_MARK, at))
                copied = end
            key, key_end = at, end
        elif token["opening"]:
            nested += token["opening"]
            if len(nested) > _DEEPEST:
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
