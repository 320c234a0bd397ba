"""Finds and replaces user-written texts in a request.

Where each protocol keeps messages, parts and texts: the only place that knows the protocols apart.

The texts of the person and of the model in a request, where they stand.

Tool results, system texts and what stands in documents are nobody's words here: they are not listed.

A body told again with some of the person's texts changed or left out, every other byte as it came.

What the person wrote: the user's texts in a request of any protocol, and the body with them changed.

tags         may_hold_tags: whether a body is worth a closer look
hearing      user_messages, answers, …: the texts of the person and of the model, where they stand
retelling    retold: the body with texts changed, parts and messages left out, every other byte as it came
shapes       SHAPES: where each protocol keeps messages, parts and texts
pieces       Object, items_of, with_items: JSON changed at its byte offsets
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
    if kind in texts and starts_with(part.get("text"), b'"'):
        return "text"
    return "result" if kind in results else "other"


_DATA = ("functionCall", "inlineData", "fileData")
"""What a Gemini part is before it is a text: the codec reads it so too."""


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
    return inbound.protocol == "gemini" and bool(inbound.view.snake)


_EMPTY_VALUES = frozenset({b"", b"null", b"[]", b'""'})


class MessageText(Struct, frozen=True):
    """One text of a message; `part` is None where the content is nothing but that text."""

    part: int | None
    text: str


class UserMessage(Struct, frozen=True, kw_only=True):
    """A message with the user's role, by its place in the list.

    `holds_more`: it has parts that are no texts. `brings_results`: results of tools are among them, so it may
    be an agent that goes on and nobody who speaks. `is_last`: nothing stands after it.
    """

    index: int
    texts: tuple[MessageText, ...]
    holds_more: bool = False
    brings_results: bool = False
    is_last: bool = False


def user_messages(inbound: WireRequest) -> list[UserMessage]:
    """The messages with the user's role, in order, with what the person wrote in them."""
    shape = MESSAGE_SHAPES[inbound.protocol]
    body = JsonObject(inbound.body, respelled=uses_snake_case(inbound))
    listed = body.get(shape.entries)
    bare = string_value(listed)
    if bare is not None:
        return [UserMessage(index=0, texts=(MessageText(None, bare),), is_last=True)]
    items = list_items(listed)
    last = len(items) - 1
    return [
        _read_message(entry, shape, index=index, is_last=index == last)
        for index, item in enumerate(items)
        if shape.is_persons(entry := body.inner(item))
    ]


def message_path(inbound: WireRequest, message: UserMessage) -> str:
    """How the message is called in what a client is told of its request."""
    return f"{MESSAGE_SHAPES[inbound.protocol].entries}[{message.index}]"


def model_texts(inbound: WireRequest) -> dict[int, str]:
    """What the model said, by place in the list, wherever that is one text and nothing else."""
    found = ((index, _model_text(item, inbound)) for index, item in enumerate(_items(inbound)))
    return {index: text for index, text in found if text is not None}


def prefill_index(inbound: WireRequest) -> int | None:
    """Where the list ends with words of the model that it is to go on from; None when it does not."""
    items = _items(inbound)
    return len(items) - 1 if items and _model_text(items[-1], inbound) is not None else None


def model_text_at(inbound: WireRequest, index: int) -> str | None:
    """What the model said at this place of the list; None when that is not one text and nothing else."""
    items = _items(inbound)
    return _model_text(items[index], inbound) if 0 <= index < len(items) else None


def _items(inbound: WireRequest) -> list[Raw]:
    body = JsonObject(inbound.body, respelled=uses_snake_case(inbound))
    return list_items(body.get(MESSAGE_SHAPES[inbound.protocol].entries))


def _read_message(entry: JsonObject, shape: MessageShape, *, index: int, is_last: bool) -> UserMessage:
    content = entry.get(shape.content)
    plain = string_value(content)
    if plain is not None:
        return UserMessage(index=index, texts=(MessageText(None, plain),), is_last=is_last)
    parts = [entry.inner(part) for part in list_items(content)]
    kinds = [shape.kind_of(part) for part in parts]
    texts = (
        MessageText(at, string_value(part.get("text")) or "")
        for at, part in enumerate(parts)
        if kinds[at] == "text"
    )
    return UserMessage(
        index=index,
        texts=tuple(texts),
        holds_more=any(kind != "text" for kind in kinds),
        brings_results="result" in kinds,
        is_last=is_last,
    )


