"""Conversations of the Responses API: put in front of the request that continues one, kept when answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from routecodex.canon.errors import BadRequest
from routecodex.gateway.ask import ClientRequest
from routecodex.gateway.history import Entry, ResponseHistory, StoredItem
from routecodex.protocols.codec import AnswerOutcome, WireRequest
from routecodex.protocols.responses import history as turns
from routecodex.routing.registry import Registry, Target

MayKnow = Callable[[], Awaitable[bool]]
"""Whether the providers themselves may keep what is not stored here."""


class ResponseChains:
    """Answers that lead to one another, by `previous_response_id` or by references to their items."""

    def __init__(self, history: ResponseHistory, registry: Registry) -> None:
        self._history = history
        self._registry = registry

    async def expand(self, ask: ClientRequest, may_know: MayKnow) -> None:
        """Puts what a request refers to in its place: the stored conversation, and single items of it.

        What is not stored here may be kept by the provider itself, if `may_know` says so.
        """
        sent = ask.inbound
        if sent.wire.previous_response_id:
            await self._continue(ask, sent.wire.previous_response_id, may_know)
        if ask.inbound.wire.references:
            await self._resolve(ask, sent, may_know)

    async def _continue(self, ask: ClientRequest, previous: str, may_know: MayKnow) -> None:
        if await self._history.find(previous) is None and await _asked(ask, may_know):
            return
        chain = await self._history.chain(previous)
        ask.original = ask.inbound
        last = chain[-1]
        ask.chain = last.chain or None
        ask.holder = last.holder
        body = turns.expand(ask.inbound.body, [entry.turn for entry in chain])
        ask.inbound = ask.codec.read(body)

    async def _resolve(self, ask: ClientRequest, sent: WireRequest, may_know: MayKnow) -> None:
        """Puts items where references to them stand; their one holder gets the request as it was sent."""
        references = ask.inbound.wire.references
        earlier = len(references) - len(sent.wire.references)
        found = {at: await self._history.find_item(item_id) for at, item_id in references}
        missing = [one for one in enumerate(references) if _item(found[one[1][0]]) is None]
        for number, (at, item_id) in missing:
            if found[at] is not None or not await _asked(ask, may_know):
                own = number - earlier
                raise _not_found(item_id, None if own < 0 else sent.wire.references[own][0])
        items = {at: item for at, one in found.items() if (item := _item(one)) is not None}
        if not items:
            return
        holders = {one.entry.holder for at, _ in references[earlier:] if (one := found[at]) is not None}
        if ask.original is not None:
            holders.add(ask.holder)
        ask.holder = holders.pop() if len(holders) == 1 else None
        ask.original = sent
        ask.inbound = ask.codec.read(turns.resolve(ask.inbound.body, items))

    def keeps_its_own(self, target: Target) -> bool:
        """Whether the provider keeps the conversations that it has part in."""
        return self._registry.providers[target.provider].protocol == "responses"

    async def remember(self, ask: ClientRequest, target: Target | None, outcome: AnswerOutcome) -> None:
        """Keeps an answer that may be continued."""
        inbound = ask.received or ask.original or ask.inbound
        if outcome.body is None or inbound.wire.store is False:
            return
        response_id, items = turns.ids(outcome.body)
        if not response_id:
            return
        entry = Entry(
            request=Raw(inbound.body),
            response=Raw(outcome.body),
            previous=inbound.wire.previous_response_id,
            provider=target.provider if target is not None else "",
            key=target.key if target is not None else "",
            native=target is not None and self.keeps_its_own(target),
            chain=ask.chain or ask.id,
        )
        await self._history.save(response_id, entry, items=items)


async def _asked(ask: ClientRequest, may_know: MayKnow) -> bool:
    """What `may_know` says; the course it sets to find out leaves no trace in the request."""
    before = ask.inbound, ask.original, ask.received
    known = await may_know()
    ask.inbound, ask.original, ask.received = before
    return known


def _item(found: StoredItem | None) -> Raw | None:
    return None if found is None else found.item


def _not_found(item_id: str, at: int | None) -> BadRequest:
    """The refusal of a reference; without a place it stands in a turn before this one."""
    param = "previous_response_id" if at is None else f"input[{at}].id"
    code = "previous_response_not_found" if at is None else "item_not_found"
    return BadRequest(f"{param}: the item {item_id!r} is not stored (any more)", param=param, code=code)
