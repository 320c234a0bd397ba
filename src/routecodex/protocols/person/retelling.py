"""A body told again with some of the person's texts changed or left out, every other byte as it came."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Raw, Struct

from routecodex.protocols.codec import Inbound
from routecodex.wire import json
from routecodex.wire.json import ABSENT, begins, present

from .pieces import Change, Object, items_of, with_items
from .shapes import SHAPES, Shape, is_respelled
from .tags import may_hold_tags

_NO_TEXT = b'""'


class Order(Struct, frozen=True):
    """What shall change in one message: new texts by part (None: the whole content), parts to leave out."""

    texts: dict[int | None, str]
    drops: set[int]


_UNCHANGED = Order({}, set())


def retold(
    inbound: Inbound,
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
    shape = SHAPES[inbound.protocol]
    body = Object(inbound.body, respelled=is_respelled(inbound))
    listed = body.get(shape.entries)
    orders = _orders(texts, drop_parts)
    if begins(listed, b'"'):
        return _retold_bare(body, shape, order=orders.get(0, _UNCHANGED), dropped=0 in drop_messages)
    items = items_of(listed)
    if not orders.keys() <= set(range(len(items))):
        raise ValueError(f"there are {len(items)} messages; no text can change at {max(orders)}")
    changes: dict[int, Change] = dict.fromkeys(drop_messages)
    for index, item in enumerate(items):
        if index in changes:
            continue
        order = orders.get(index)
        if order is None and not may_hold_tags(bytes(item)):
            continue
        entry = body.inner(item)
        if order is not None or shape.is_persons(entry):
            _keep_change(changes, index, item=item, told=_message(entry, shape, order or _UNCHANGED))
    return body.changed({shape.entries: with_items(listed, changes)} if changes else {})


def _orders(
    texts: Mapping[tuple[int, int | None], str], drop_parts: Collection[tuple[int, int]]
) -> dict[int, Order]:
    orders: dict[int, Order] = {}
    for (index, part), text in texts.items():
        orders.setdefault(index, Order({}, set())).texts[part] = text
    for index, dropped in drop_parts:
        orders.setdefault(index, Order({}, set())).drops.add(dropped)
    return orders


def _keep_change(changes: dict[int, Change], at: int, *, item: Raw | bytes, told: Change) -> None:
    if told is None or told != bytes(item):
        changes[at] = told


def _retold_bare(body: Object, shape: Shape, *, order: Order, dropped: bool) -> bytes:
    if dropped:
        return body.changed({shape.entries: _NO_TEXT})
    return body.changed({shape.entries: json.encode(order.texts[None])} if None in order.texts else {})


def _message(entry: Object, shape: Shape, order: Order) -> Change:
    """The message as ordered; None when no part is left of it."""
    content = entry.get(shape.content)
    if begins(content, b'"'):
        if order.drops or order.texts.keys() - {None}:
            raise ValueError("this message is one plain text: it has no parts to change")
        text = order.texts.get(None)
        return entry.changed({} if text is None else {shape.content: json.encode(text)})
    parts = items_of(content)
    changes = _parts([entry.inner(part) for part in parts], shape, order)
    if parts and all(at in changes and changes[at] is None for at in range(len(parts))):
        return None
    return entry.changed({shape.content: with_items(content, changes)} if changes else {})


def _parts(parts: list[Object], shape: Shape, order: Order) -> dict[int, Change]:
    """Back to front, so that the marker of a part left out meets the part before it."""
    misplaced = order.texts.keys() - {at for at in range(len(parts)) if shape.kind_of(parts[at]) == "text"}
    if misplaced:
        raise ValueError(f"there is no text to change at {sorted(misplaced, key=str)!r}")
    changes: dict[int, Change] = {}
    marker = ABSENT
    for at in reversed(range(len(parts))):
        part = parts[at]
        own = part.get(shape.marker) if shape.marker else ABSENT
        if at in order.drops:
            changes[at] = None
            marker = own if present(own) else marker
            continue
        wanted: dict[str, Change] = {}
        if at in order.texts:
            wanted["text"] = json.encode(order.texts[at])
        if shape.marker and present(marker) and not present(own):
            wanted[shape.marker] = bytes(marker)
        marker = ABSENT
        if wanted or shape.kind_of(part) == "text":
            _keep_change(changes, at, item=part.data, told=part.changed(wanted))
    return changes
