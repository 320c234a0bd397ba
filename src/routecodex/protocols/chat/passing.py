"""A chat request bound for a chat upstream: the bytes it came as, but for what must change."""

from __future__ import annotations

from msgspec import Raw

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.view import View
from routecodex.protocols.codec import Aim, Encoded, Inbound
from routecodex.protocols.notices import Notices
from routecodex.protocols.splice import with_model
from routecodex.wire import json


def rewrite(inbound: Inbound, aim: Aim) -> Encoded:
    """The request for this upstream; untouched fields stay byte for byte."""
    view: View = inbound.wire
    dialect, wire = aim.dialect, view.fields
    if wire.n is not None and wire.n > 1 and not dialect.n:
        raise BadRequest("n: this upstream gives one answer at a time", param="n", code="unsupported_value")
    unasked = not dialect.stream_usage and wire.stream_options is not None
    renamed = dialect.max_tokens_field == "max_tokens" and wire.max_completion_tokens is not None
    if not (dialect.unsupported or renamed or unasked):
        outline = inbound.keys() if inbound.outline else b""
        return Encoded(with_model(inbound.body, aim.model, named=wire.model, outline=outline))
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
