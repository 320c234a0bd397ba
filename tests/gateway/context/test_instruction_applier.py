"""A message whose settings are saved and whose clock tasks cannot be cleared is not applied."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from routecodex.canon.errors import Overloaded
from routecodex.canon.notices import Notices
from routecodex.gateway.context.chat_instructions import ChatInstructions
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.instruction_applier import InstructionApplier
from routecodex.gateway.context.message_marks import message_mark
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.routing.instructions import ClearClock, ClearRouting
from routecodex.routing.registry import Registry
from routecodex.routing.state import SessionState
from routecodex.stores.memory import MemoryStore
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import Change, StoreError

SCOPE = Scope("session", "s")
NO_PROVIDERS = Registry((), routes={}, aliases={})
STICKY = SessionState(sticky="glm.air", marks=("earlier",))


class Breakable(MemoryStore):
    """A store that can be down for changes."""

    is_down = False

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        if self.is_down:
            raise StoreError("it is down")
        return await super().update(space, key, change, ttl=ttl)

    async def check(self, space: str) -> None:
        if self.is_down:
            raise StoreError("it is down")


def request() -> WireRequest:
    return CODECS["chat"].validate(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')


MESSAGE = ChatInstructions(
    stripped=request(), mark=message_mark("hi"), instructions=(ClearRouting(), ClearClock())
)


async def apply(sessions: Sessions, clear_clock: Callable[[Scope], Awaitable[None]]) -> None:
    applier = InstructionApplier(
        sessions, user_dir=Path("/nowhere"), clock=lambda: 1.0, clear_clock=clear_clock
    )
    await applier.apply(
        MESSAGE, SCOPE, known=await sessions.load(SCOPE), registry=NO_PROVIDERS, notices=Notices()
    )


async def test_a_message_is_taken_back_when_the_store_is_back() -> None:
    inner = Breakable()
    store = MonitoredStore(inner, sleep=lambda _: asyncio.sleep(0))
    sessions = Sessions(store)
    store.on_return.append(sessions.save_unsaved)
    await sessions.change(SCOPE, lambda _: STICKY)

    async def fail(_scope: Scope) -> None:
        inner.is_down = True
        raise Overloaded("the clock tasks could not be cleared", code="state_not_saved")

    with pytest.raises(Overloaded):
        await apply(sessions, fail)
    inner.is_down = False
    async with asyncio.timeout(10):
        while replace(await sessions.load(SCOPE), updated_at=0.0) != STICKY:
            await asyncio.sleep(0)


async def test_a_message_that_is_taken_back_leaves_what_was_changed_meanwhile() -> None:
    sessions = Sessions(MemoryStore())
    await sessions.change(SCOPE, lambda _: STICKY)

    async def fail(scope: Scope) -> None:
        await sessions.change(scope, lambda state: replace(state, disable=("openai",)))
        raise Overloaded("the clock tasks could not be cleared", code="state_not_saved")

    with pytest.raises(Overloaded):
        await apply(sessions, fail)
    state = await sessions.load(SCOPE)
    # The message may be sent again: then it is applied.
    assert (state.disable, state.marks) == (("openai",), ("earlier",))
