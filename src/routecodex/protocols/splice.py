"""A body with its model replaced and every other value byte for byte as it came."""

from __future__ import annotations

import re

from msgspec import Raw

from routecodex.wire import json

_SPLICED = 32_768
_MODEL_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""How every letter of `model` looks when escaped: a key may be spelled that way too."""
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")')


def with_model(body: bytes, model: str, *, named: str | None = None) -> bytes:
    """The body for this model; a small one keeps even its white space.

    `named` is the model it names, where that is known: a body that names the right one is not searched.
    """
    if named == model:
        return body
    # Past some size it costs less to find the fields than to make sure that a key occurs only once.
    at = body.find(_MODEL_KEY) if len(body) <= _SPLICED else -1
    value = json.encode(model)
    if at >= 0 and body.find(_MODEL_KEY, at + 7) < 0 and _ESCAPED not in body:
        match = _VALUE.match(body, at + 7)
        if match is not None and match[1] == value:
            return body
        if match is not None:
            return body[: match.start(1)] + value + body[match.end(1) :]
    fields = json.read_fields(body)
    if bytes(fields.get("model", b"")) == value:
        return body
    fields["model"] = Raw(value)
    return json.encode(fields)
