"""Control fields of a body: session, conversation, route hints.

What a body says to the gateway and not to the model: who is speaking, and how to route.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.json import Decoder

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.wire import json
from routecodex.wire.json import starts_with
from routecodex.wire.json_edit import JsonObject, Replacement

_CONTAINERS: dict[ProtocolName, tuple[str, ...]] = {
    "chat": ("metadata",),
    "messages": ("metadata",),
    "responses": ("metadata",),
    "gemini": ("metadata", "labels"),
}
"""The objects in which clients may tell us something; Google calls them labels."""

_GATEWAY_KEYS = ("sessionId", "conversationId", "routeHint", "disableStickyRoutes")
"""Keys that only this gateway understands: no provider sees them."""

_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")

_TRUE = (True, "true")
"""Labels can hold texts only."""

_any = Decoder(Any)


@dataclass(frozen=True, kw_only=True)
class ControlFields:
    """What a request tells the gateway; whatever has the wrong type counts as not said."""

    session_id: str | None = None
    conversation_id: str | None = None
    route_hint: str | None = None
    disable_sticky: bool = False
    user_id: str | None = None
    prompt_cache_key: str | None = None
    conversation: str | None = None


NO_CONTROL_FIELDS = ControlFields()


def read_control_fields(inbound: WireRequest) -> ControlFields:
    """What the body tells the gateway, from the typed view of it: nothing is searched for again."""
    said, beside = _READERS[inbound.protocol](inbound.view)
    if not said and beside is None:
        return NO_CONTROL_FIELDS
    return _control_fields(said, beside, inbound.protocol)


def metadata_control_fields(said: object) -> ControlFields:
    """What the metadata of a request tells the gateway that is of none of the protocols."""
    return _control_fields(said, None, "chat") if isinstance(said, dict) else NO_CONTROL_FIELDS


def _control_fields(
    said: dict[str, Any], beside: tuple[Any, Any] | None, protocol: ProtocolName
) -> ControlFields:
    words = {key: value for key, value in said.items() if isinstance(value, str | bool)}
    cache_key, conversation = beside or (None, None)
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return ControlFields(
        session_id=_first(words, "sessionId", "session_id"),
        conversation_id=_first(words, "conversationId", "conversation_id"),
        route_hint=_non_empty(words.get("routeHint")),
        disable_sticky=words.get("disableStickyRoutes") in _TRUE,
        user_id=_non_empty(words.get("user_id")) if protocol == "messages" else None,
        prompt_cache_key=_non_empty(cache_key),
        conversation=_non_empty(conversation),
    )


def has_control_fields(inbound: WireRequest) -> bool:
    """Whether the body has keys that only this gateway understands."""
    said, _ = _READERS[inbound.protocol](inbound.view)
    return bool(said) and not said.keys().isdisjoint(_GATEWAY_KEYS)


FoundFields = tuple[dict[str, Any], tuple[Any, Any] | None]
"""What stands in the object for the gateway, and the fields that name a conversation, if any are there."""


def _read_metadata(wire: Any) -> FoundFields:
    return wire.metadata or _NO_FIELDS, None


def _read_chat(wire: Any) -> FoundFields:
    return wire.fields.metadata or _NO_FIELDS, None


def _read_responses(wire: Any) -> FoundFields:
    body = wire.typed
    named = body.prompt_cache_key is not None or body.conversation is not None
    return body.metadata or _NO_FIELDS, (body.prompt_cache_key, body.conversation) if named else None


def _read_gemini(wire: Any) -> FoundFields:
    body = wire.body
    if body.labels is None and not isinstance(body.metadata, dict):
        return _NO_FIELDS, None
    labels = {name: json.try_read(raw, _any) for name, raw in (body.labels or {}).items()}
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    told = {name: value for name, value in metadata.items() if isinstance(value, str | bool)}
    return {**labels, **told}, None


_NO_FIELDS: dict[str, Any] = {}
_READERS: dict[ProtocolName, Callable[[Any], FoundFields]] = {
    "chat": _read_chat,
    "messages": _read_metadata,
    "responses": _read_responses,
    "gemini": _read_gemini,
}


def strip_control_fields(body: bytes, protocol: ProtocolName) -> bytes:
    """The body without the keys that only this gateway understands; the same object when it has none.

    Everything else stays byte for byte; an object that held nothing but these keys goes with them.
    """
    homes = _CONTAINERS[protocol]
    if not _has_escaped_letters(body) and not _may_hold_gateway_keys(body, homes):
        return body
    top = JsonObject(body)
    changes: dict[str, Replacement] = {}
    for home in homes:
        value = top.get(home)
        if starts_with(value, b"{"):
            told = _strip_gateway_keys(JsonObject(value))
            if told != bytes(value):
                changes[home] = told
    return top.changed(changes)


def _strip_gateway_keys(said: JsonObject) -> Replacement:
    ours = [name for name in _GATEWAY_KEYS if name in said.fields]
    if ours and len(ours) == len(said.fields):
        return None
    return said.changed(dict.fromkeys(ours))


def _has_escaped_letters(body: bytes) -> bool:
    """Whether letters may be escaped, so that no key is sure to look like itself."""
    return _ESCAPED_LETTER.search(body) is not None


def _may_hold_gateway_keys(body: bytes, homes: Iterable[str]) -> bool:
    """Whether a key of ours stands somewhere behind the first word that may be the name of its home."""
    places = [at for home in homes if (at := body.find(_quoted(home))) >= 0]
    return bool(places) and any(body.find(_quoted(name), min(places)) >= 0 for name in _GATEWAY_KEYS)


def _quoted(name: str) -> bytes:
    return b'"%s"' % name.encode()


def _first(said: dict[str, str | bool], *names: str) -> str | None:
    return next((word for name in names if (word := _non_empty(said.get(name)))), None)


def _non_empty(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