def _model_text(item: Raw, inbound: WireRequest) -> str | None:
    shape = MESSAGE_SHAPES[inbound.protocol]
    entry = JsonObject(item, respelled=uses_snake_case(inbound))
    if not shape.is_models(entry) or any(
        bytes(entry.get(name)) not in _EMPTY_VALUES for name in shape.beside
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
    """What shall change in one message: new texts by part (None: the whole content), parts to leave out."""

    texts: dict[int | None, str]
    drops: set[int]


_UNCHANGED = MessageEdit({}, set())


def rewrite_texts(
    inbound: WireRequest,
    *,
    texts: Mapping[tuple[int, int | None], str],
    drop_parts: Collection[tuple[int, int]] = (),
    drop_messages: Collection[int] = (),
) -> bytes:
    """The body with these texts replaced and these parts and messages left out.

    Places are those of `user_messages`; one that holds no text is a ValueError. A message that loses its
    last part goes too; a bare `input` that is dropped becomes an empty text, since the field must be there.
    A cache marker on a part left out moves to the part before it in the same message, unless that has its
    own: the point up to which a provider caches is not lost. Fields said twice in the person's messages keep
    their last value alone, so that no tag survives in one that readers skip; with nothing to change and
    nothing said twice, the very same bytes come back.
    """
    shape = MESSAGE_SHAPES[inbound.protocol]
    body = JsonObject(inbound.body, respelled=uses_snake_case(inbound))
    listed = body.get(shape.entries)
    orders = _edits(texts, drop_parts)
    if starts_with(listed, b'"'):
        return _rewrite_bare_input(body, shape, order=orders.get(0, _UNCHANGED), dropped=0 in drop_messages)
    items = list_items(listed)
    if not orders.keys() <= set(range(len(items))):
        raise ValueError(f"there are {len(items)} messages; no text can change at {max(orders)}")
    changes: dict[int, Replacement] = dict.fromkeys(drop_messages)
    for index, item in enumerate(items):
        if index in changes:
            continue
        order = orders.get(index)
        if order is None and not may_hold_tags(bytes(item)):
            continue
        entry = body.inner(item)
        if order is not None or shape.is_persons(entry):
            _keep_change(changes, index, item=item, told=_message(entry, shape, order or _UNCHANGED))
    return body.changed({shape.entries: replace_items(listed, changes)} if changes else {})


def _edits(
    texts: Mapping[tuple[int, int | None], str], drop_parts: Collection[tuple[int, int]]
) -> dict[int, MessageEdit]:
    orders: dict[int, MessageEdit] = {}
    for (index, part), text in texts.items():
        orders.setdefault(index, MessageEdit({}, set())).texts[part] = text
    for index, dropped in drop_parts:
        orders.setdefault(index, MessageEdit({}, set())).drops.add(dropped)
    return orders


def _keep_change(changes: dict[int, Replacement], at: int, *, item: Raw | bytes, told: Replacement) -> None:
    if told is None or told != bytes(item):
        changes[at] = told


def _rewrite_bare_input(body: JsonObject, shape: MessageShape, *, order: MessageEdit, dropped: bool) -> bytes:
    if dropped:
        return body.changed({shape.entries: _NO_TEXT})
    return body.changed({shape.entries: json.encode(order.texts[None])} if None in order.texts else {})


def _message(entry: JsonObject, shape: MessageShape, order: MessageEdit) -> Replacement:
    """The message as ordered; None when no part is left of it."""
    content = entry.get(shape.content)
    if starts_with(content, b'"'):
        if order.drops or order.texts.keys() - {None}:
            raise ValueError("this message is one plain text: it has no parts to change")
        text = order.texts.get(None)
        return entry.changed({} if text is None else {shape.content: json.encode(text)})
    parts = list_items(content)
    changes = _parts([entry.inner(part) for part in parts], shape, order)
    if parts and all(at in changes and changes[at] is None for at in range(len(parts))):
        return None
    return entry.changed({shape.content: replace_items(content, changes)} if changes else {})


def _parts(parts: list[JsonObject], shape: MessageShape, order: MessageEdit) -> dict[int, Replacement]:
    """Back to front, so that the marker of a part left out meets the part before it."""
    misplaced = order.texts.keys() - {at for at in range(len(parts)) if shape.kind_of(parts[at]) == "text"}
    if misplaced:
        raise ValueError(f"there is no text to change at {sorted(misplaced, key=str)!r}")
    changes: dict[int, Replacement] = {}
    marker = ABSENT
    for at in reversed(range(len(parts))):
        part = parts[at]
        own = part.get(shape.marker) if shape.marker else ABSENT
        if at in order.drops:
            changes[at] = None
            marker = own if is_present(own) else marker
            continue
        wanted: dict[str, Replacement] = {}
        if at in order.texts:
            wanted["text"] = json.encode(order.texts[at])
        if shape.marker and is_present(marker) and not is_present(own):
            wanted[shape.marker] = bytes(marker)
        marker = ABSENT
        if wanted or shape.kind_of(part) == "text":
            _keep_change(changes, at, item=part.data, told=part.changed(wanted))
    return changes
