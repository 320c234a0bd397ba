"""What the model is told of the time and of its due tasks.

The clock as a server tool: offers it, tells the time, delivers due tasks, and holds an answer for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from routecodex.canon.parts import Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response
from routecodex.server_tools.clock.actions import ClockActions, declare
from routecodex.server_tools.clock.deliveries import Deliveries, Reservation
from routecodex.server_tools.clock.due_timer import Holds
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.timestamps import Zone, local_text, utc_text
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext, append_user_message
from routecodex.stores.store import StoreError

_HEAD = "Scheduled tasks of this session are due:"
_TAIL = "You may call tools to complete these tasks."


def time_tag(now_ms: int, *, zone: Zone, offset_ms: int) -> str:
    """The time as one line; `now_ms` is corrected already."""
    return (
        f"[Time/Date]: utc=`{utc_text(now_ms)}` local=`{local_text(now_ms, zone)}` tz=`{zone.name}` "
        f"nowMs=`{now_ms}` ntpOffsetMs=`{offset_ms}`"
    )


def reminder(tasks: Sequence[Task]) -> str:
    """Every due task, and that tools may be used."""
    return "\n".join([_HEAD, *map(_line, tasks), _TAIL])


def _line(task: Task) -> str:
    said = f"[scheduled task:{_quoted(task.task)}] due {utc_text(task.due_at_ms)}"
    if task.tool:
        said += f", suggested tool: {_quoted(task.tool)}"
    if task.arguments:
        said += f", suggested arguments: {msgspec.json.encode(task.arguments).decode()}"
    return said


def _quoted(text: str) -> str:
    """In quotes that the text cannot break out of, on one line."""
    return msgspec.json.encode(text).decode()


_HOLDS_AFTER = frozenset({"stop", "length"})

_PAUSE = 1.0
"""Seconds until a task that could not be reserved is looked at again."""

log = logging.getLogger("routecodex.clock")


class ClockOptions(Struct, frozen=True, kw_only=True):
    """When the model is told the time, and how long an answer may be held."""

    time_tag: Literal["always", "with_tasks", "off"] = "always"
    hold_max_ms: int = 60_000
    hold_non_streaming: bool = True


class ClockTurn(Struct):
    """The clock's memory of one turn: its name there, what it has told, what each round is to deliver."""

    name: str = ""
    told: str = ""
    reserved: list[tuple[int, Reservation]] = field(default_factory=list)


class ClockTool(ServerTool):
    """Asked after every other tool: an answer is held only when nobody else goes on."""

    name = "clock"
    priority = -1000

    def __init__(
        self,
        tool: ClockActions,
        deliveries: Deliveries,
        holds: Holds,
        *,
        time: NetworkTime,
        zone: Zone,
        options: ClockOptions,
        clean: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._tool = tool
        self._deliveries = deliveries
        self._holds = holds
        self._time = time
        self._zone = zone
        self._options = options
        self._clean = clean

    async def inject(self, situation: TurnContext, request: Request) -> Request:
        turn = _turn(situation)
        request = self._offered(situation, turn, request)
        if situation.round > 1:
            return _with_told(request, turn.told, after=len(situation.captured.messages))
        if _ends_with_the_model(request):
            situation.note("clock: no time and no reminders, the request ends in the model's own words")
            return request
        reserved = await self._reserved(situation, turn, number=1)
        if await self._tells_time(situation):
            now_ms = self._time.now_ms()
            request = append_user_message(
                request, time_tag(now_ms, zone=self._zone, offset_ms=self._time.offset_ms)
            )
        if reserved is None:
            return request
        turn.told = self._clean(reminder(reserved.tasks))
        return append_user_message(request, turn.told)

    def answers(self, situation: TurnContext, name: str) -> bool:
        return name == _turn(situation).name

    async def call(self, situation: TurnContext, call: ToolCall) -> str:
        return await self._tool.call(call.arguments, session=situation.session, request_id=situation.id)

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        """Holds the answer until a task of the session is due, if that is soon."""
        session = situation.session
        if session is None or response.finish.reason not in _HOLDS_AFTER:
            return None
        if _ends_with_the_model(situation.captured):
            return None
        if not situation.streaming and not self._options.hold_non_streaming:
            situation.note("clock: not held for tasks, the answer does not stream")
            return None
        deadline = self._time.now_ms() + self._options.hold_max_ms
        turn = _turn(situation)
        while await self._holds.until_due(session, situation.id, deadline_ms=deadline):
            reserved = await self._reserved(situation, turn, number=situation.round + 1)
            if reserved is not None:
                message = Message("user", (Text(self._clean(reminder(reserved.tasks))),))
                return FollowUp((message,), "clock_followup")
            # Somebody else was faster, or the store is down: then there is still the rest of the time.
            if self._time.now_ms() >= deadline:
                break
            await asyncio.sleep(_PAUSE)
        return None

    async def dispatched(self, situation: TurnContext) -> None:
        turn = _turn(situation)
        while turn.reserved:
            await self._deliveries.commit(turn.reserved.pop()[1])

    async def fell_through(self, situation: TurnContext) -> None:
        """What earlier rounds have told the model is still on its way to the client."""
        await self._give_back(situation, since=situation.round)

    async def close(self, situation: TurnContext) -> None:
        await self._give_back(situation, since=0)

    def _offered(self, situation: TurnContext, turn: ClockTurn, request: Request) -> Request:
        taken = {own.name for own in situation.captured.tools}
        tool = declare(taken)
        if tool.name in taken:
            return request
        turn.name = tool.name
        situation.names.add(tool.name)
        return replace(request, tools=(*request.tools, tool))

    async def _reserved(self, situation: TurnContext, turn: ClockTurn, *, number: int) -> Reservation | None:
        """What the round of that number is to deliver."""
        if situation.session is None:
            return None
        reserved = await self._deliveries.reserve(situation.session, situation.id)
        if reserved is not None:
            turn.reserved.append((number, reserved))
        return reserved

    async def _tells_time(self, situation: TurnContext) -> bool:
        if self._options.time_tag != "with_tasks" or situation.session is None:
            return self._options.time_tag == "always"
        try:
            return bool(await self._tool.tasks(situation.session))
        except StoreError as exc:
            log.error("%s: no time told, the tasks of the session cannot be read: %s", situation.id, exc)
            return False

    async def _give_back(self, situation: TurnContext, *, since: int) -> None:
        turn = _turn(situation)
        # One after the other: whoever is called off in between leaves the rest where it is found again.
        for row in [row for row in turn.reserved if row[0] >= since]:
            turn.reserved.remove(row)
            await self._deliveries.roll_back(row[1])


def _turn(situation: TurnContext) -> ClockTurn:
    turn: ClockTurn = situation.data.setdefault("clock", ClockTurn())
    return turn


def _ends_with_the_model(request: Request) -> bool:
    """Whether the model is to go on in its own words: a message after them would take that away."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


def _with_told(request: Request, told: str, *, after: int) -> Request:
    """The request with what the first round told the model, where it was told."""
    if not told:
        return request
    messages = request.messages
    message = Message("user", (Text(told),))
    return replace(request, messages=(*messages[:after], message, *messages[after:]))
