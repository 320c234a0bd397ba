"""stopMessage: sends the user's message again when the model stops, up to a number of times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext
from routecodex.stores.store import StoreError

TakeUse = Callable[[TurnContext], Coroutine[Any, Any, str | None]]
"""Counts one use and returns the text; None if no use is left. Atomic across processes, saved on return.

It raises StoreError if the use cannot be saved, and then it is not counted."""

GiveBackUse = Callable[[TurnContext], Awaitable[None]]
"""Subtracts the use that was counted last."""

IsSet = Callable[[TurnContext], bool]
"""Returns whether the session has a message with uses left."""

IsIdle = Callable[[Request], Awaitable[bool]]
"""Returns whether it is certain that no work is left."""


class _PendingUse:
    """The use that was counted last in a turn, and the round it is for."""

    use: asyncio.Future[str | None] | None = None
    round = 0


class StopMessageOptions(Struct, frozen=True, kw_only=True):
    """Options of stopMessage."""

    include_answer: bool = True


class StopMessageTool(ServerTool):
    """Follows up before every other tool.

    A use is saved before its follow-up is sent, so that a crash never leaves a follow-up uncounted. A use is
    returned if its round never reached an upstream, because the client disconnected or no target was
    available; only a process that dies in between leaves it counted.
    """

    name = "stop_message"
    priority = 1000

    def __init__(
        self,
        take: TakeUse,
        *,
        give_back: GiveBackUse,
        is_set: IsSet,
        is_idle: IsIdle,
        options: StopMessageOptions,
    ) -> None:
        self._is_set = is_set
        self._take = take
        self._give_back = give_back
        self._is_idle = is_idle
        self._options = options

    def wants(self, turn: TurnContext) -> bool:
        """Return whether the session has a stop message for this request."""
        if not self._is_set(turn):
            return False
        reason = _reason_to_skip(turn)
        if reason:
            turn.note(f"stopMessage skipped: {reason}")
        return not reason

    def called_away(self, turn: TurnContext) -> None:
        turn.note("stopMessage skipped: the answer calls tools of the client")

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        reason = response.finish.reason
        if reason != "stop":
            turn.note(f"stopMessage skipped: the answer ended with {reason}")
            return None
        if await self._is_idle(turn.captured):
            turn.note("stopMessage skipped: bd_idle")
            return None
        try:
            text = await self._count_use(turn)
        except StoreError:
            turn.note("stopMessage paused: store unavailable")
            return None
        if text is None:
            turn.note("stopMessage skipped: no uses left")
            return None
        message = Message("user", (Text(text),))
        return FollowUp((message,), "stop_followup", with_answer=self._options.include_answer)

    async def fell_through(self, turn: TurnContext) -> None:
        await self._settle(turn)

    async def close(self, turn: TurnContext) -> None:
        await self._settle(turn)

    async def _count_use(self, turn: TurnContext) -> str | None:
        use = asyncio.ensure_future(self._take(turn))
        pending = turn.state(self, _PendingUse)
        pending.use, pending.round = use, turn.round + 1
        # A store write cannot be cancelled; after a cancellation `_settle` waits for it.
        return await asyncio.shield(use)

    async def _settle(self, turn: TurnContext) -> None:
        """Return the use of a round that was never sent."""
        pending = turn.state(self, _PendingUse)
        use, pending.use = pending.use, None
        if use is None:
            return
        await asyncio.wait([use])
        if use.exception() is None and use.result() is not None and turn.sent < pending.round:
            await self._give_back(turn)


def _reason_to_skip(turn: TurnContext) -> str:
    """Return why a turn is not continued: it is not the user's, or more text would break its answer."""
    if turn.role != "main":
        return f"role {turn.role}"
    return "structured_output" if turn.captured.output is not None else ""
