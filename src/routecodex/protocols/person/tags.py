"""Whether a body is worth a closer look: a search through bytes that every request goes through."""

from __future__ import annotations

import re

from routecodex.wire import scan

TAG_OPENING = b"<**"
"""How every tag begins."""
_ESCAPE = b"\\u00"

_ESCAPED_OPENINGS = (
    (b"<", re.compile(rb"<(?:\*|\\u002[aA]){2}")),
    (b"\\u003", re.compile(rb"\\u003[cC](?:\*|\\u002[aA]){2}")),
)
"""How a tag may open, behind what it then begins with: one pattern for both would be tried at every byte."""


def may_hold_tags(body: bytes) -> bool:
    """Whether `<**` may stand in some string of the JSON, however it is escaped; never a wrong no."""
    if scan.holds(body, TAG_OPENING):
        return True
    return scan.holds(body, _ESCAPE) and any(
        beginning in body and opening.search(body) for beginning, opening in _ESCAPED_OPENINGS
    )
