"""What a body says to the gateway and not to the model: who is speaking, and how to route."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import Inbound
from routecodex.wire import json
from routecodex.wire.json import begins

from .person.pieces import Change, Object

_HOMES: dict[ProtocolName, tuple[str, ...]] = {
    "chat": ("metadata",),
    "messages": ("metadata",),
    "responses": ("metadata",),
    "gemini": ("metadata", "labels"),
}
"""The objects in which clients may tell us something; Google calls them labels."""
_BESIDE: dict[ProtocolName, tuple[str, ...]] = {"responses": ("prompt_cache_key", "conversation")}
"""Fields of their own that name a conversation."""
_OURS = ("sessionId", "conversationId", "routeHint", "disableStickyRoutes")
"""Keys that only this gateway understands: no provider sees them."""

_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
_YES = (True, "true")
"""Labels can hold texts only."""

_any = Decoder(Any)
_object = Decoder(dict[str, Any])
_fields = Decoder(dict[str, Raw])


class Controls(Struct, frozen=True, kw_only=True):
    """What a request tells the gateway; whatever has the wrong type counts as not said."""

    session_id: str | None = None
    conversation_id: str | None = None
    route_hint: str | None = None
    disable_sticky: bool = False
    user_id: str | None = None
    prompt_cache_key: str | None = None
    conversation: str | None = None


NOTHING = Controls()


def controls(inbound: Inbound) -> Controls:
    """What the body tells the gateway."""
    protocol = inbound.protocol
    homes = _HOMES[protocol]
    fields = _top_fields(inbound.body, (*homes, *_BESIDE.get(protocol, ())))
    if not fields:
        return NOTHING
    said: dict[str, str | bool] = {}
    for home in reversed(homes):
        said |= _words_at(fields, home)
    conversation = _value_at(fields, "conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return Controls(
        session_id=_first(said, "sessionId", "session_id"),
        conversation_id=_first(said, "conversationId", "conversation_id"),
        route_hint=_word(said.get("routeHint")),
        disable_sticky=said.get("disableStickyRoutes") in _YES,
        user_id=_word(said.get("user_id")) if protocol == "messages" else None,
        prompt_cache_key=_word(_value_at(fields, "prompt_cache_key")),
        conversation=_word(conversation),
    )


def without_controls(body: bytes, protocol: ProtocolName) -> bytes:
    """The body without the keys that only this gateway understands; the same object when it has none.

    Everything else stays byte for byte; an object that held nothing but these keys goes with them.
    """
    homes = _HOMES[protocol]
    if not _spells_letters(body) and not _may_hold_ours(body, homes):
        return body
    top = Object(body)
    changes: dict[str, Change] = {}
    for home in homes:
        value = top.get(home)
        if begins(value, b"{"):
            told = _without_ours(Object(value))
            if told != bytes(value):
                changes[home] = told
    return top.changed(changes)


def _without_ours(said: Object) -> Change:
    ours = [name for name in _OURS if name in said.fields]
    if ours and len(ours) == len(said.fields):
        return None
    return said.changed(dict.fromkeys(ours))


def _top_fields(body: bytes, names: tuple[str, ...]) -> dict[str, Raw]:
    """The fields of these names."""
    found = {name: at for name in names if (at := body.rfind(_quoted(name))) >= 0}
    escaped = _spells_letters(body)
    if not found and not escaped:
        return {}
    fields = None if escaped else _closing_fields(body, found)
    if fields is None:
        fields = json.try_read(body, _fields) or {}
    return {name: fields[name] for name in names if name in fields}


def _closing_fields(body: bytes, found: dict[str, int]) -> dict[str, Raw] | None:
    """The fields from the first of these places on, or None when that does not tell.

    What follows a key up to the end of the body is the rest of an object only if that object is the body: so
    messages that stand before it need not be gone through.
    """
    start = min(found.values())
    if start <= len(body) // 2 or body[start - 1 : start] == b"\\":
        return None
    rest = json.try_read(b"{" + body[start:], _fields)
    return rest if rest is not None and rest.keys() >= found.keys() else None


def _spells_letters(body: bytes) -> bool:
    """Whether letters may be escaped, so that no key is sure to look like itself."""
    return _ESCAPED_LETTER.search(body) is not None


def _may_hold_ours(body: bytes, homes: Iterable[str]) -> bool:
    """Whether a key of ours stands somewhere behind the first word that may be the name of its home."""
    places = [at for home in homes if (at := body.find(_quoted(home))) >= 0]
    return bool(places) and any(body.find(_quoted(name), min(places)) >= 0 for name in _OURS)


def _quoted(name: str) -> bytes:
    return b'"%s"' % name.encode()


def _value_at(fields: dict[str, Raw], name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else json.try_read(raw, _any)


def _words_at(fields: dict[str, Raw], name: str) -> dict[str, str | bool]:
    """What an object says in words or as yes and no; the rest is no business of ours."""
    raw = fields.get(name)
    said = json.try_read(raw, _object) if raw is not None else None
    return {key: value for key, value in (said or {}).items() if isinstance(value, str | bool)}


def _first(said: dict[str, str | bool], *names: str) -> str | None:
    return next((word for name in names if (word := _word(said.get(name)))), None)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
