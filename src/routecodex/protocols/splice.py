"""A body with its model replaced and every other value byte for byte as it came."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

from routecodex.wire import json, scan

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
    if at >= 0 and scan.find(keys, _MODEL_KEY, alone + 7) < 0 and not scan.holds(keys, _ESCAPED):
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
