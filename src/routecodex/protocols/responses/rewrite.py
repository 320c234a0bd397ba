"""Rewrites a request for a Responses upstream: the model, unsupported fields and foreign reasoning.

All other bytes stay as the client sent them.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.notices import Notices
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.large_body import replace_model
from routecodex.protocols.responses.codex_items import drop_internals, holds_internals
from routecodex.protocols.responses.content import unseal_content
from routecodex.protocols.sealed_signatures import returns_to
from routecodex.wire import json

_SIGNED = b'"encrypted_content"'
_items = Decoder(list[Raw])
_item_fields = Decoder(dict[str, Raw])


class _Signed(Struct):
    type: str = ""
    encrypted_content: str | None = None


_signed = Decoder(_Signed)


def rewrite(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Return the request for an upstream of the same protocol."""
    body = request.body
    notices = Notices()
    unsupported = [name for name in options.dialect.unsupported if f'"{name}"'.encode() in body]
    internals = options.codex_items != "native" and holds_internals(body)
    if unsupported or internals or _SIGNED in body:
        body = _edit_fields(body, options, unsupported=unsupported, notices=notices)
    return EncodedRequest(replace_model(body, options.model), notices.lines())


def _edit_fields(body: bytes, options: EncodeOptions, *, unsupported: list[str], notices: Notices) -> bytes:
    fields = json.read_fields(body)
    changed = options.codex_items != "native" and drop_internals(fields)
    for name in unsupported:
        if fields.pop(name, None) is not None:
            notices.dropped(name, "the upstream does not take it")
            changed = True
    value = fields.get("input")
    if value is not None and bytes(memoryview(value)[:1]) == b"[":
        items = _returnable_items(_items.decode(value), options, notices)
        if items is not None:
            fields["input"] = Raw(json.encode(items))
            changed = True
    return json.encode(fields) if changed else body


def _returnable_items(items: list[Raw], options: EncodeOptions, notices: Notices) -> list[Raw] | None:
    """Return the items that may go to this upstream, or None if all may go as they are."""
    returnable: list[Raw] = []
    changed = False
    for item in items:
        data = bytes(item)
        if _SIGNED not in data or (new := _returnable(data, options)) is data:
            returnable.append(item)
            continue
        changed = True
        if new is None:
            notices.dropped("reasoning", "made by another provider")
        else:
            returnable.append(Raw(new))
    return returnable if changed else None


def _returnable(item: bytes, options: EncodeOptions) -> bytes | None:
    """Return the item as it may be sent: unchanged, unsealed, or None if another provider made it.

    OpenAI rejects the whole request for reasoning that it cannot decrypt.
    """
    signed = _signed.decode(item)
    if signed.type != "reasoning" or signed.encrypted_content is None:
        return item
    origin, mark, signature = unseal_content(signed.encrypted_content)
    if origin is not None and options.issued_signature(signed.encrypted_content):
        return item
    if origin is None:
        return item if options.accepts_signature(signed.encrypted_content) else None
    if mark or signature is None or not returns_to(options.provider, origin=origin, same_protocol=True):
        return None
    return json.encode({**_item_fields.decode(item), "encrypted_content": signature})
