"""Long texts of large requests, left out of the view that is read of them, and found again.

Where one was left out, a mark stands in the view that tells where it begins in `Inbound.uncut`. A request in
which a text of the client begins like a mark is read as it is.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from routecodex.protocols.person.tags import TAG_OPENING
from routecodex.protocols.words import TextValue, full_text
from routecodex.wire import outline, scan

TextPaths = tuple[tuple[bytes, int], ...]
"""Keys, and how deep the objects lie that may have them (outline.py)."""

_LARGE: Final = 32_768
"""Bytes from which on a view without the long texts takes less time, even with looking for them."""
_SHORTEST: Final = 1024
_MARK: Final = rb'"\u0000'


def elide_texts(body: bytes, places: TextPaths) -> tuple[bytes, bool]:
    """The body without its long texts at these places, and whether it may hold tags.

    The outline is empty when the body has to be read as it is; then nothing is known of tags.
    """
    found = outline.cut(body, places, _SHORTEST, TAG_OPENING) if len(body) >= _LARGE else None
    return (b"", True) if found is None else found


def restore_text(words: TextValue, uncut: bytes) -> TextValue:
    """A text of a view, from where it was left out if it was."""
    if not uncut:
        return words
    if isinstance(words, str):
        return full_text(_original(words[1:], uncut)) if words[:1] == "\0" else words
    view = memoryview(words)
    is_mark = bytes(view[: len(_MARK)]) == _MARK
    return _original(str(view[len(_MARK) : -1], "ascii"), uncut) if is_mark else words


def _original(place: str, uncut: bytes) -> Raw:
    start = int(place)
    return Raw(uncut[start : scan.closing(uncut, start + 1) + 1])
