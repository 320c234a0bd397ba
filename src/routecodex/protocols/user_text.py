"""Finds and replaces user-written texts in a request.

`user_messages` and `model_texts` list the texts of user and model with their positions, without tool results,
system texts and documents. `rewrite_texts` replaces or removes texts; all other bytes stay. `MESSAGE_SHAPES`
has the differences between the protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

from msgspec import Raw, Struct

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.large_body import may_hold_tags
from routecodex.wire import json
from routecodex.wire.json import ABSENT, is_present, starts_with
from routecodex.wire.json_edit import JsonObject, Replacement, list_items, replace_items, string_value

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


def _text_field(part: JsonObject) -> str:
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


def uses_snake_case(request: WireRequest) -> bool:
    """Whether a Gemini body has snake_case names (Google genai SDK), which the codec reads as camelCase."""
    return request.protocol == "gemini" and bool(request.view.snake)


_EMPTY_VALUES = frozenset({b"", b"null", b"[]", b'""'})


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


def user_messages(request: WireRequest) -> list[UserMessage]:
    """Return the messages with the user's role, in edit."""
    shape = MESSAGE_SHAPES[request.protocol]
    body = JsonObject(request.body, respelled=uses_snake_case(request))
    listed = body.get(shape.entries)
    bare = string_value(listed)
    if bare is not None:
        return [UserMessage(index=0, texts=(MessageText(None, bare),))]
    return [
        _read_message(entry, shape, index=index)
        for index, item in enumerate(list_items(listed))
        if shape.is_user(entry := body.inner(item))
    ]


def message_path(request: WireRequest, message: UserMessage) -> str:
    """Return the path of the message for error texts."""
    return f"{MESSAGE_SHAPES[request.protocol].entries}[{message.index}]"


def agent_texts(request: WireRequest) -> dict[tuple[int, int | None], str]:
    """Return the texts that agents wrote to each other (Codex), by message and part."""
    shape = MESSAGE_SHAPES[request.protocol]
    if not shape.agent_types:
        return {}
    entries = ((index, JsonObject(item)) for index, item in enumerate(_items(request)))
    return {
        (index, text.part): text.text
        for index, entry in entries
        if string_value(entry.get("type")) in shape.agent_types
        for text in _read_message(entry, shape, index=index).texts
    }


def model_texts(request: WireRequest) -> dict[int, str]:
    """Return the texts of the model's messages that are one text only, by index."""
    found = ((index, _model_text(item, request)) for index, item in enumerate(_items(request)))
    return {index: text for index, text in found if text is not None}


def system_indices(request: WireRequest) -> set[int]:
    """Return the indices of the system messages in the list."""
    shape = MESSAGE_SHAPES[request.protocol]
    respelled = uses_snake_case(request)
    items = enumerate(_items(request))
    return {index for index, item in items if shape.is_system(JsonObject(item, respelled=respelled))}


def message_count(request: WireRequest) -> int:
    """Return the number of messages; a bare text counts as one."""
    return len(_items(request)) or 1


def prefill_index(request: WireRequest) -> int | None:
    """Return the index of a last message by the model, which it is to continue; None if there is none."""
    items = _items(request)
    return len(items) - 1 if items and _model_text(items[-1], request) is not None else None


def model_text_at(request: WireRequest, index: int) -> str | None:
    """Return the text of the model's message at this index; None if it is not one text only."""
    items = _items(request)
    return _model_text(items[index], request) if 0 <= index < len(items) else None


def _items(request: WireRequest) -> list[Raw]:
    body = JsonObject(request.body, respelled=uses_snake_case(request))
    return list_items(body.get(MESSAGE_SHAPES[request.protocol].entries))


def _read_message(entry: JsonObject, shape: MessageShape, *, index: int) -> UserMessage:
    content = entry.get(shape.content)
    plain = string_value(content)
    if plain is not None:
        return UserMessage(index=index, texts=(MessageText(None, plain),))
    parts = [entry.inner(part) for part in list_items(content)]
    kinds = [shape.kind_of(part) for part in parts]
    texts = (
        MessageText(at, string_value(part.get(_text_field(part))) or "")
        for at, part in enumerate(parts)
        if kinds[at] == "text"
    )
    return UserMessage(
        index=index,
        texts=tuple(texts),
        has_other_parts=any(kind != "text" for kind in kinds),
        has_results="result" in kinds,
    )


def _model_text(item: Raw, request: WireRequest) -> str | None:
    shape = MESSAGE_SHAPES[request.protocol]
    entry = JsonObject(item, respelled=uses_snake_case(request))
    if not shape.is_model(entry) or any(
        bytes(entry.get(name)) not in _EMPTY_VALUES for name in shape.other_fields
    ):
        return None
    content = entry.get(shape.content)
    if starts_with(content, b'"'):
        return string_value(content)
    parts = list_items(content)
    only = entry.inner(parts[0]) if len(parts) == 1 else None
    return string_value(only.get("text")) if only is not None and shape.kind_of(only) == "text" else None


