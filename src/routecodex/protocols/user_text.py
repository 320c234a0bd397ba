"""Finds and replaces user-written texts in a request.

`user_messages` and `model_texts` list the texts of user and model with their positions, without tool results,
system texts and documents. `rewrite_texts` replaces or removes texts; all other bytes stay. `MESSAGE_SHAPES`
has the differences between the protocols.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Raw

from routecodex.protocols.codec import WireRequest
from routecodex.protocols.large_body import may_hold_tags
from routecodex.protocols.message_shapes import (
    MESSAGE_SHAPES,
    MessageEdit,
    MessageShape,
    MessageText,
    UserMessage,
    text_field,
)
from routecodex.wire import json
from routecodex.wire.json import ABSENT, is_present, starts_with
from routecodex.wire.json_edit import JsonObject, Replacement, list_items, replace_items, string_value


def uses_snake_case(request: WireRequest) -> bool:
    """Whether a Gemini body has snake_case names (Google genai SDK), which the codec reads as camelCase."""
    return request.protocol == "gemini" and bool(request.view.snake)


_EMPTY_VALUES: Final = frozenset({b"", b"null", b"[]", b'""'})


class Messages:
    """The list of messages of one request; each is read once, however many functions ask for it."""

    def __init__(self, request: WireRequest) -> None:
        self.shape: Final = MESSAGE_SHAPES[request.protocol]
        self.body: Final = JsonObject(request.body, respelled=uses_snake_case(request))
        self.listed: Final = self.body.get(self.shape.entries)
        self.items: Final = list_items(self.listed)
        self._entries: Final[list[JsonObject | None]] = [None] * len(self.items)

    def entry(self, index: int) -> JsonObject:
        """Return a message."""
        found = self._entries[index]
        if found is None:
            found = self._entries[index] = self.body.inner(self.items[index])
        return found

    def entries(self) -> list[JsonObject]:
        """Return all messages."""
        return [self.entry(index) for index in range(len(self.items))]


def _messages(request: WireRequest) -> Messages:
    found: Messages | None = request.messages
    if found is None:
        found = request.messages = Messages(request)
    return found


def user_messages(request: WireRequest) -> list[UserMessage]:
    """Return the messages with the user's role, in edit."""
    messages = _messages(request)
    shape = messages.shape
    bare = string_value(messages.listed)
    if bare is not None:
        return [UserMessage(index=0, texts=(MessageText(None, bare),))]
    return [
        _read_message(entry, shape, index=index)
        for index, entry in enumerate(messages.entries())
        if shape.is_user(entry)
    ]


def message_path(request: WireRequest, message: UserMessage) -> str:
    """Return the path of the message for error texts."""
    return f"{MESSAGE_SHAPES[request.protocol].entries}[{message.index}]"


def agent_texts(request: WireRequest) -> dict[tuple[int, int | None], str]:
    """Return the texts that agents wrote to each other (Codex), by message and part."""
    shape = MESSAGE_SHAPES[request.protocol]
    if not shape.agent_types:
        return {}
    return {
        (index, text.part): text.text
        for index, entry in enumerate(_messages(request).entries())
        if string_value(entry.get("type")) in shape.agent_types
        for text in _read_message(entry, shape, index=index).texts
    }


def model_texts(request: WireRequest) -> dict[int, str]:
    """Return the texts of the model's messages that are one text only, by index."""
    messages = _messages(request)
    found: dict[int, str] = {}
    for index, entry in enumerate(messages.entries()):
        text = _model_text(entry, messages.shape)
        if text is not None:
            found[index] = text
    return found


def system_indices(request: WireRequest) -> set[int]:
    """Return the indices of the system messages in the list."""
    messages = _messages(request)
    return {index for index, entry in enumerate(messages.entries()) if messages.shape.is_system(entry)}


def message_count(request: WireRequest) -> int:
    """Return the number of messages; a bare text counts as one."""
    return len(_messages(request).items) or 1


def prefill_index(request: WireRequest) -> int | None:
    """Return the index of a last message by the model, which it is to continue; None if there is none."""
    last = message_count(request) - 1
    return last if model_text_at(request, last) is not None else None


def model_text_at(request: WireRequest, index: int) -> str | None:
    """Return the text of the model's message at this index; None if it is not one text only."""
    messages = _messages(request)
    if not 0 <= index < len(messages.items):
        return None
    return _model_text(messages.entry(index), messages.shape)


def _read_message(entry: JsonObject, shape: MessageShape, *, index: int) -> UserMessage:
    content = entry.get(shape.content)
    plain = string_value(content)
    if plain is not None:
        return UserMessage(index=index, texts=(MessageText(None, plain),))
    parts = [entry.inner(part) for part in list_items(content)]
    kinds = [shape.kind_of(part) for part in parts]
    texts = (
        MessageText(at, string_value(part.get(text_field(part))) or "")
        for at, part in enumerate(parts)
        if kinds[at] == "text"
    )
    return UserMessage(
        index=index,
        texts=tuple(texts),
        has_other_parts=any(kind != "text" for kind in kinds),
        has_results="result" in kinds,
    )


def _model_text(entry: JsonObject, shape: MessageShape) -> str | None:
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
    messages = _messages(request)
    shape, body, listed, items = messages.shape, messages.body, messages.listed, messages.items
    edits = _edits_by_message(texts, drop_parts)
    if starts_with(listed, b'"'):
        return _rewrite_bare_input(body, shape, edit=edits.get(0, _UNCHANGED), dropped=0 in drop_messages)
    if not edits.keys() <= set(range(len(items))):
        raise ValueError(f"there are {len(items)} messages; no text can change at {max(edits)}")
    changes: dict[int, Replacement] = dict.fromkeys(drop_messages)
    for index, item in enumerate(items):
        if index in changes:
            continue
        edit = edits.get(index)
        if edit is None and not may_hold_tags(bytes(item)):
            continue
        entry = messages.entry(index)
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
            fields[text_field(part)] = json.encode(edit.texts[at])
        if shape.cache_field and is_present(marker) and not is_present(own):
            fields[shape.cache_field] = bytes(marker)
        marker = ABSENT
        if fields or shape.kind_of(part) == "text":
            _note_change(changes, at, item=part.data, changed=part.changed(fields))
    return changes
