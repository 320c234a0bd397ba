"""Cuts the long texts out of a large body: decoding the rest takes a fraction of the time.

From the sources `cut` returns None and every body is read in full, because the search in Python takes longer
than it saves. Where the hot path is compiled, `compile/outline.c` takes the place of this module.
The tests compare the C with `tests/reference/outline.py`.
"""

from __future__ import annotations


def cut(
    body: bytes, places: tuple[tuple[bytes, int], ...], shortest: int, opening: bytes, /
) -> tuple[bytes, bool] | None:
    """Replace long strings of a JSON body by marks; also return whether `opening` may occur in the body.

    A mark is a string of NUL and the offset at which the original string starts. Strings of at least
    `shortest` bytes (with quotes) are replaced where `places` has their key and the depth of their object.
    Depth counts objects and lists nested in turn: 1 is the body itself, 3 an object in a list of it, 5 an
    object in a list of that. The body itself is returned if nothing was replaced.

    `opening` may occur if it does, or if one of the first 256 characters is written as a numeric escape.

    Every string is validated: its UTF-8, its escapes, its surrogate pairs. None if one of them is not valid
    or starts like a mark, or if brackets do not balance or nest deeper than 60: the caller reads the body in
    full then.
    """
    return None
