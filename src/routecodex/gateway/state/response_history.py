"""Stores Responses answers and expands requests that continue them.

Every answer that may be continued is stored, in bounded number and with an expiry. A request that continues
one (`previous_response_id`) or refers to its items gets the stored conversation in their place. With several
clients, answers and items are stored below their owner: those of another client do not exist.
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
from routecodex.stores.background_trim import BackgroundTrim
from routecodex.stores.owned_keys import owned_key
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "responses"
_ITEM_SPACE = "responses.items"
_ITEMS_EACH = 4
_TRIM_EVERY = 64
_MAX_CHAIN = 1000

UNSTORED = "this response cannot be continued: the store is unavailable"

T = TypeVar("T")

log = logging.getLogger("routecodex.history")


class Entry(Struct, frozen=True):
    """One answered request: the turn, the id of the answer before it, and the provider and key that answered.

    `native`: the provider stores the conversation itself, under the same id. `chain` is the id of the request
    that began the conversation. A `deleted` answer that its provider still stores holds nothing else.
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
        """The provider and key that store the answer themselves."""
        return (self.provider, self.key) if self.native else None

    @property
    def turn(self) -> StoredTurn:
        return StoredTurn(self.request, self.response)


class StoredItem(Struct, frozen=True):
    """An item and the answer that holds it; the item is None if the answer was deleted."""

    entry: Entry
    item: Raw | None


_entries = Decoder(Entry)
_ids = Decoder(str)
_NULL = Raw(b"null")


