"""A chat request bound for a chat upstream: the bytes it came as, but for what must change."""

from __future__ import annotations

import re

from msgspec import Raw

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import Aim, Encoded, Inbound
from routecodex.protocols.notices import Notices
from routecodex.wire import json

_SPLICED = 32_768
_MODEL_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""How every letter of `model` looks when escaped: a key may be spelled that way too."""
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")')


def rewrite(inbound: Inbound, aim: Aim) -> Encoded:
    """The request for this upstream; untouched fields stay byte for byte."""
    dialect, wire = aim.dialect, inbound.wire
    if wire.n is not None and wire.n > 1 and not dialect.n:
        raise BadRequest("n: this upstream gives one answer at a time", param="n", code="unsupported_value")
    unasked = not dialect.stream_usage and wire.stream_options is not None
    renamed = dialect.max_tokens_field == "max_tokens" and wire.max_completion_tokens is not None
    if not (dialect.unsupported or renamed or unasked):
        return Encoded(with_model(inbound.body, aim.model))
    fields = json.read_fields(inbound.body)
    notices = Notices()
    if renamed:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    if unasked:
        # The relay counts for an upstream that cannot be asked to.
        del fields["stream_options"]
    for field in dialect.unsupported:
        if fields.pop(field, None) is not None:
            notices.dropped(field, "this upstream refuses it")
    fields["model"] = Raw(json.encode(aim.model))
    return Encoded(json.encode(fields), notices.lines())


def with_model(body: bytes, model: str) -> bytes:
    """The body with its top-level model replaced, every other value as it came."""
    # Past some size it costs less to find the fields than to make sure that a key occurs only once.
    at = body.find(_MODEL_KEY) if len(body) <= _SPLICED else -1
    if at >= 0 and body.find(_MODEL_KEY, at + 7) < 0 and _ESCAPED not in body:
        value = _VALUE.match(body, at + 7)
        if value is not None:
            return body[: value.start(1)] + json.encode(model) + body[value.end(1) :]
    fields = json.read_fields(body)
    fields["model"] = Raw(json.encode(model))
    return json.encode(fields)
