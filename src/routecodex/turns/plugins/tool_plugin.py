"""`ToolPlugin`: runs the tools a model calls and asks the model again with what they said.

All calls of an answer run side by side. Whatever becomes of them, each has a result afterwards: a tool that
fails says so in it, a call that was denied too, and an abort settles what is still open. The tool's own work
is another matter: an abort ends the turn and not the tool, unless `cancel_tools_on_abort` is set; what it
says then comes too late and is dropped.

Other plugins may have an `on_tool_end(turn, message)`, sync or async: it is called when a tool that has run
has its result, and the turn waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Literal

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.message import Message, copied
from routecodex.turns.plugins.call_pairing import (
    CANCELLED,
    MARK,
    calls_of,
    complete,
    identify,
    in_pairs,
    missing,
    name_of,
    result,
    without_calls,
)
from routecodex.turns.plugins.function_tools import Tool, as_tool
from routecodex.turns.plugins.tool_job import Deny, Edit, Job, ToolCall, decided

GRACE = 1.0
"""How long a turn waits for tools it has cancelled, in seconds."""


class ToolPlugin:
    """Tools for a conversation.

    `tools` are functions, tools or chat-shaped schemas, `get_tools(turn)` gives them anew for every request.
    `before_call_tools(calls, turn)` gives `Decisions`: a call may be allowed, edited or denied. Tools that
    are mere schemas are run by `call_tool(call, turn)`, on the event loop; it returns a value, an awaitable
    or an async iterator of text. Without any tools of its own, a plugin with `call_tool` takes every call.
    """

    def __init__(
        self,
        tools: Iterable[object] = (),
        *,
        get_tools: Callable[[ChatTurn], Any] | None = None,
        before_call_tools: Callable[[list[ToolCall], ChatTurn], Any] | None = None,
        call_tool: Callable[[ToolCall, ChatTurn], Any] | None = None,
        max_concurrent: int = 8,
        timeout: float | None = None,
        cancel_tools_on_abort: bool = False,
        cancelled_text: str = CANCELLED,
        exclude_tool_messages_next_turn: bool | Literal["remove"] = False,
        auto_fill_missing_tool_messages: bool = True,
    ) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent is {max_concurrent!r}; at least one tool has to run")
        self._tools = _table(tools)
        self._get_tools = get_tools
        self._before_call_tools = before_call_tools
        self._call_tool = call_tool
        self._max_concurrent = max_concurrent
        self._timeout = timeout
        self._cancel_tools_on_abort = cancel_tools_on_abort
        self._cancelled_text = cancelled_text
        self._exclude = exclude_tool_messages_next_turn
        self._auto_fill = auto_fill_missing_tool_messages
        self._working: set[asyncio.Task[None]] = set()
        if call_tool is None:
            _check_runnable(self._tools)

    async def join(self) -> None:
        """Returns when every tool has ended, those too that outlived their turn."""
        while self._working:
            await asyncio.wait(set(self._working))

    def on_turn_start(self, turn: ChatTurn) -> Callable[[], Awaitable[None]]:
        earlier = _earlier(turn)
        if self._exclude == "remove":
            _remove_calls(turn.messages, earlier)
            earlier = _earlier(turn)
        if self._auto_fill:
            complete(turn.messages, self._cancelled_text, among=earlier)

        async def clean() -> None:
            # After an error or a cancellation nobody else has settled what was open.
            for message in turn.current_turn:
                identify(message, turn.messages)
            added = complete(turn.messages, self._cancelled_text, among=turn.current_turn)
            turn.current_turn.extend(added)
            cancelled = turn.plugin_data.get("cancelled")
            if cancelled:
                await asyncio.wait(cancelled, timeout=GRACE)

        return clean

    async def on_before_request(self, turn: ChatTurn) -> None:
        tools = self._tools
        if self._get_tools is not None:
            given = self._get_tools(turn)
            more = _table((await given if isawaitable(given) else given) or ())
            tools = {**tools, **more}
            if self._call_tool is None:
                _check_runnable(tools)
        turn.plugin_data["tools"] = tools
        body = turn.request_body
        offered = body.get("tools") or []
        known = {name_of(schema) for schema in offered}
        mine = [copied(tool.schema) for name, tool in tools.items() if name not in known]
        if mine:
            body["tools"] = [*offered, *mine]
        messages = body.get("messages") or []
        if self._exclude:
            calls = {call.get("id") for message in _earlier(turn) for call in calls_of(message)}
            messages = without_calls(messages, calls)
        body["messages"] = in_pairs(messages, fill=self._cancelled_text if self._auto_fill else None)

    async def on_after_request(self, turn: ChatTurn) -> None:
        message = turn.current_message
        identify(message, turn.messages)
        jobs = [self._job(turn, call) for call in calls_of(message) if self._is_mine(turn, call)]
        if not jobs:
            return
        turn.set_processing_state("calling-tools")
        aborted = asyncio.ensure_future(turn.wait_aborted())
        try:
            await self._carry_out(turn, jobs, aborted)
        finally:
            self._settle(turn, jobs)
            aborted.cancel()
            await asyncio.wait({aborted})
        if turn.aborted:
            placed = {id(known) for known in turn.current_turn}
            turn.append_message([job.message for job in jobs if id(job.message) not in placed])
        else:
            turn.append_and_request([])

    def on_turn_end(self, turn: ChatTurn) -> None:
        """Settles the calls of an answer that was cut off by an abort."""
        for message in turn.current_turn:
            identify(message, turn.messages)
        among = {id(message) for message in turn.current_turn}
        gaps = [call for _, call in missing(turn.messages, among=among)]
        turn.append_message([result(call, self._cancelled_text, state="cancelled") for call in gaps])

    def _is_mine(self, turn: ChatTurn, call: Mapping[str, Any]) -> bool:
        """Whether this plugin answers the call; every call has exactly one that does."""
        peers = [plugin for plugin in turn.plugins if isinstance(plugin, ToolPlugin)]
        name = name_of(call)
        having = (plugin for plugin in peers if name in plugin._offered(turn))
        taking_all = (plugin for plugin in peers if plugin._takes_all(turn))
        return [*having, *taking_all, *peers][0] is self

    def _offered(self, turn: ChatTurn) -> dict[str, Tool]:
        tools: dict[str, Tool] = turn.data_of(self).get("tools", {})
        return tools

    def _takes_all(self, turn: ChatTurn) -> bool:
        return self._call_tool is not None and not self._offered(turn)

    def _job(self, turn: ChatTurn, call: Mapping[str, Any]) -> Job:
        tools = self._offered(turn)
        tool = tools.get(name_of(call))
        job = Job(turn, call, tool)
        if tool is None and not self._takes_all(turn):
            there_is = f"The tools are: {', '.join(tools)}." if tools else "There are no tools."
            job.settle("refused", f"There is no tool {job.call.name!r}. {there_is}")
        else:
            job.read(call["function"].get("arguments"))
        return job

    async def _carry_out(self, turn: ChatTurn, jobs: list[Job], aborted: asyncio.Future[None]) -> None:
        if self._before_call_tools is not None and not await _first(self._ask(turn, jobs), aborted):
            return
        await turn.append_message([job.message for job in jobs])
        if turn.aborted:
            return
        places = asyncio.Semaphore(self._max_concurrent)
        await _first(_all(self._see_through(turn, job, places) for job in jobs if job.is_open), aborted)

    async def _ask(self, turn: ChatTurn, jobs: list[Job]) -> None:
        """Asks whether the calls that can be made may be made."""
        assert self._before_call_tools is not None
        asked = [job for job in jobs if job.is_open]
        if not asked:
            return
        calls = [job.call for job in asked]
        answer = self._before_call_tools(calls, turn)
        answer = await answer if isawaitable(answer) else answer
        for job, decision in zip(asked, decided(answer, calls), strict=True):
            if isinstance(decision, Deny):
                why = f": {decision.reason}" if decision.reason else "."
                job.settle("denied", f"The call of {job.call.name!r} was denied{why}")
            elif isinstance(decision, Edit):
                job.message.metadata[MARK]["arguments"] = copied(decision.arguments)
                job.take(decision.arguments)

    async def _see_through(self, turn: ChatTurn, job: Job, places: asyncio.Semaphore) -> None:
        """Runs one job to its end or its time limit, when there is a place for it."""
        async with places:
            timeout = self._timeout
            if job.tool is not None and job.tool.timeout is not None:
                timeout = job.tool.timeout
            task = job.start(lambda job: self._run(turn, job))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            done, _ = await asyncio.wait({task}, timeout=timeout)
            if not done:
                job.settle("timed out", f"The tool {job.call.name!r} timed out after {timeout:g} s.")
                task.cancel()
            await _tell_ended(turn, job.message)

    def _run(self, turn: ChatTurn, job: Job) -> Any:
        if job.tool is not None and job.tool.run is not None:
            return job.tool.run(job.prepared)
        assert self._call_tool is not None
        return self._call_tool(job.call, turn)

    def _settle(self, turn: ChatTurn, jobs: list[Job]) -> None:
        """Settles what is still open; the work behind it goes on, unless it shall not."""
        for job in jobs:
            job.settle("cancelled", self._cancelled_text)
            if self._cancel_tools_on_abort and job.task is not None and not job.task.done():
                job.task.cancel()
                turn.plugin_data.setdefault("cancelled", set()).add(job.task)


def _table(tools: Iterable[object]) -> dict[str, Tool]:
    table: dict[str, Tool] = {}
    for tool in map(as_tool, tools):
        if tool.name in table:
            raise ValueError(f"there are two tools named {tool.name!r}")
        table[tool.name] = tool
    return table


def _check_runnable(tools: Mapping[str, Tool]) -> None:
    for name, tool in tools.items():
        if tool.run is None:
            raise ValueError(f"the tool {name!r} is a mere schema; give call_tool to run it")


def _earlier(turn: ChatTurn) -> list[Message]:
    """The messages from before this turn."""
    current = {id(message) for message in turn.current_turn}
    return [message for message in turn.messages if id(message) not in current]


def _remove_calls(messages: list[Message], earlier: Iterable[Message]) -> None:
    doomed = {id(message) for message in earlier if message.role == "tool" or calls_of(message)}
    messages[:] = [message for message in messages if id(message) not in doomed]


async def _all(flows: Iterable[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for flow in flows:
                group.create_task(flow)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _tell_ended(turn: ChatTurn, message: Message) -> None:
    """Calls `on_tool_end(turn, message)` of every plugin that has it, in order."""
    for plugin in turn.plugins:
        hook = getattr(plugin, "on_tool_end", None)
        told = hook(turn, message) if hook is not None else None
        if isawaitable(told):
            await told


async def _first(work: Awaitable[None], aborted: asyncio.Future[None]) -> bool:
    """Whether the work came to its end before the abort did; otherwise it is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, aborted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
    if not aborted.done():
        task.result()
        return True
    if task.done() and not task.cancelled():
        task.exception()  # it was raised too late to matter, and is not to be complained about
    return False
