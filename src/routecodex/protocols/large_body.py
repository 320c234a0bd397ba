"""Edits a large body without decoding it.

The typed view of a large request is read from an outline without its long texts. In the place of each is a
mark with its offset in `WireRequest.original`. A request with a text that begins like a mark is read in full.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

from routecodex.protocols.message_features import TextValue, full_text
from routecodex.wire import json, outline, scan

TAG_OPENING = b"<**"
"""The beginning of every instruction tag."""
_ESCAPE = b"\\u00"

_ESCAPED_OPENINGS = (
    (b"<", re.compile(rb"<(?:\*|\\u002[aA]){2}")),
    (b"\\u003", re.compile(rb"\\u003[cC](?:\*|\\u002[aA]){2}")),
)
"""First bytes and pattern of an escaped tag opening; one pattern for both would be tried at every byte."""


def may_hold_tags(body: bytes) -> bool:
    """Whether some string of the JSON may have `<**`, escaped or not; False is always right."""
    if scan.contains(body, TAG_OPENING):
        return True
    return scan.contains(body, _ESCAPE) and any(
        beginning in body and opening.search(body) for beginning, opening in _ESCAPED_OPENINGS
    )


TextPaths = tuple[tuple[bytes, int], ...]
"""Keys, and the depth of the objects that may have them (wire/outline.py)."""

_LARGE: Final = 32_768
"""Bytes from which reading an outline is faster than reading the whole body."""
_SHORTEST: Final = 1024
_MARK: Final = rb'"\u0000'


def elide_texts(body: bytes, places: TextPaths) -> tuple[bytes, bool]:
    """Return an outline of the body without its long texts at these places, and whether it may have tags.

    The outline is empty if the body must be read in full; then it may have tags.
    """
    found = outline.cut(body, places, _SHORTEST, TAG_OPENING) if len(body) >= _LARGE else None
    return (b"", True) if found is None else found


def restore_text(text: TextValue, original: bytes) -> TextValue:
    """Return a text of a view; in place of a mark, the text at its offset."""
    if not original:
        return text
    if isinstance(text, str):
        return full_text(_text_at(text[1:], original)) if text[:1] == "\0" else text
    view = memoryview(text)
    is_mark = bytes(view[: len(_MARK)]) == _MARK
    return _text_at(str(view[len(_MARK) : -1], "ascii"), original) if is_mark else text


def _text_at(offset: str, original: bytes) -> Raw:
    start = int(offset)
    return Raw(original[start : scan.string_end(original, start + 1) + 1])


_COPIED: Final = 32_768
"""Bytes from which joining views is faster than copying slices."""
_MODEL_KEY: Final = b'"model"'

_ESCAPED: Final = b"\\u006"
"""The beginning of every escaped letter of `model`: JSON allows escapes in keys."""
_COLON: Final = 0x3A
_SPACE: Final = 0x20
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")')


def replace_model(body: bytes, model: str, *, named: str | None = None, outline: bytes = b"") -> bytes:
    """Return the body with this model; all other bytes stay if the key `model` can occur only once.

    `named` is the model in the body, if known: a body with the right one is not searched. `outline` has all
    keys of the body, if there is one.
    """
    if named == model:
        return body
    at = alone = scan.find(body, _MODEL_KEY, 0)
    value = json.encode(model)
    keys = body
    if outline:
        keys, alone = outline, scan.find(outline, _MODEL_KEY, 0)
    if at >= 0 and scan.find(keys, _MODEL_KEY, alone + 7) < 0 and not scan.contains(keys, _ESCAPED):
        start = _value_start(body, at + 7)
        old = b"" if named is None else json.encode(named)
        # A name is usually written as this encoder writes it; the pattern reads every other way.
        if old and body[at + 7] == _COLON and body.startswith(old, start):
            return _replaced(body, start, start + len(old), value)
        match = _VALUE.match(body, at + 7)
        if match is not None and match[1] == value:
            return body
        if match is not None:
            start, end = match.span(1)
            return _replaced(body, start, end, value)
    fields = json.read_fields(body)
    if bytes(fields.get("model", b"")) == value:
        return body
    fields["model"] = Raw(value)
    return json.encode(fields)


def _value_start(body: bytes, after: int) -> int:
    """Return where the value behind a key starts, if at most one space is before it."""
    start = after + 1
    return start + 1 if start < len(body) and body[start] == _SPACE else start


def _replaced(body: bytes, start: int, end: int, value: bytes) -> bytes:
    if len(body) < _COPIED:
        return body[:start] + value + body[end:]
    whole = memoryview(body)
    return b"".join((whole[:start], value, whole[end:]))
