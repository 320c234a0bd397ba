"""A body told again with some of the person's texts changed or left out, every other byte as it came."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Raw, Struct

from routecodex.protocols.codec import WireRequest
from routecodex.protocols.person.pieces import JsonObject, Replacement, list_items, replace_items
from routecodex.protocols.person.shapes import MESSAGE_SHAPES, MessageShape, uses_snake_case
from routecodex.protocols.person.tags import may_hold_tags
from routecodex.wire import json
from routecodex.wire.json import ABSENT, begins, present

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
    if begins(listed, b'"'):
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
    if begins(content, b'"'):
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
            marker = own if present(own) else marker
            continue
        wanted: dict[str, Replacement] = {}
        if at in order.texts:
            wanted["text"] = json.encode(order.texts[at])
        if shape.marker and present(marker) and not present(own):
            wanted[shape.marker] = bytes(marker)
        marker = ABSENT
        if wanted or shape.kind_of(part) == "text":
            _keep_change(changes, at, item=part.data, told=part.changed(wanted))
    return changes