_NO_TEXT = b'""'


class MessageEdit(Struct, frozen=True):
    """Changes of one message: new texts by part (None: the whole content), and parts to drop."""

    texts: dict[int | None, str]
    drops: set[int]


_UNCHANGED = MessageEdit({}, set())


def rewrite_texts(
    request: WireRequest,
    *,
    texts: Mapping[tuple[int, int | None], str],
    drop_parts: Collection[tuple[int, int]] = (),
    drop_messages: Collection[int] = (),
) -> bytes:
    """Return the body with these texts replaced and these parts and messages dropped.

    Positions are those of `user_messages`; ValueError if there is no text. A message without parts is dropped
    too. A dropped string `input` becomes empty, because Responses requires the field. The `cache_control` of
    a dropped part moves to the part before it in the same message, unless that has one: the cached prefix
    stays as long as possible. Of duplicate keys in user messages only the last stays, so that no tag survives
    in one that readers skip. Without changes and duplicates the same bytes are returned.
    """
    shape = MESSAGE_SHAPES[request.protocol]
    body = JsonObject(request.body, respelled=uses_snake_case(request))
    listed = body.get(shape.entries)
    edits = _edits_by_message(texts, drop_parts)
    if starts_with(listed, b'"'):
        return _rewrite_bare_input(body, shape, edit=edits.get(0, _UNCHANGED), dropped=0 in drop_messages)
    items = list_items(listed)
    if not edits.keys() <= set(range(len(items))):
        raise ValueError(f"there are {len(items)} messages; no text can change at {max(edits)}")
    changes: dict[int, Replacement] = dict.fromkeys(drop_messages)
    for index, item in enumerate(items):
        if index in changes:
            continue
        edit = edits.get(index)
        if edit is None and not may_hold_tags(bytes(item)):
            continue
        entry = body.inner(item)
        if edit is not None or shape.is_user(entry):
            _note_change(changes, index, item=item, changed=_message(entry, shape, edit or _UNCHANGED))
    return body.changed({shape.entries: replace_items(listed, changes)} if changes else {})


def _edits_by_message(
    texts: Mapping[tuple[int, int | None], str], drop_parts: Collection[tuple[int, int]]
) -> dict[int, MessageEdit]:
    edits: dict[int, MessageEdit] = {}
    for (index, part), text in texts.items():
        edits.setdefault(index, MessageEdit({}, set())).texts[part] = text
    for index, dropped in drop_parts:
        edits.setdefault(index, MessageEdit({}, set())).drops.add(dropped)
    return edits


def _note_change(
    changes: dict[int, Replacement], at: int, *, item: Raw | bytes, changed: Replacement
) -> None:
    if changed is None or changed != bytes(item):
        changes[at] = changed


def _rewrite_bare_input(body: JsonObject, shape: MessageShape, *, edit: MessageEdit, dropped: bool) -> bytes:
    if dropped:
        return body.changed({shape.entries: _NO_TEXT})
    return body.changed({shape.entries: json.encode(edit.texts[None])} if None in edit.texts else {})


def _message(entry: JsonObject, shape: MessageShape, edit: MessageEdit) -> Replacement:
    """Return the changed message; None if no part is left."""
    content = entry.get(shape.content)
    if starts_with(content, b'"'):
        if edit.drops or edit.texts.keys() - {None}:
            raise ValueError("this message is a plain string: it has no parts to change")
        text = edit.texts.get(None)
        return entry.changed({} if text is None else {shape.content: json.encode(text)})
    parts = list_items(content)
    changes = _parts([entry.inner(part) for part in parts], shape, edit)
    if parts and all(at in changes and changes[at] is None for at in range(len(parts))):
        return None
    return entry.changed({shape.content: replace_items(content, changes)} if changes else {})


def _parts(parts: list[JsonObject], shape: MessageShape, edit: MessageEdit) -> dict[int, Replacement]:
    """Return the changed parts, from the last to the first: `cache_control` moves to the part before."""
    misplaced = edit.texts.keys() - {at for at in range(len(parts)) if shape.kind_of(parts[at]) == "text"}
    if misplaced:
        raise ValueError(f"there is no text to change at {sorted(misplaced, key=str)!r}")
    changes: dict[int, Replacement] = {}
    marker = ABSENT
    for at in reversed(range(len(parts))):
        part = parts[at]
        own = part.get(shape.cache_field) if shape.cache_field else ABSENT
        if at in edit.drops:
            changes[at] = None
            marker = own if is_present(own) else marker
            continue
        fields: dict[str, Replacement] = {}
        if at in edit.texts:
            fields[_text_field(part)] = json.encode(edit.texts[at])
        if shape.cache_field and is_present(marker) and not is_present(own):
            fields[shape.cache_field] = bytes(marker)
        marker = ABSENT
        if fields or shape.kind_of(part) == "text":
            _note_change(changes, at, item=part.data, changed=part.changed(fields))
    return changes
