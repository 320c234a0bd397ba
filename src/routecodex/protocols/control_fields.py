"""Control fields of a body: session, conversation, route hints."""

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
from routecodex.wire.json_edit import JsonObject, Replacement, string_value

_CONTAINERS: dict[ProtocolName, tuple[str, ...]] = {
    "chat": ("metadata",),
    "messages": ("metadata",),
    "responses": ("metadata",),
    "gemini": ("metadata", "labels"),
}
"""Objects that may have control fields; Vertex AI calls its metadata `labels`."""

_GATEWAY_KEYS = ("sessionId", "conversationId", "routeHint", "disableStickyRoutes")
"""Keys that only this gateway reads; they are removed from the body for a provider."""

_ROLES = frozenset({"main", "subagent", "utility", "compaction"})
"""Values by which `metadata.role` is a field of the gateway; with any other value it is the client's own."""

CODEX_METADATA = "x-codex-turn-metadata"
"""Key of `client_metadata` in Codex's requests."""

_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")

_TRUE = (True, "true")
"""Values of labels are strings."""

_any = Decoder(Any)


@dataclass(frozen=True, kw_only=True)
class ControlFields:
    """Body fields meant for the gateway; a field of the wrong type counts as absent."""

    session_id: str | None = None
    conversation_id: str | None = None
    route_hint: str | None = None
    disable_sticky: bool = False
    user_id: str | None = None
    prompt_cache_key: str | None = None
    conversation: str | None = None
    role: str | None = None
    """The role that a host gives to the request."""
    codex_turn: str | None = None
    """Codex's turn metadata as JSON text, which it sends in a header too."""


NO_CONTROL_FIELDS = ControlFields()


def read_control_fields(request: WireRequest) -> ControlFields:
    """Read the control fields from the typed view of the request."""
    metadata, names = _READERS[request.protocol](request.view)
    if not metadata and names is None:
        return NO_CONTROL_FIELDS
    codex_turn = _codex_turn(request.view) if request.protocol == "responses" else None
    return _control_fields(metadata, names, request.protocol, codex_turn)


def metadata_control_fields(metadata: object) -> ControlFields:
    """Read the control fields from the metadata of a request in no protocol, such as embeddings."""
    return _control_fields(metadata, None, "chat") if isinstance(metadata, dict) else NO_CONTROL_FIELDS


def _control_fields(
    metadata: dict[str, Any],
    names: tuple[Any, Any] | None,
    protocol: ProtocolName,
    codex_turn: str | None = None,
) -> ControlFields:
    values = {key: value for key, value in metadata.items() if isinstance(value, str | bool)}
    cache_key, conversation = names or (None, None)
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return ControlFields(
        session_id=_first(values, "sessionId", "session_id"),
        conversation_id=_first(values, "conversationId", "conversation_id"),
        route_hint=_non_empty(values.get("routeHint")),
        disable_sticky=values.get("disableStickyRoutes") in _TRUE,
        user_id=_non_empty(values.get("user_id")) if protocol == "messages" else None,
        prompt_cache_key=_non_empty(cache_key),
        conversation=_non_empty(conversation),
        role=_role(values.get("role")),
        codex_turn=codex_turn,
    )


def has_control_fields(request: WireRequest) -> bool:
    """Whether the body has keys that only this gateway reads."""
    metadata, _ = _READERS[request.protocol](request.view)
    if not metadata:
        return False
    return not metadata.keys().isdisjoint(_GATEWAY_KEYS) or _role(metadata.get("role")) is not None


FoundFields = tuple[dict[str, Any], tuple[Any, Any] | None]
"""Metadata of a request, and its `prompt_cache_key` and `conversation` if it has one of them."""


def _read_metadata(view: Any) -> FoundFields:
    return view.metadata or _NO_FIELDS, None


def _read_chat(view: Any) -> FoundFields:
    return view.fields.metadata or _NO_FIELDS, None


def _read_responses(view: Any) -> FoundFields:
    body = view.typed
    named = (
        body.prompt_cache_key is not None or body.conversation is not None or body.client_metadata is not None
    )
    return body.metadata or _NO_FIELDS, (body.prompt_cache_key, body.conversation) if named else None


def _codex_turn(view: Any) -> str | None:
    metadata = view.typed.client_metadata
    return _non_empty(metadata.get(CODEX_METADATA)) if isinstance(metadata, dict) else None


def _read_gemini(view: Any) -> FoundFields:
    body = view.body
    if body.labels is None and not isinstance(body.metadata, dict):
        return _NO_FIELDS, None
    labels = {name: json.try_read(raw, _any) for name, raw in (body.labels or {}).items()}
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    values = {name: value for name, value in metadata.items() if isinstance(value, str | bool)}
    return {**labels, **values}, None


_NO_FIELDS: dict[str, Any] = {}
_READERS: dict[ProtocolName, Callable[[Any], FoundFields]] = {
    "chat": _read_chat,
    "messages": _read_metadata,
    "responses": _read_responses,
    "gemini": _read_gemini,
}


def strip_control_fields(body: bytes, protocol: ProtocolName) -> bytes:
    """Return the body without the keys that only this gateway reads; the same object if it has none.

    All other bytes stay. An object that is empty without these keys is removed.
    """
    containers = _CONTAINERS[protocol]
    if not _has_escaped_letters(body) and not _may_hold_gateway_keys(body, containers):
        return body
    top = JsonObject(body)
    changes: dict[str, Replacement] = {}
    for name in containers:
        value = top.get(name)
        if starts_with(value, b"{"):
            stripped = _strip_gateway_keys(JsonObject(value))
            if stripped != bytes(value):
                changes[name] = stripped
    return top.changed(changes)


def _strip_gateway_keys(metadata: JsonObject) -> Replacement:
    keys = [name for name in _GATEWAY_KEYS if name in metadata.fields]
    if _role(string_value(metadata.get("role"))) is not None:
        keys.append("role")
    if keys and len(keys) == len(metadata.fields):
        return None
    return metadata.changed(dict.fromkeys(keys))


def _has_escaped_letters(body: bytes) -> bool:
    """Whether letters may be escaped, so that a search for a key may miss it."""
    return _ESCAPED_LETTER.search(body) is not None


def _may_hold_gateway_keys(body: bytes, containers: Iterable[str]) -> bool:
    """Whether a key of the gateway is somewhere after the first name of a container."""
    places = [at for name in containers if (at := body.find(_quoted(name))) >= 0]
    names = (*_GATEWAY_KEYS, "role")
    return bool(places) and any(body.find(_quoted(name), min(places)) >= 0 for name in names)


def _quoted(name: str) -> bytes:
    return b'"%s"' % name.encode()


def _role(value: Any) -> str | None:
    return value if isinstance(value, str) and value in _ROLES else None


def _first(values: dict[str, str | bool], *names: str) -> str | None:
    return next((value for name in names if (value := _non_empty(values.get(name)))), None)


def _non_empty(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
