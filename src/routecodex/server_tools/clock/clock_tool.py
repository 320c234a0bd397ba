"""The clock as a server tool: adds the tool, the time tag and due reminders, and holds answers for tasks."""

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
from routecodex.server_tools.clock.actions import NAMES, ClockActions, declare
from routecodex.server_tools.clock.declared_tools import DeclaredTools
from routecodex.server_tools.clock.deliveries import Deliveries, Reservation
from routecodex.server_tools.clock.due_timer import Holds
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.timestamps import Zone, local_text, utc_text
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext, append_user_message
from routecodex.stores.store import StoreError

_REMINDER_START = "Scheduled tasks of this session are due:"
_REMINDER_END = (
    "You may call tools to complete these tasks; if tools are missing, the system supplies the standard ones."
)


def time_tag(now_ms: int, *, zone: Zone, offset_ms: int) -> str:
    """Return the time tag; `now_ms` is corrected time."""
    return (
        f"[Time/Date]: utc=`{utc_text(now_ms)}` local=`{local_text(now_ms, zone)}` tz=`{zone.name}` "
        f"nowMs=`{now_ms}` ntpOffsetMs=`{offset_ms}`"
    )


def reminder(tasks: Sequence[Task]) -> str:
    """Return the reminder text for due tasks."""
    return "\n".join([_REMINDER_START, *map(_line, tasks), _REMINDER_END])


def _line(task: Task) -> str:
    line = f"[scheduled task:{_quoted(task.task)}] due {utc_text(task.due_at_ms)}"
    if task.tool:
        line += f", suggested tool: {_quoted(task.tool)}"
    if task.arguments:
        line += f", suggested arguments: {msgspec.json.encode(task.arguments).decode()}"
    return line


def _quoted(text: str) -> str:
    """Quote the text as a JSON string, on one line, so that it cannot end the quotes."""
    return msgspec.json.encode(text).decode()


_HOLDS_AFTER = frozenset({"stop", "length"})

_RETRY_SECONDS = 1.0
"""Seconds until a task that could not be reserved is checked again."""

log = logging.getLogger("routecodex.clock")


class ClockOptions(Struct, frozen=True, kw_only=True):
    """Rule for the time tag, and the longest time an answer may be held."""

    time_tag: Literal["always", "with_tasks", "off"] = "always"
    hold_max_ms: int = 60_000
    hold_non_streaming: bool = True
    complete_tools: Literal["session", "off"] = "session"
    subagents: bool = False


class ClockTurn(Struct):
    """State of the clock in one turn: tool name, reminder of the first round, reservations by round."""

    name: str = ""
    reminder: str = ""
    reminds: bool = False
    """The rounds of this turn hold a reminder."""
    reservations: list[tuple[int, Reservation]] = field(default_factory=list)
    commits: list[asyncio.Task[tuple[Task, ...]]] = field(default_factory=list)
    """Commits that were started when the client had got its first byte."""


