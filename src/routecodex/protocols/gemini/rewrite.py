"""Gemini to Gemini: the body as it came, but for what must not go there."""

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


def rewrite(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The same bytes, unless a signature or a field in them must not reach this provider."""
    view: RequestView = inbound.wire
    marked = any(_must_change(signature, aim) for signature in _signatures(view.body))
    if model_traits(aim.model).signs_calls and any(
        _lacks_signature(content) for content in contents_of(view.body)
    ):
        marked = True
    if view.body.model is None and not marked and not aim.dialect.unsupported:
        return EncodedRequest(inbound.body)
    notices = Notices()
    fields = json.read_fields(inbound.body)
    before = dict(fields)
    fields.pop("model", None)
    if marked:
        fields["contents"] = _contents(fields["contents"], aim, notices=notices)
    _leave_out(fields, aim, notices=notices)
    changed = fields != before
    return EncodedRequest(json.encode(fields) if changed else inbound.body, notices.lines())


def _signatures(body: RequestBody) -> Iterator[str]:
    for content in contents_of(body):
        for part in parts_of(content):
            if part.thought_signature is not None:
                yield part.thought_signature


def _lacks_signature(content: WireMessage) -> bool:
    """Whether it is a turn that Gemini 3 refuses: its first call bears no signature."""
    first = next((part for part in parts_of(content) if part.function_call is not None), None)
    return first is not None and first.thought_signature is None


def _must_change(signature: str, aim: EncodeOptions) -> bool:
    if aim.made_here(standard_alphabet(signature)):
        return False
    origin, own = unseal_signature(signature)
    return origin is not None or not may_return(aim, own, origin=None, same_protocol=True)


def _leave_out(fields: Fields, aim: EncodeOptions, *, notices: Notices) -> None:
    for name in aim.dialect.unsupported:
        spellings = (name, to_snake(name))
        removed = [fields.pop(spelling, None) for spelling in spellings]
        config = _spelled(fields, "generationConfig")
        if config is not None and json.is_present(fields[config]):
            inner = json.read_fields(bytes(fields[config]))
            taken = [inner.pop(spelling, None) for spelling in spellings]
            if any(value is not None for value in taken):
                fields[config] = Raw(json.encode(inner))
                removed += taken
        if any(value is not None for value in removed):
            notices.dropped(name, "this provider does not take it")


def _spelled(fields: Fields, name: str) -> str | None:
    return next((spelling for spelling in (name, to_snake(name)) if spelling in fields), None)


def _objects_of(raw: Raw) -> list[Fields]:
    value = _objects.decode(raw)
    return value if isinstance(value, list) else [value]


def _contents(raw: Raw, aim: EncodeOptions, *, notices: Notices) -> Raw:
    kept: list[Json] = []
    for content in _objects_of(raw):
        parts = [
            part
            for found in _objects_of(content["parts"])
            if (part := _part(found, aim, notices=notices)) is not None
        ]
        if not parts:
            continue
        if model_traits(aim.model).signs_calls:
            _sign_first_call(parts)
        kept.append({**content, "parts": parts})
    return Raw(json.encode(kept))


def _part(part: Fields, aim: EncodeOptions, *, notices: Notices) -> Fields | None:
    """The part with a signature this provider can take, without one, or None for a foreign thought."""
    name = _spelled(part, "thoughtSignature")
    if name is None or not json.is_present(part[name]):
        return part
    signature = _text.decode(part[name])
    if aim.made_here(standard_alphabet(signature)):
        return part
    origin, own = unseal_signature(signature)
    if may_return(aim, own, origin=origin, same_protocol=True):
        part[name] = Raw(json.encode(own))
        return part
    notices.dropped("reasoning", "made by another provider")
    if bytes(part.get("thought", Raw(b"false"))) == b"true":
        return None
    del part[name]
    bare = not part or (part.keys() == {"text"} and bytes(part["text"]) == b'""')
    return None if bare else part


def _sign_first_call(parts: list[Fields]) -> None:
    first = next((part for part in parts if _spelled(part, "functionCall")), None)
    if first is not None and _spelled(first, "thoughtSignature") is None:
        first["thoughtSignature"] = Raw(json.encode(SKIP_SIGNATURE))
