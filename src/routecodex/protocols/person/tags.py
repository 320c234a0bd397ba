"""Whether a body is worth a closer look: a search through bytes that every request goes through."""

from __future__ import annotations

import re

_OPENING = b"<**"
_SUSPECT = re.compile(rb"\\u00(?:3[cC](?:\*|\\u002[aA])|2[aA])")
_ANY_SPELLING = re.compile(rb"(?:<|\\u003[cC])(?:\*|\\u002[aA]){2}")


def may_hold_tags(body: bytes) -> bool:
    """Whether `<**` may stand in some string of the JSON, however it is escaped; never a wrong no."""
    if _OPENING in body:
        return True
    # Many encoders escape `<`, none a star: one search for what they have in common is enough for nearly all.
    return _SUSPECT.search(body) is not None and _ANY_SPELLING.search(body) is not None
