"""The texts of the person and of the model in a request, where they stand.

Tool results, system texts and what stands in documents are nobody's words here: they are not listed.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from routecodex.protocols.codec import Inbound
from routecodex.wire.json import begins

from .pieces import Object, items_of, text_of
from .shapes import SHAPES, Shape, is_respelled

_NOTHING = frozenset({b"", b"null", b"[]", b'""'})


class Written(Struct, frozen=True):
    """One text of a message; `part` is None where the content is nothing but that text."""

    part: int | None
    text: str


class UserMessage(Struct, frozen=True, kw_only=True):
    """A message with the user's role, by its place in the list.

    `holds_more`: it has parts that are no texts. `brings_results`: results of tools are among them, so it may
    be an agent that goes on and nobody who speaks. `is_last`: nothing stands after it.
    """

    index: int
    texts: tuple[Written, ...]
    holds_more: bool = False
    brings_results: bool = False
    is_last: bool = False


def user_messages(inbound: Inbound) -> list[UserMessage]:
    """The messages with the user's role, in order, with what the person wrote in them."""
    shape = SHAPES[inbound.protocol]
    body = Object(inbound.body, respelled=is_respelled(inbound))
    listed = body.get(shape.entries)
    bare = text_of(listed)
    if bare is not None:
        return [UserMessage(index=0, texts=(Written(None, bare),), is_last=True)]
    items = items_of(listed)
    last = len(items) - 1
    return [
        _heard(entry, shape, index=index, is_last=index == last)
        for index, item in enumerate(items)
        if shape.is_persons(entry := body.inner(item))
    ]


def place(inbound: Inbound, message: UserMessage) -> str:
    """How the message is called in what a client is told of its request."""
    return f"{SHAPES[inbound.protocol].entries}[{message.index}]"


def answers(inbound: Inbound) -> dict[int, str]:
    """What the model said, by place in the list, wherever that is one text and nothing else."""
    found = ((index, _answer(item, inbound)) for index, item in enumerate(_items(inbound)))
    return {index: text for index, text in found if text is not None}


def begun_answer(inbound: Inbound) -> int | None:
    """Where the list ends with words of the model that it is to go on from; None when it does not."""
    items = _items(inbound)
    return len(items) - 1 if items and _answer(items[-1], inbound) is not None else None


def plain_answer(inbound: Inbound, index: int) -> str | None:
    """What the model said at this place of the list; None when that is not one text and nothing else."""
    items = _items(inbound)
    return _answer(items[index], inbound) if 0 <= index < len(items) else None


def _items(inbound: Inbound) -> list[Raw]:
    body = Object(inbound.body, respelled=is_respelled(inbound))
    return items_of(body.get(SHAPES[inbound.protocol].entries))


def _heard(entry: Object, shape: Shape, *, index: int, is_last: bool) -> UserMessage:
    content = entry.get(shape.content)
    plain = text_of(content)
    if plain is not None:
        return UserMessage(index=index, texts=(Written(None, plain),), is_last=is_last)
    parts = [entry.inner(part) for part in items_of(content)]
    kinds = [shape.kind_of(part) for part in parts]
    texts = (
        Written(at, text_of(part.get("text")) or "") for at, part in enumerate(parts) if kinds[at] == "text"
    )
    return UserMessage(
        index=index,
        texts=tuple(texts),
        holds_more=any(kind != "text" for kind in kinds),
        brings_results="result" in kinds,
        is_last=is_last,
    )


def _answer(item: Raw, inbound: Inbound) -> str | None:
    shape = SHAPES[inbound.protocol]
    entry = Object(item, respelled=is_respelled(inbound))
    if not shape.is_models(entry) or any(bytes(entry.get(name)) not in _NOTHING for name in shape.beside):
        return None
    content = entry.get(shape.content)
    if begins(content, b'"'):
        return text_of(content)
    parts = items_of(content)
    only = entry.inner(parts[0]) if len(parts) == 1 else None
    return text_of(only.get("text")) if only is not None and shape.kind_of(only) == "text" else None
