"""What a body says to the gateway and not to the model: who is speaking, and how to route."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
_OURS = ("sessionId", "conversationId", "routeHint", "disableStickyRoutes")
"""Keys that only this gateway understands: no provider sees them."""

_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
_YES = (True, "true")
"""Labels can hold texts only."""

_any = Decoder(Any)


@dataclass(frozen=True, kw_only=True)
class Controls:
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
    """What the body tells the gateway, from the typed view of it: nothing is searched for again."""
    said, beside = _SAID[inbound.protocol](inbound.wire)
    if not said and beside is None:
        return NOTHING
    return _controls(said, beside, inbound.protocol)


def in_metadata(said: object) -> Controls:
    """What the metadata of a request tells the gateway that is of none of the protocols."""
    return _controls(said, None, "chat") if isinstance(said, dict) else NOTHING


def _controls(said: dict[str, Any], beside: tuple[Any, Any] | None, protocol: ProtocolName) -> Controls:
    words = {key: value for key, value in said.items() if isinstance(value, str | bool)}
    cache_key, conversation = beside or (None, None)
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return Controls(
        session_id=_first(words, "sessionId", "session_id"),
        conversation_id=_first(words, "conversationId", "conversation_id"),
        route_hint=_word(words.get("routeHint")),
        disable_sticky=words.get("disableStickyRoutes") in _YES,
        user_id=_word(words.get("user_id")) if protocol == "messages" else None,
        prompt_cache_key=_word(cache_key),
        conversation=_word(conversation),
    )


def holds_controls(inbound: Inbound) -> bool:
    """Whether the body has keys that only this gateway understands."""
    said, _ = _SAID[inbound.protocol](inbound.wire)
    return bool(said) and not said.keys().isdisjoint(_OURS)


Said = tuple[dict[str, Any], tuple[Any, Any] | None]
"""What stands in the object for the gateway, and the fields that name a conversation, if any are there."""


def _of_metadata(wire: Any) -> Said:
    return wire.metadata or _NO_WORDS, None


def _of_chat(wire: Any) -> Said:
    return wire.fields.metadata or _NO_WORDS, None


def _of_responses(wire: Any) -> Said:
    body = wire.typed
    named = body.prompt_cache_key is not None or body.conversation is not None
    return body.metadata or _NO_WORDS, (body.prompt_cache_key, body.conversation) if named else None


def _of_gemini(wire: Any) -> Said:
    body = wire.body
    if body.labels is None and not isinstance(body.metadata, dict):
        return _NO_WORDS, None
    labels = {name: json.try_read(raw, _any) for name, raw in (body.labels or {}).items()}
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    told = {name: value for name, value in metadata.items() if isinstance(value, str | bool)}
    return {**labels, **told}, None


_NO_WORDS: dict[str, Any] = {}
_SAID: dict[ProtocolName, Callable[[Any], Said]] = {
    "chat": _of_chat,
    "messages": _of_metadata,
    "responses": _of_responses,
    "gemini": _of_gemini,
}


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


def _spells_letters(body: bytes) -> bool:
    """Whether letters may be escaped, so that no key is sure to look like itself."""
    return _ESCAPED_LETTER.search(body) is not None


def _may_hold_ours(body: bytes, homes: Iterable[str]) -> bool:
    """Whether a key of ours stands somewhere behind the first word that may be the name of its home."""
    places = [at for home in homes if (at := body.find(_quoted(home))) >= 0]
    return bool(places) and any(body.find(_quoted(name), min(places)) >= 0 for name in _OURS)


def _quoted(name: str) -> bytes:
    return b'"%s"' % name.encode()


def _first(said: dict[str, str | bool], *names: str) -> str | None:
    return next((word for name in names if (word := _word(said.get(name)))), None)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
