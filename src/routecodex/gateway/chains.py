"""Conversations of the Responses API: put in front of the request that continues one, kept when answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from routecodex.gateway.ask import Ask
from routecodex.gateway.history import Entry, History
from routecodex.protocols.codec import Outcome
from routecodex.protocols.responses import history as turns
from routecodex.routing.registry import Registry, Target
from routecodex.wire import json


class Chains:
    """Answers that lead to one another by `previous_response_id`."""

    def __init__(self, history: History, registry: Registry) -> None:
        self._history = history
        self._registry = registry

    async def expand(self, ask: Ask, may_know: Callable[[], Awaitable[bool]]) -> None:
        """Puts the stored conversation in front of a request that continues one.

        One that is not stored here may be kept by the provider itself, if `may_know` says so.
        """
        previous = ask.inbound.wire.previous_response_id
        if not previous:
            return
        if await self._history.find(previous) is None and await may_know():
            return
        chain = await self._history.chain(previous)
        ask.original = ask.inbound
        last = chain[-1]
        ask.chain = last.chain or None
        if last.native:
            ask.holder = (last.provider, last.key)
        body = turns.expand(ask.inbound.body, [entry.turn for entry in chain])
        ask.inbound = ask.codec.read(body)

    def keeps_its_own(self, target: Target) -> bool:
        """Whether the provider keeps the conversations that it has part in."""
        return self._registry.providers[target.provider].protocol == "responses"

    async def remember(self, ask: Ask, target: Target | None, outcome: Outcome) -> None:
        """Keeps an answer that may be continued."""
        inbound = ask.received or ask.original or ask.inbound
        if outcome.body is None or inbound.wire.store is False:
            return
        response_id = _id_of(outcome.body)
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
        await self._history.save(response_id, entry)


def _id_of(body: bytes) -> str:
    value = json.decode(body)
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
