"""The same-protocol request: its bytes, but for the model, refused fields and foreign thoughts."""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.large_body import replace_model
from routecodex.protocols.responses.content import unseal_content
from routecodex.protocols.sealed_signatures import returns_to
from routecodex.wire import json

_SIGNED = b'"encrypted_content"'
_FOREIGN = "dropped reasoning: made by another provider"
_items = Decoder(list[Raw])
_item_fields = Decoder(dict[str, Raw])


class _Signed(Struct):
    type: str = ""
    encrypted_content: str | None = None


_signed = Decoder(_Signed)


def rewrite(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The request for an upstream of the same protocol."""
    body = inbound.body
    notices: dict[str, None] = {}
    refused = [name for name in aim.dialect.unsupported if f'"{name}"'.encode() in body]
    if refused or _SIGNED in body:
        body = _with_fields_changed(body, aim, refused=refused, notices=notices)
    return EncodedRequest(replace_model(body, aim.model), tuple(notices))


def _with_fields_changed(
    body: bytes, aim: EncodeOptions, *, refused: list[str], notices: dict[str, None]
) -> bytes:
    fields = json.read_fields(body)
    changed = False
    for name in refused:
        if fields.pop(name, None) is not None:
            notices[f"dropped {name}: the upstream does not take it"] = None
            changed = True
    given = fields.get("input")
    if given is not None and bytes(memoryview(given)[:1]) == b"[":
        kept = _kept_items(_items.decode(given), aim, notices)
        if kept is not None:
            fields["input"] = Raw(json.encode(kept))
            changed = True
    return json.encode(fields) if changed else body


def _kept_items(items: list[Raw], aim: EncodeOptions, notices: dict[str, None]) -> list[Raw] | None:
    """The items that may go there, or None when all may go as they are."""
    kept: list[Raw] = []
    changed = False
    for item in items:
        data = bytes(item)
        if _SIGNED not in data or (new := _judged(data, aim)) is data:
            kept.append(item)
            continue
        changed = True
        if new is None:
            notices[_FOREIGN] = None
        else:
            kept.append(Raw(new))
    return kept if changed else None


def _judged(item: bytes, aim: EncodeOptions) -> bytes | None:
    """The item as it may be sent: itself, unsealed, or None when another provider made it."""
    signed = _signed.decode(item)
    if signed.type != "reasoning" or signed.encrypted_content is None:
        return item
    origin, mark, signature = unseal_content(signed.encrypted_content)
    if origin is not None and aim.made_here(signed.encrypted_content):
        return item
    if origin is None:
        return item if aim.is_ours(signed.encrypted_content) else None
    if mark or signature is None or not returns_to(aim.provider, origin=origin, same_protocol=True):
        return None
    return json.encode({**_item_fields.decode(item), "encrypted_content": signature})
