"""Where each protocol keeps messages, parts and texts: the only place that knows the protocols apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec import Struct

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.person.pieces import JsonObject, string_value
from routecodex.wire.json import begins, present

PartKind = Literal["text", "result", "other"]
"""What a part is: written text, a tool's result, or anything else (media, documents, thoughts, opaque)."""


class MessageShape(Struct, frozen=True, kw_only=True):
    """How one protocol lists what was said; a role of None stands for an absent one."""

    entries: str
    content: str
    kind_of: Callable[[JsonObject], PartKind]
    person: frozenset[str | None] = frozenset({"user"})
    model: frozenset[str | None] = frozenset({"assistant"})
    types: frozenset[str | None] | None = None
    """The types an entry may have to be a message; None where entries have none."""
    beside: tuple[str, ...] = ()
    """Fields of an entry that hold more of what was said than its content."""
    marker: str | None = None
    """The field of a part that marks the end of a cached prefix."""

    def is_persons(self, entry: JsonObject) -> bool:
        return self._is_by(entry, self.person)

    def is_models(self, entry: JsonObject) -> bool:
        return self._is_by(entry, self.model)

    def _is_by(self, entry: JsonObject, roles: frozenset[str | None]) -> bool:
        if string_value(entry.get("role")) not in roles:
            return False
        return self.types is None or string_value(entry.get("type")) in self.types


def _by_type(part: JsonObject, *, texts: frozenset[str], results: frozenset[str] = frozenset()) -> PartKind:
    kind = string_value(part.get("type"))
    if kind in texts and begins(part.get("text"), b'"'):
        return "text"
    return "result" if kind in results else "other"


_DATA = ("functionCall", "inlineData", "fileData")
"""What a Gemini part is before it is a text: the codec reads it so too."""


def _by_field(part: JsonObject) -> PartKind:
    if present(part.get("functionResponse")):
        return "result"
    if any(present(part.get(name)) for name in _DATA) or bytes(part.get("thought")) == b"true":
        return "other"
    return "text" if begins(part.get("text"), b'"') else "other"


MESSAGE_SHAPES: dict[ProtocolName, MessageShape] = {
    "chat": MessageShape(
        entries="messages",
        content="content",
        kind_of=partial(_by_type, texts=frozenset({"text"})),
        beside=("tool_calls", "function_call", "refusal", "audio"),
        marker="cache_control",
    ),
    "messages": MessageShape(
        entries="messages",
        content="content",
        kind_of=partial(_by_type, texts=frozenset({"text"}), results=frozenset({"tool_result"})),
        marker="cache_control",
    ),
    "responses": MessageShape(
        entries="input",
        content="content",
        # The codec takes all three for text, whoever speaks.
        kind_of=partial(_by_type, texts=frozenset({"input_text", "output_text", "text"})),
        types=frozenset({None, "", "message"}),
    ),
    "gemini": MessageShape(
        entries="contents",
        content="parts",
        kind_of=_by_field,
        person=frozenset({"user", "", None}),
        model=frozenset({"model"}),
    ),
}


def uses_snake_case(inbound: WireRequest) -> bool:
    """Whether the codec read this body with its field names changed to camelCase."""
    return inbound.protocol == "gemini" and bool(inbound.wire.snake)
