"""Which item an event is about.

Upstreams number their items, name them, or both; some give every item the same number, some a new name in
every event, some neither. An event belongs to the item that fits it best and is still open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routecodex.protocols.responses.heard import (
    CallItemDecoder,
    EventQueue,
    ItemDecoder,
    MessageItemDecoder,
    OpaqueItemDecoder,
    ReasoningItemDecoder,
)

_HEARD: dict[str, type[ItemDecoder]] = {
    "message": MessageItemDecoder,
    "reasoning": ReasoningItemDecoder,
    "function_call": CallItemDecoder,
    "custom_tool_call": CallItemDecoder,
}


class ItemIndex:
    """The items heard so far, found by number, by name, or as the last of their kind."""

    def __init__(self, telling: EventQueue) -> None:
        self._telling = telling
        self._all: list[ItemDecoder] = []
        self._by_index: dict[int, ItemDecoder] = {}
        self._by_id: dict[str, ItemDecoder] = {}

    def __iter__(self) -> Iterator[ItemDecoder]:
        return iter(self._all)

    def of_event(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        """The item that a delta or its like is about."""
        found = self._found(_HEARD[kind], index=index, ident=ident)
        return found or self._new(kind, index=index, ident=ident)

    def of_item(self, item: dict[str, Any], *, index: int | None, added: bool) -> ItemDecoder:
        """The item that `output_item.added` or `.done` shows."""
        kind, ident = str(item.get("type")), _ident(item)
        form = _HEARD.get(kind, OpaqueItemDecoder)
        known = self._by_id.get(ident) if ident is not None else None
        if isinstance(known, form):
            return known
        if not added or index is None or self._is_nameless(index):
            found = self._found(form, index=index, ident=None)
            if found is not None:
                return found
        return self._new(kind, index=index, ident=ident)

    def matched(self, items: list[dict[str, Any]]) -> Iterator[tuple[ItemDecoder, dict[str, Any]]]:
        """The items of a final answer, each with what was heard of it."""
        free = list(self._all)
        for index, item in enumerate(items):
            heard = self._match(index, item, free)
            if heard is None:
                heard = self._new(str(item.get("type")), index=None, ident=_ident(item))
            else:
                free.remove(heard)
            yield heard, item

    def _match(self, index: int, item: dict[str, Any], free: list[ItemDecoder]) -> ItemDecoder | None:
        form = _HEARD.get(str(item.get("type")), OpaqueItemDecoder)
        named = self._by_id.get(_ident(item) or "")
        if named in free:
            return named
        alike = [heard for heard in free if type(heard) is form]
        for heard in alike:
            if isinstance(heard, CallItemDecoder) and heard.call_id and heard.call_id == item.get("call_id"):
                return heard
        placed = self._by_index.get(index)
        if placed in alike:
            return placed
        return alike[0] if alike and form is not CallItemDecoder else None

    def _is_nameless(self, index: int) -> bool:
        """Whether the item at this number is known from deltas only, so that its head may still come."""
        known = self._by_index.get(index)
        return known is not None and not known.finished and not known.shown

    def _found(self, form: type[ItemDecoder], *, index: int | None, ident: str | None) -> ItemDecoder | None:
        placed = self._by_index.get(index) if index is not None else None
        if type(placed) is form and not placed.finished:
            return placed
        named = self._by_id.get(ident) if ident is not None else None
        if type(named) is form:
            return named
        if index is not None or ident is not None:
            return None
        still_open = (heard for heard in reversed(self._all) if type(heard) is form and not heard.finished)
        return next(still_open, None)

    def _new(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        heard = _HEARD.get(kind, OpaqueItemDecoder)(self._telling)
        self._all.append(heard)
        if index is not None:
            self._by_index[index] = heard
        if ident is not None:
            self._by_id[ident] = heard
        return heard


def _ident(item: dict[str, Any]) -> str | None:
    value = item.get("id")
    return value if isinstance(value, str) and value else None
