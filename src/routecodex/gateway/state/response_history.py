"""Stores Responses answers and expands requests that continue them.

The Responses API's memory: every answer that may be continued, in the store, bounded, with an expiry.

Conversations of the Responses API: put in front of the request that continues one, kept when answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest, NotFound, Overloaded
from routecodex.gateway.request import ClientRequest
from routecodex.protocols.codec import AnswerOutcome, WireRequest
from routecodex.protocols.responses import history as turns
from routecodex.protocols.responses.history import StoredTurn
from routecodex.protocols.responses.schema import REFERENCE
from routecodex.routing.registry import Registry, Target
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "responses"
_ITEM_SPACE = "responses.items"
_ITEMS_EACH = 4
_TRIM_EVERY = 64
_MAX_CHAIN = 1000

T = TypeVar("T")

log = logging.getLogger("routecodex.history")


class Entry(Struct, frozen=True):
    """One answered request: the turn itself, the answer before it, and the provider and key that gave it.

    `native` is True when that provider keeps the conversation itself, under the same id. `chain` is the id of
    the request that began the conversation. Of an answer that was `deleted`, but that its provider keeps,
    nothing else is left.
    """

    request: Raw
    response: Raw
    previous: str | None = None
    provider: str = ""
    key: str = ""
    native: bool = False
    chain: str = ""
    deleted: bool = False

    @property
    def holder(self) -> tuple[str, str] | None:
        """The provider and key that keep the answer themselves."""
        return (self.provider, self.key) if self.native else None

    @property
    def turn(self) -> StoredTurn:
        return StoredTurn(self.request, self.response)


class StoredItem(Struct, frozen=True):
    """What an item's id leads to: the answer it is of, and the item, unless the answer was deleted."""

    entry: Entry
    item: Raw | None


_decoder = Decoder(Entry)
_id = Decoder(str)
_NOTHING = Raw(b"null")


