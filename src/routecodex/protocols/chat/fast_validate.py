"""Validates the messages and tools of a chat request without decoding them.

They are most of a large request, and routing reads only a few of them.

From the sources `fast_validate` returns None and the request is decoded and checked in full. Where the hot
path is compiled, `compile/fast_validate.c` replaces this module; `tests/reference/fast_validate.py`
is the reference it is tested against.
"""

from __future__ import annotations


def fast_validate(outline: bytes, /) -> tuple[bytes, bytes, int, bytes] | None:
    """Validate messages and tools; return the request without both, the messages, their count, the tools.

    The argument is an outline (`wire/outline.py`): its strings are valid. None if there are no messages, if
    one of them may be invalid, or if the request is too unusual to tell; it must be decoded then. The tools
    stay in the request, and the last value is empty, if one of them may be invalid or is not a function that
    the client runs. Other fields are not validated.
    """
    return None
