"""Where the messages of each protocol stand in a request, and of which kinds their parts are.

Apart from `user_text`, because classes with keywords cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec import Struct

from routecodex.canon.request import ProtocolName
from routecodex.wire.json import is_present, starts_with
from routecodex.wire.json_edit import JsonObject, string_value

PartKind = Literal["text", "result", "other"]
"""Kind of a part: text, a tool result, or other (media, documents, reasoning, opaque parts)."""


class MessageShape(Struct, frozen=True, kw_only=True):
    """Fields and roles of the messages of one protocol; the role None is an absent one."""

    entries: str
    content: str
    kind_of: Callable[[JsonObject], PartKind]
    user_roles: frozenset[str | None] = frozenset({"user"})
    model_roles: frozenset[str | None] = frozenset({"assistant"})
    system_roles: frozenset[str | None] = frozenset({"system", "developer"})
    types: frozenset[str | None] | None = None
    """Types of entries that are messages; None if entries have no type."""
    agent_types: frozenset[str | None] = frozenset()
    """Types of entries in which agents write to each other."""
    other_fields: tuple[str, ...] = ()
    """Fields of an entry with content besides `content`."""
    cache_field: str | None = None
    """The field of a part that marks the end of a cached prefix."""

    def is_user(self, entry: JsonObject) -> bool:
        return self._has_role(entry, self.user_roles)

    def is_system(self, entry: JsonObject) -> bool:
        return self._has_role(entry, self.system_roles)

    def is_model(self, entry: JsonObject) -> bool:
        return self._has_role(entry, self.model_roles)

    def _has_role(self, entry: JsonObject, roles: frozenset[str | None]) -> bool:
        if string_value(entry.get("role")) not in roles:
            return False
        return self.types is None or string_value(entry.get("type")) in self.types


def _by_type(part: JsonObject, *, texts: frozenset[str], results: frozenset[str] = frozenset()) -> PartKind:
    kind = string_value(part.get("type"))
    if kind in texts and starts_with(part.get("text"), b'"'):
        return "text"
    return "result" if kind in results else "other"


SEALED = "encrypted_content"
"""Type and field of a part between Codex's agents; models other than OpenAI's write plain text there."""


def _by_responses_type(part: JsonObject) -> PartKind:
    if string_value(part.get("type")) == SEALED:
        return "text" if starts_with(part.get(SEALED), b'"') else "other"
    # The codec accepts all three as text, for every role.
    return _by_type(part, texts=frozenset({"input_text", "output_text", "text"}))


def text_field(part: JsonObject) -> str:
    """Return the field of a part that holds its text."""
    return SEALED if string_value(part.get("type")) == SEALED else "text"


_DATA = ("functionCall", "inlineData", "fileData")
"""Fields of a Gemini part that make it another kind, even if it has text; the codec reads it so too."""


def _by_field(part: JsonObject) -> PartKind:
    if is_present(part.get("functionResponse")):
        return "result"
    if any(is_present(part.get(name)) for name in _DATA) or bytes(part.get("thought")) == b"true":
        return "other"
    return "text" if starts_with(part.get("text"), b'"') else "other"


MESSAGE_SHAPES: dict[ProtocolName, MessageShape] = {
    "chat": MessageShape(
        entries="messages",
        content="content",
        # Some clients send the parts of the Responses API to both.
        kind_of=partial(_by_type, texts=frozenset({"text", "input_text"})),
        other_fields=("tool_calls", "function_call", "refusal", "audio"),
        cache_field="cache_control",
    ),
    "messages": MessageShape(
        entries="messages",
        content="content",
        kind_of=partial(_by_type, texts=frozenset({"text"}), results=frozenset({"tool_result"})),
        cache_field="cache_control",
    ),
    "responses": MessageShape(
        entries="input",
        content="content",
        kind_of=_by_responses_type,
        types=frozenset({None, "", "message"}),
        agent_types=frozenset({"agent_message"}),
    ),
    "gemini": MessageShape(
        entries="contents",
        content="parts",
        kind_of=_by_field,
        user_roles=frozenset({"user", "", None}),
        model_roles=frozenset({"model"}),
    ),
}


class MessageText(Struct, frozen=True):
    """One text of a message; `part` is None if the content is a plain string."""

    part: int | None
    text: str


class UserMessage(Struct, frozen=True, kw_only=True):
    """A message with the user's role, by its index in the list.

    `has_other_parts`: it has parts that are not text. `has_results`: it has tool results, so an agent may
    have sent it without a user.
    """

    index: int
    texts: tuple[MessageText, ...]
    has_other_parts: bool = False
    has_results: bool = False


class MessageEdit(Struct, frozen=True):
    """Changes of one message: new texts by part (None: the whole content), and parts to drop."""

    texts: dict[int | None, str]
    drops: set[int]