class ResponseHistory:
    """Answers by id."""

    def __init__(self, store: Store, *, ttl: float, entries: int, size: int) -> None:
        self._store = store
        self._ttl = ttl
        self._entries = entries
        self._size = size
        self._saves = 0

    async def save(self, response_id: str, entry: Entry, *, items: Sequence[str] = ()) -> None:
        """Keeps an answer, and where its `items` are; a store that is down costs the continuation alone."""
        if self._entries == 0:
            return
        try:
            kept = self._store.put(_SPACE, response_id, json.encode(entry), ttl=self._ttl)
            await (asyncio.gather(kept, *self._homes(response_id, items)) if items else kept)
            self._saves += 1
            if self._saves % _TRIM_EVERY == 0:
                await self._store.trim(_SPACE, entries=self._entries, size=self._size)
                await self._store.trim(_ITEM_SPACE, entries=self._entries * _ITEMS_EACH, size=self._size)
        except StoreError as exc:
            log.error("response %s cannot be continued later: %s", response_id, exc)

    def _homes(self, response_id: str, items: Sequence[str]) -> list[Coroutine[Any, Any, int]]:
        home = json.encode(response_id)
        return [self._store.put(_ITEM_SPACE, item, home, ttl=self._ttl) for item in items]

    async def get(self, response_id: str) -> Entry:
        """One answer, or NotFound."""
        entry = await self.find(response_id)
        if entry is None or entry.deleted:
            raise NotFound(f"no response with id {response_id!r} is stored", code="response_not_found")
        return entry

    async def find(self, response_id: str) -> Entry | None:
        """One answer, or what is left of one that was deleted, or None."""
        return await self._read(_SPACE, response_id, _decoder)

    async def find_item(self, item_id: str) -> StoredItem | None:
        """The item with this id in a stored answer, or None."""
        told = turns.parent_response_id(item_id)
        found = None if told is None else await self._item_of(told, item_id)
        if found is not None:
            return found
        indexed = await self._read(_ITEM_SPACE, item_id, _id)
        return None if indexed is None else await self._item_of(indexed, item_id)

    async def _item_of(self, response_id: str, item_id: str) -> StoredItem | None:
        entry = await self.find(response_id)
        if entry is None or entry.deleted:
            return None if entry is None else StoredItem(entry, None)
        item = turns.find_item(entry.turn, item_id)
        return None if item is None else StoredItem(entry, item)

    async def _read(self, space: str, key: str, decoder: Decoder[T]) -> T | None:
        try:
            stored = await self._store.get(space, key)
        except StoreError as exc:
            raise _unavailable(exc) from exc
        return None if stored is None else json.try_read(stored.value, decoder)

    async def delete(self, response_id: str) -> None:
        """Forgets an answer, or raises NotFound.

        Of one that its provider keeps, that it was deleted is known as long as it would have been kept.
        """
        entry = await self.get(response_id)
        try:
            if entry.native:
                left = json.encode(Entry(_NOTHING, _NOTHING, native=True, deleted=True))
                await self._store.put(_SPACE, response_id, left, ttl=self._ttl)
            else:
                await self._store.delete(_SPACE, response_id)
        except StoreError as exc:
            raise _unavailable(exc) from exc

    async def input_items(self, response_id: str) -> list[Any]:
        """What an answer was given, listed; an item that was only referred to is shown while it is known."""
        entry = await self.get(response_id)
        return [await self._shown(item) for item in turns.input_items(entry.turn)]

    async def _shown(self, item: dict[str, Any]) -> Any:
        found = await self.find_item(item["id"]) if item["type"] == REFERENCE else None
        return item if found is None or found.item is None else json.decode_raw(found.item)

    async def chain(self, response_id: str) -> list[Entry]:
        """The answers that lead to this one, oldest first."""
        entries: list[Entry] = []
        at: str | None = response_id
        while at is not None:
            entry = await self.find(at)
            if entry is None or entry.deleted or len(entries) >= _MAX_CHAIN:
                raise BadRequest(
                    f"previous_response_id: {at!r} is not stored (any more)",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            entries.append(entry)
            at = entry.previous
        return entries[::-1]


def _unavailable(exc: StoreError) -> Overloaded:
    log.error("the history cannot be read: %s", exc)
    return Overloaded("stored responses cannot be reached now; try again later", code="store_unavailable")


MayKnow = Callable[[], Awaitable[bool]]
"""Whether the providers themselves may keep what is not stored here."""


class ResponseChains:
    """Answers that lead to one another, by `previous_response_id` or by references to their items."""

    def __init__(self, history: ResponseHistory, registry: Registry) -> None:
        self._history = history
        self._registry = registry

    async def expand(self, request: ClientRequest, may_know: MayKnow) -> None:
        """Puts what a request refers to in its place: the stored conversation, and single items of it.

        What is not stored here may be kept by the provider itself, if `may_know` says so.
        """
        sent = request.wire
        if sent.view.previous_response_id:
            await self._continue(request, sent.view.previous_response_id, may_know)
        if request.wire.view.references:
            await self._resolve(request, sent, may_know)

    async def _continue(self, request: ClientRequest, previous: str, may_know: MayKnow) -> None:
        if await self._history.find(previous) is None and await _asked(request, may_know):
            return
        chain = await self._history.chain(previous)
        request.original = request.wire
        last = chain[-1]
        request.chain = last.chain or None
        request.holder = last.holder
        body = turns.expand(request.wire.body, [entry.turn for entry in chain])
        request.wire = request.codec.validate(body)

    async def _resolve(self, request: ClientRequest, sent: WireRequest, may_know: MayKnow) -> None:
        """Puts items where references to them stand; their one holder gets the request as it was sent."""
        references = request.wire.view.references
        earlier = len(references) - len(sent.view.references)
        found = {at: await self._history.find_item(item_id) for at, item_id in references}
        missing = [one for one in enumerate(references) if _item(found[one[1][0]]) is None]
        for number, (at, item_id) in missing:
            if found[at] is not None or not await _asked(request, may_know):
                own = number - earlier
                raise _not_found(item_id, None if own < 0 else sent.view.references[own][0])
        items = {at: item for at, one in found.items() if (item := _item(one)) is not None}
        if not items:
            return
        holders = {one.entry.holder for at, _ in references[earlier:] if (one := found[at]) is not None}
        if request.original is not None:
            holders.add(request.holder)
        request.holder = holders.pop() if len(holders) == 1 else None
        request.original = sent
        request.wire = request.codec.validate(turns.resolve_references(request.wire.body, items))

    def keeps_its_own(self, target: Target) -> bool:
        """Whether the provider keeps the conversations that it has part in."""
        return self._registry.providers[target.provider].protocol == "responses"

    async def remember(self, request: ClientRequest, target: Target | None, outcome: AnswerOutcome) -> None:
        """Keeps an answer that may be continued."""
        inbound = request.received or request.original or request.wire
        if outcome.body is None or inbound.view.store is False:
            return
        response_id, items = turns.stored_ids(outcome.body)
        if not response_id:
            return
        entry = Entry(
            request=Raw(inbound.body),
            response=Raw(outcome.body),
            previous=inbound.view.previous_response_id,
            provider=target.provider if target is not None else "",
            key=target.key if target is not None else "",
            native=target is not None and self.keeps_its_own(target),
            chain=request.chain or request.id,
        )
        await self._history.save(response_id, entry, items=items)


async def _asked(request: ClientRequest, may_know: MayKnow) -> bool:
    """What `may_know` says; the course it sets to find out leaves no trace in the request."""
    before = request.wire, request.original, request.received
    known = await may_know()
    request.wire, request.original, request.received = before
    return known


def _item(found: StoredItem | None) -> Raw | None:
    return None if found is None else found.item


def _not_found(item_id: str, at: int | None) -> BadRequest:
    """The refusal of a reference; without a place it stands in a turn before this one."""
    param = "previous_response_id" if at is None else f"input[{at}].id"
    code = "previous_response_not_found" if at is None else "item_not_found"
    return BadRequest(f"{param}: the item {item_id!r} is not stored (any more)", param=param, code=code)
