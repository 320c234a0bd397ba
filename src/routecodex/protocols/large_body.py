"""Edits a large body without decoding it.

Whether a body is worth a closer look: a search through bytes that every request goes through.

Long texts of large requests, left out of the view that is read of them, and found again.

Where one was left out, a mark stands in the view that tells where it begins in `WireRequest.uncut`. A
request in which a text of the client begins like a mark is read as it is.

A body with its model replaced and every other value byte for byte as it came.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

from routecodex.protocols.message_features import TextValue, full_text
from routecodex.wire import json, outline, scan

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
    if scan.contains(body, TAG_OPENING):
        return True
    return scan.contains(body, _ESCAPE) and any(
        beginning in body and opening.search(body) for beginning, opening in _ESCAPED_OPENINGS
    )


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
    return Raw(uncut[start : scan.string_end(uncut, start + 1) + 1])


_COPIED: Final = 32_768
"""Bytes from which on one copy less is worth more than it costs to go without."""
_MODEL_KEY: Final = b'"model"'

_ESCAPED: Final = b"\\u006"
"""How every letter of `model` looks when escaped: a key may be spelled that way too."""
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")')


def replace_model(body: bytes, model: str, *, named: str | None = None, outline: bytes = b"") -> bytes:
    """The body for this model; where its key can occur but once, even the white space stays.

    `named` is the model it names, where that is known: a body that names the right one is not searched. In
    its `outline`, where there is one, are all its keys.
    """
    if named == model:
        return body
    at = alone = scan.find(body, _MODEL_KEY, 0)
    value = json.encode(model)
    keys = body
    if outline:
        keys, alone = outline, scan.find(outline, _MODEL_KEY, 0)
    if at >= 0 and scan.find(keys, _MODEL_KEY, alone + 7) < 0 and not scan.contains(keys, _ESCAPED):
        match = _VALUE.match(body, at + 7)
        if match is not None and match[1] == value:
            return body
        if match is not None:
            start, end = match.span(1)
            if len(body) < _COPIED:
                return body[:start] + value + body[end:]
            whole = memoryview(body)
            return b"".join((whole[:start], value, whole[end:]))
    fields = json.read_fields(body)
    if bytes(fields.get("model", b"")) == value:
        return body
    fields["model"] = Raw(value)
    return json.encode(fields)