class ResponseHistory:
    """Stored Responses answers, by id, each below the client that owns it if there are several.

    `works` tells whether the store can be written now.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: float,
        entries: int,
        size: int,
        works: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._works = works
        self._ttl = ttl
        self._entries = entries
        limits = ((_SPACE, entries), (_ITEM_SPACE, entries * _ITEMS_EACH))
        self._trims = [
            BackgroundTrim(store, space, entries=most, size=size, every=_TRIM_EVERY, log=log)
            for space, most in limits
        ]

    @property
    def is_off(self) -> bool:
        """Whether answers are never stored, by configuration."""
        return self._entries == 0

    @property
    def can_save(self) -> bool:
        """Whether an answer that begins now can be stored, as far as is known."""
        return self._entries > 0 and self._works()

    async def save(
        self, response_id: str, entry: Entry, *, items: Sequence[str] = (), owner: str = ""
    ) -> bool:
        """Store an answer and index its `items`; return whether that was done."""
        if self._entries == 0:
            return False
        try:
            key = owned_key(owner, response_id)
            put = self._store.put(_SPACE, key, json.encode(entry), ttl=self._ttl)
            await (asyncio.gather(put, *self._index(response_id, items, owner)) if items else put)
            for trim in self._trims:
                trim.wrote()
        except StoreError as exc:
            log.debug("response %s cannot be continued later: %s", response_id, exc)
            return False
        return True

    def _index(self, response_id: str, items: Sequence[str], owner: str) -> list[Coroutine[Any, Any, int]]:
        value = json.encode(response_id)
        return [self._store.put(_ITEM_SPACE, owned_key(owner, item), value, ttl=self._ttl) for item in items]

    async def get(self, response_id: str, owner: str = "") -> Entry:
        """Return an answer; NotFound if it is not stored or was deleted."""
        entry = await self.find(response_id, owner)
        if entry is None or entry.deleted:
            raise NotFound(f"no response with id {response_id!r} is stored", code="response_not_found")
        return entry

    async def find(self, response_id: str, owner: str = "") -> Entry | None:
        """Return an answer, also one that is marked as deleted; None if it is not stored."""
        return await self._read(_SPACE, owned_key(owner, response_id), _entries)

    async def find_item(self, item_id: str, owner: str = "") -> StoredItem | None:
        """Return the item with this id in a stored answer, or None."""
        parent = turns.parent_response_id(item_id)
        found = None if parent is None else await self._find_in(parent, item_id, owner)
        if found is not None:
            return found
        indexed = await self._read(_ITEM_SPACE, owned_key(owner, item_id), _ids)
        return None if indexed is None else await self._find_in(indexed, item_id, owner)

    async def _find_in(self, response_id: str, item_id: str, owner: str) -> StoredItem | None:
        entry = await self.find(response_id, owner)
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

    async def delete(self, response_id: str, owner: str = "") -> None:
        """Delete an answer; NotFound if it is not stored.

        One that its provider also stores is marked as deleted until it expires, and not requested there.
        """
        entry = await self.get(response_id, owner)
        key = owned_key(owner, response_id)
        try:
            if entry.native:
                marker = json.encode(Entry(_NULL, _NULL, native=True, deleted=True))
                await self._store.put(_SPACE, key, marker, ttl=self._ttl)
            else:
                await self._store.delete(_SPACE, key)
        except StoreError as exc:
            raise _unavailable(exc) from exc

    async def input_items(self, response_id: str, owner: str = "") -> list[Any]:
        """Return the input items of an answer; a reference is replaced by its item while that is stored."""
        entry = await self.get(response_id, owner)
        return [await self._resolved(item, owner) for item in turns.input_items(entry.turn)]

    async def _resolved(self, item: dict[str, Any], owner: str) -> Any:
        found = await self.find_item(item["id"], owner) if item["type"] == REFERENCE else None
        return item if found is None or found.item is None else json.decode_raw(found.item)

    async def chain(self, response_id: str, owner: str = "") -> list[Entry]:
        """Return the answers that lead to this one, and it, oldest first."""
        entries: list[Entry] = []
        current: str | None = response_id
        while current is not None:
            entry = await self.find(current, owner)
            if entry is None or entry.deleted or len(entries) >= _MAX_CHAIN:
                raise BadRequest(
                    f"previous_response_id: {current!r} is not stored (any more)",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            entries.append(entry)
            current = entry.previous
        return entries[::-1]


def _unavailable(exc: StoreError) -> Overloaded:
    log.debug("stored responses cannot be read or deleted: %s", exc)
    return Overloaded("stored responses cannot be reached now; try again later", code="store_unavailable")


MayBeUpstream = Callable[[], Awaitable[bool]]
"""Whether the providers themselves may store an answer that is not stored here."""


class ResponseChains:
    """Answers that continue one another, by `previous_response_id` or by references to their items."""

    def __init__(self, history: ResponseHistory, registry: Registry) -> None:
        self._history = history
        self._registry = registry

    async def expand(self, request: ClientRequest, may_be_upstream: MayBeUpstream) -> None:
        """Replace references in a request by the stored conversation and by single items.

        A reference that is not stored here stays if `may_be_upstream`; otherwise it is an error.
        """
        sent = request.wire
        if sent.view.previous_response_id:
            await self._continue(request, sent.view.previous_response_id, may_be_upstream)
        if request.wire.view.references:
            await self._resolve(request, sent, may_be_upstream)
        if sent.view.store and not self._history.can_save:
            self._mark_unstored(request)

    def _mark_unstored(self, request: ClientRequest) -> None:
        """Let the answer say that it is not stored, whatever the client asked for."""
        request.wire = turns.marked_unstorable(request.wire)
        if request.original is not None:
            request.original = turns.marked_unstorable(request.original)
        if not self._history.is_off:
            request.notices.add(UNSTORED)

    async def _continue(self, request: ClientRequest, previous: str, may_be_upstream: MayBeUpstream) -> None:
        known = await self._history.find(previous, request.owner) is not None
        if not known and await _unchanged(request, may_be_upstream):
            return
        chain = await self._history.chain(previous, request.owner)
        request.original = request.wire
        last = chain[-1]
        request.chain = last.chain or None
        request.holder = last.holder
        body = turns.expand(request.wire.body, [entry.turn for entry in chain])
        request.wire = request.codec.validate(body)

    async def _resolve(
        self, request: ClientRequest, sent: WireRequest, may_be_upstream: MayBeUpstream
    ) -> None:
        """Replace references by their items; if one provider stores them all, it gets the request as sent."""
        references = request.wire.view.references
        earlier = len(references) - len(sent.view.references)
        found = {at: await self._history.find_item(item_id, request.owner) for at, item_id in references}
        for number, (at, item_id) in enumerate(references):
            if _item(found[at]) is not None:
                continue
            if found[at] is not None or not await _unchanged(request, may_be_upstream):
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

    def stores_answers(self, target: Target) -> bool:
        """Return whether the provider stores its own answers."""
        return self._registry.providers[target.provider].protocol == "responses"

    async def remember(self, request: ClientRequest, target: Target | None, outcome: AnswerOutcome) -> bool:
        """Store an answer that may be continued; return False if it should be and could not be stored."""
        wire = request.received or request.original or request.wire
        if outcome.body is None or wire.view.store is False or wire.view.unstorable:
            return True
        response_id, items = turns.stored_ids(outcome.body)
        if not response_id:
            return True
        entry = Entry(
            request=Raw(wire.body),
            response=Raw(outcome.body),
            previous=wire.view.previous_response_id,
            provider=target.provider if target is not None else "",
            key=target.key if target is not None else "",
            native=target is not None and self.stores_answers(target),
            chain=request.chain or request.id,
        )
        saved = await self._history.save(response_id, entry, items=items, owner=request.owner)
        if not saved:
            request.notices.add(UNSTORED)
        return saved

    def unstored(self, out: bytes, outcome: AnswerOutcome) -> bytes:
        """Return the last bytes of an answer with a response object that says that it is not stored."""
        return out if outcome.body is None else turns.unstored(out, outcome.body)


async def _unchanged(request: ClientRequest, may_be_upstream: MayBeUpstream) -> bool:
    """Return the result of `may_be_upstream`; the request, which it plans for that, stays unchanged."""
    before = request.wire, request.original, request.received
    result = await may_be_upstream()
    request.wire, request.original, request.received = before
    return result


def _item(found: StoredItem | None) -> Raw | None:
    return None if found is None else found.item


def _not_found(item_id: str, at: int | None) -> BadRequest:
    """Return the error for an unknown reference; without `at` an earlier turn holds it."""
    param = "previous_response_id" if at is None else f"input[{at}].id"
    code = "previous_response_not_found" if at is None else "item_not_found"
    return BadRequest(f"{param}: the item {item_id!r} is not stored (any more)", param=param, code=code)
