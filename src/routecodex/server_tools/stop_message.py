"""stopMessage: says a message of the person to a model that stops, so many times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from msgspec import Struct

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext

TakeUse = Callable[[TurnContext], Coroutine[Any, Any, str | None]]
"""Counts one use for good and gives the text; None when none is left. One step no other process can split."""

GiveBackUse = Callable[[TurnContext], Awaitable[None]]
"""Takes back the count of the use taken last."""

IsIdle = Callable[[Request], Awaitable[bool]]
"""Whether it is known that there is no work left to go on with."""


_TAKING = "stop_message_taking"


class StopMessageOptions(Struct, frozen=True, kw_only=True):
    """How stopMessage is set up."""

    include_answer: bool = True
    sentinels: tuple[str, ...] = ()


class StopMessageTool(ServerTool):
    """Asked before every other tool.

    A use is counted for good before its follow-up is sent, so that no follow-up is ever sent uncounted,
    whatever dies. One that was counted and then not handed to any upstream, because the client left or no
    target could be tried, is given back; only a process that dies in between leaves it counted.
    """

    name = "stop_message"
    priority = 1000

    def __init__(
        self, take: TakeUse, *, give_back: GiveBackUse, is_idle: IsIdle, options: StopMessageOptions
    ) -> None:
        self._take = take
        self._give_back = give_back
        self._is_idle = is_idle
        self._options = options

    def wants(self, situation: TurnContext) -> bool:
        """Only a session in which a message is set has anything to say."""
        return bool(situation.data.get("has_stop_message"))

    def called_away(self, situation: TurnContext) -> None:
        situation.note("stopMessage skipped: the answer calls tools of the client")

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        reason = response.finish.reason
        if reason != "stop":
            situation.note(f"stopMessage skipped: the answer ended with {reason}")
            return None
        if is_compaction(situation.captured, self._options.sentinels):
            situation.note("stopMessage skipped: compaction")
            return None
        if await self._is_idle(situation.captured):
            situation.note("stopMessage skipped: bd_idle")
            return None
        text = await self._taken(situation)
        if text is None:
            situation.note("stopMessage skipped: no use of it is left")
            return None
        message = Message("user", (Text(text),))
        return FollowUp((message,), "stop_followup", with_answer=self._options.include_answer)

    async def fell_through(self, situation: TurnContext) -> None:
        await self._settle(situation)

    async def close(self, situation: TurnContext) -> None:
        await self._settle(situation)

    async def _taken(self, situation: TurnContext) -> str | None:
        taking = asyncio.ensure_future(self._take(situation))
        situation.data[_TAKING] = (situation.round + 1, taking)
        # A write that has begun cannot be called off: who leaves meanwhile waits for it in `_settle`.
        return await asyncio.shield(taking)

    async def _settle(self, situation: TurnContext) -> None:
        """Gives back what was counted for a round that was never sent."""
        taken: tuple[int, asyncio.Future[str | None]] | None = situation.data.pop(_TAKING, None)
        if taken is None:
            return
        number, taking = taken
        await asyncio.wait([taking])
        if taking.exception() is None and taking.result() is not None and situation.sent < number:
            await self._give_back(situation)


def is_compaction(request: Request, sentinels: tuple[str, ...]) -> bool:
    """Whether a text at the head of the request says that the client is compacting the conversation."""
    starts = tuple(sentinel.casefold() for sentinel in sentinels)
    return bool(starts) and any(text.lstrip().casefold().startswith(starts) for text in _heads(request))


def _heads(request: Request) -> Iterator[str]:
    """The system texts, and those of the newest message of the user."""
    yield from (part.text for part in request.system)
    for message in request.messages:
        if message.role == "system":
            yield from (part.text for part in message.parts if isinstance(part, Text))
    newest = next((message for message in reversed(request.messages) if message.role == "user"), None)
    if newest is not None:
        yield from (part.text for part in newest.parts if isinstance(part, Text))
