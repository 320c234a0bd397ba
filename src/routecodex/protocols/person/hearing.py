"""The texts of the person and of the model in a request, where they stand.

Tool results, system texts and what stands in documents are nobody's words here: they are not listed.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from routecodex.protocols.codec import WireRequest
from routecodex.protocols.person.pieces import JsonObject, list_items, string_value
from routecodex.protocols.person.shapes import MESSAGE_SHAPES, MessageShape, uses_snake_case
from routecodex.wire.json import begins

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
    if begins(content, b'"'):
        return string_value(content)
    parts = list_items(content)
    only = entry.inner(parts[0]) if len(parts) == 1 else None
    return string_value(only.get("text")) if only is not None and shape.kind_of(only) == "text" else None
