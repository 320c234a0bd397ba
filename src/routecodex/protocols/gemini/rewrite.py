"""Rewrites a request for a Gemini upstream: signatures, unsupported fields and a `model` in the body.

All other bytes stay as the client sent them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.gemini.field_names import to_snake
from routecodex.protocols.gemini.schema import (
    Fields,
    RequestBody,
    RequestView,
    WireMessage,
    contents_of,
    parts_of,
)
from routecodex.protocols.gemini.thinking import (
    SKIP_SIGNATURE,
    may_return,
    model_traits,
    standard_alphabet,
    unseal_signature,
)
from routecodex.wire import json

_objects = Decoder(list[dict[str, Raw]] | dict[str, Raw])
_text = Decoder(str)


def rewrite(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Return the request for an upstream of the same protocol."""
    view: RequestView = request.view
    resign = any(_must_change(signature, options) for signature in _signatures(view.body))
    if model_traits(options.model).signs_calls and any(
        _lacks_signature(content) for content in contents_of(view.body)
    ):
        resign = True
    if view.body.model is None and not resign and not options.dialect.unsupported:
        return EncodedRequest(request.body)
    notices = Notices()
    fields = json.read_fields(request.body)
    before = dict(fields)
    fields.pop("model", None)
    if resign:
        fields["contents"] = _contents(fields["contents"], options, notices=notices)
    _drop_unsupported(fields, options, notices=notices)
    changed = fields != before
    return EncodedRequest(json.encode(fields) if changed else request.body, notices.lines())


def _signatures(body: RequestBody) -> Iterator[str]:
    for content in contents_of(body):
        for part in parts_of(content):
            if part.thought_signature is not None:
                yield part.thought_signature


def _lacks_signature(content: WireMessage) -> bool:
    """Return whether Gemini 3 rejects this turn because its first call is unsigned."""
    first = next((part for part in parts_of(content) if part.function_call is not None), None)
    return first is not None and first.thought_signature is None


def _must_change(signature: str, options: EncodeOptions) -> bool:
    if options.issued_signature(standard_alphabet(signature)):
        return False
    origin, own = unseal_signature(signature)
    return origin is not None or not may_return(options, own, origin=None, same_protocol=True)


def _drop_unsupported(fields: Fields, options: EncodeOptions, *, notices: Notices) -> None:
    for name in options.dialect.unsupported:
        spellings = (name, to_snake(name))
        removed = [fields.pop(spelling, None) for spelling in spellings]
        config = _find_field(fields, "generationConfig")
        if config is not None and json.is_present(fields[config]):
            inner = json.read_fields(bytes(fields[config]))
            removed_inside = [inner.pop(spelling, None) for spelling in spellings]
            if any(value is not None for value in removed_inside):
                fields[config] = Raw(json.encode(inner))
                removed += removed_inside
        if any(value is not None for value in removed):
            notices.dropped(name, "this provider does not take it")


def _find_field(fields: Fields, name: str) -> str | None:
    return next((spelling for spelling in (name, to_snake(name)) if spelling in fields), None)


def _objects_of(raw: Raw) -> list[Fields]:
    value = _objects.decode(raw)
    return value if isinstance(value, list) else [value]


def _contents(raw: Raw, options: EncodeOptions, *, notices: Notices) -> Raw:
    contents: list[Json] = []
    for content in _objects_of(raw):
        parts = [
            part
            for found in _objects_of(content["parts"])
            if (part := _part(found, options, notices=notices)) is not None
        ]
        if not parts:
            continue
        if model_traits(options.model).signs_calls:
            _sign_first_call(parts)
        contents.append({**content, "parts": parts})
    return Raw(json.encode(contents))


def _part(part: Fields, options: EncodeOptions, *, notices: Notices) -> Fields | None:
    """Return the part with a signature of this provider, without one, or None for a foreign thought."""
    name = _find_field(part, "thoughtSignature")
    if name is None or not json.is_present(part[name]):
        return part
    signature = _text.decode(part[name])
    if options.issued_signature(standard_alphabet(signature)):
        return part
    origin, own = unseal_signature(signature)
    if may_return(options, own, origin=origin, same_protocol=True):
        part[name] = Raw(json.encode(own))
        return part
    notices.dropped("reasoning", "made by another provider")
    if bytes(part.get("thought", Raw(b"false"))) == b"true":
        return None
    del part[name]
    empty = not part or (part.keys() == {"text"} and bytes(part["text"]) == b'""')
    return None if empty else part


def _sign_first_call(parts: list[Fields]) -> None:
    first = next((part for part in parts if _find_field(part, "functionCall")), None)
    if first is not None and _find_field(first, "thoughtSignature") is None:
        first["thoughtSignature"] = Raw(json.encode(SKIP_SIGNATURE))