class ClockTool(ServerTool):
    """Follows up after every other tool: an answer is held only if no other tool continues it."""

    name = "clock"
    priority = -1000

    def __init__(
        self,
        actions: ClockActions,
        deliveries: Deliveries,
        holds: Holds,
        *,
        time: NetworkTime,
        zone: Zone,
        options: ClockOptions,
        declared: DeclaredTools,
        clean: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._actions = actions
        self._deliveries = deliveries
        self._holds = holds
        self._time = time
        self._zone = zone
        self._options = options
        self._declared = declared
        self._clean = clean

    def wants(self, turn: TurnContext) -> bool:
        """Return whether the request has the clock: in the main conversation, and in sub-agents if set so."""
        return turn.role == "main" or (turn.role == "subagent" and self._options.subagents)

    async def inject(self, turn: TurnContext, request: Request) -> Request:
        state = turn.state(self, ClockTurn)
        if turn.round > 1:
            request = self._with_tool(turn, state, await self._complete(turn, state, request))
            return _with_reminder(request, state.reminder, after=len(turn.captured.messages))
        if _ends_with_assistant(request):
            turn.note("clock: no time and no reminders, the request ends with an assistant message")
            return self._with_tool(turn, state, request)
        reservation = await self._reserve(turn, state, number=1)
        completed = await self._complete(turn, state, request)
        await self._record(turn)
        request = self._with_tool(turn, state, completed)
        if await self._adds_time(turn):
            now_ms = self._time.now_ms()
            request = append_user_message(
                request, time_tag(now_ms, zone=self._zone, offset_ms=self._time.offset_ms)
            )
        if reservation is None:
            return request
        state.reminder = self._clean(reminder(reservation.tasks))
        return append_user_message(request, state.reminder)

    def answers(self, turn: TurnContext, name: str) -> bool:
        return name == turn.state(self, ClockTurn).name

    async def call(self, turn: TurnContext, call: ToolCall) -> str:
        return await self._actions.call(
            call.arguments, session=turn.session, request_id=turn.id, on_refusal=turn.fail_call
        )

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        """Hold the answer until a task of the session is due, if that is soon."""
        session = turn.session
        if session is None or response.finish.reason not in _HOLDS_AFTER:
            return None
        if _ends_with_assistant(turn.captured):
            return None
        if not turn.streaming and not self._options.hold_non_streaming:
            turn.note("clock: not held for tasks, the answer is not streamed")
            return None
        deadline = self._time.now_ms() + self._options.hold_max_ms
        state = turn.state(self, ClockTurn)
        while await self._holds.until_due(session, turn.id, deadline_ms=deadline):
            reservation = await self._reserve(turn, state, number=turn.round + 1)
            if reservation is not None:
                message = Message("user", (Text(self._clean(reminder(reservation.tasks))),))
                return FollowUp((message,), "clock_followup")
            # Another request reserved the task, or the store is down: try again until the deadline.
            if self._time.now_ms() >= deadline:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        return None

    async def dispatched(self, turn: TurnContext) -> None:
        """Start the commits; the answer goes on while they are written."""
        state = turn.state(self, ClockTurn)
        while state.reservations:
            commit = self._deliveries.start_commit(state.reservations.pop()[1])
            state.commits += [] if commit is None else [commit]

    async def before_end(self, turn: TurnContext) -> None:
        """Wait for the commits: who has read the end of the answer finds its tasks delivered."""
        commits = turn.state(self, ClockTurn).commits
        if commits:
            await asyncio.wait(commits)

    async def fell_through(self, turn: TurnContext) -> None:
        """Roll back this round only: answers to earlier reminders may still reach the client."""
        await self._roll_back(turn, since=turn.round)

    async def close(self, turn: TurnContext) -> None:
        await self._roll_back(turn, since=0)

    def _with_tool(self, turn: TurnContext, state: ClockTurn, request: Request) -> Request:
        """Add the clock under one name for all rounds of the turn, behind the client's tools."""
        if turn.round == 1:
            names = {name for declared in request.tools for name in (declared.name, declared.namespace)}
            # Codex has a namespace `clock`.
            state.name = next((name for name in NAMES if name not in names), "")
        if not state.name:
            return request
        tool = declare(state.name)
        turn.tool_names.add(tool.name)
        return replace(request, tools=(*request.tools, tool))

    async def _complete(self, turn: TurnContext, state: ClockTurn, request: Request) -> Request:
        """Return the request with the tools that its session declared last, if it holds a reminder."""
        if turn.session is None or not state.reminds or self._options.complete_tools == "off":
            return request
        return await self._declared.complete(turn.session, request, taken=turn.tool_names)

    async def _record(self, turn: TurnContext) -> None:
        if turn.session is not None and turn.role == "main" and self._options.complete_tools != "off":
            await self._declared.record(turn.session, turn.captured)

    async def _reserve(self, turn: TurnContext, state: ClockTurn, *, number: int) -> Reservation | None:
        """Reserve the due tasks for the round of this number."""
        if turn.session is None:
            return None
        reservation = await self._deliveries.reserve(turn.session, turn.id)
        if reservation is not None:
            state.reservations.append((number, reservation))
            state.reminds = True
        return reservation

    async def _adds_time(self, turn: TurnContext) -> bool:
        if self._options.time_tag != "with_tasks" or turn.session is None:
            return self._options.time_tag == "always"
        try:
            return bool(await self._actions.tasks(turn.session))
        except StoreError as exc:
            log.debug("%s: no time tag, the tasks of the session cannot be read: %s", turn.id, exc)
            return False

    async def _roll_back(self, turn: TurnContext, *, since: int) -> None:
        state = turn.state(self, ClockTurn)
        # One at a time: after a cancellation the rest is still listed for the next call.
        for entry in [entry for entry in state.reservations if entry[0] >= since]:
            state.reservations.remove(entry)
            await self._deliveries.roll_back(entry[1])


def _ends_with_assistant(request: Request) -> bool:
    """Return whether the request prefills the answer; a message after that would end the prefill."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


def _with_reminder(request: Request, text: str, *, after: int) -> Request:
    """Return the request with the reminder of the first round at its original position."""
    if not text:
        return request
    messages = request.messages
    message = Message("user", (Text(text),))
    return replace(request, messages=(*messages[:after], message, *messages[after:]))
