"""`ToolPlugin`: runs the tools a model calls and sends their results in the next request.

All calls of an answer run concurrently, and each gets a result: the output, the failure, the denial, or the
cancellation text after an abort. An abort ends the turn but not the tool's own work, unless
`cancel_tools_on_abort` is set; later output is dropped.

Other plugins may have `on_tool_end(turn, message)`, sync or async: it is called when a tool that ran has its
result, and the turn waits for it.
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
    missing,
    name_of,
    paired_messages,
    result,
    without_calls,
)
from routecodex.turns.plugins.function_tools import Tool, as_tool
from routecodex.turns.plugins.tool_job import Deny, Edit, Job, ToolCall, check_decisions

GRACE = 1.0
"""Seconds a turn waits for cancelled tools."""


class ToolPlugin:
    """Tools for a conversation.

    `tools` are functions, tools or chat-shaped schemas; `get_tools(turn)` returns more for each request.
    `before_call_tools(calls, turn)` returns `Decisions`: a call may be allowed, edited or denied. Tools that
    are only schemas are run by `call_tool(call, turn)`, on the event loop; it returns a value, an awaitable
    or an async iterator of text. A plugin with `call_tool` and no tools handles every call.
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
            raise ValueError(f"max_concurrent is {max_concurrent!r}; it must be at least 1")
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
        self._tasks: set[asyncio.Task[None]] = set()
        if call_tool is None:
            _check_runnable(self._tools)

    async def join(self) -> None:
        """Wait until every tool has ended, including those that outlived their turn."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def on_turn_start(self, turn: ChatTurn) -> Callable[[], Awaitable[None]]:
        earlier = _earlier(turn)
        if self._exclude == "remove":
            _remove_calls(turn.messages, earlier)
            earlier = _earlier(turn)
        if self._auto_fill:
            complete(turn.messages, self._cancelled_text, among=earlier)

        async def clean() -> None:
            # on_turn_end does not run after an error or a cancellation, so calls may still be open.
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
            found = self._get_tools(turn)
            found = await found if isawaitable(found) else found
            tools = {**tools, **_table(found or ())}
            if self._call_tool is None:
                _check_runnable(tools)
        turn.plugin_data["tools"] = tools
        body = turn.request_body
        offered = body.get("tools") or []
        known = {name_of(schema) for schema in offered}
        added = [copied(tool.schema) for name, tool in tools.items() if name not in known]
        if added:
            body["tools"] = [*offered, *added]
        messages = body.get("messages") or []
        if self._exclude:
            calls = {call.get("id") for message in _earlier(turn) for call in calls_of(message)}
            messages = without_calls(messages, calls)
        body["messages"] = paired_messages(messages, fill=self._cancelled_text if self._auto_fill else None)

    async def on_after_request(self, turn: ChatTurn) -> None:
        message = turn.current_message
        identify(message, turn.messages)
        jobs = [self._job(turn, call) for call in calls_of(message) if self._is_mine(turn, call)]
        if not jobs:
            return
        turn.set_processing_state("calling-tools")
        aborted = asyncio.ensure_future(turn.wait_aborted())
        try:
            await self._run_jobs(turn, jobs, aborted)
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
        """Settle the calls of an answer that an abort cut off."""
        for message in turn.current_turn:
            identify(message, turn.messages)
        among = {id(message) for message in turn.current_turn}
        gaps = [call for _, call in missing(turn.messages, among=among)]
        turn.append_message([result(call, self._cancelled_text, state="cancelled") for call in gaps])

    def _is_mine(self, turn: ChatTurn, call: Mapping[str, Any]) -> bool:
        """Return whether this plugin runs the call; exactly one plugin runs each call."""
        peers = [plugin for plugin in turn.plugins if isinstance(plugin, ToolPlugin)]
        name = name_of(call)
        with_tool = (plugin for plugin in peers if name in plugin._offered(turn))
        catch_all = (plugin for plugin in peers if plugin._is_catch_all(turn))
        return [*with_tool, *catch_all, *peers][0] is self

    def _offered(self, turn: ChatTurn) -> dict[str, Tool]:
        tools: dict[str, Tool] = turn.data_of(self).get("tools", {})
        return tools

    def _is_catch_all(self, turn: ChatTurn) -> bool:
        return self._call_tool is not None and not self._offered(turn)

    def _job(self, turn: ChatTurn, call: Mapping[str, Any]) -> Job:
        tools = self._offered(turn)
        tool = tools.get(name_of(call))
        job = Job(turn, call, tool)
        if tool is None and not self._is_catch_all(turn):
            available = f"The tools are: {', '.join(tools)}." if tools else "There are no tools."
            job.settle("refused", f"There is no tool {job.call.name!r}. {available}")
        else:
            job.parse_arguments(call["function"].get("arguments"))
        return job

    async def _run_jobs(self, turn: ChatTurn, jobs: list[Job], aborted: asyncio.Future[None]) -> None:
        if self._before_call_tools is not None and not await _until_abort(self._approve(turn, jobs), aborted):
            return
        await turn.append_message([job.message for job in jobs])
        if turn.aborted:
            return
        places = asyncio.Semaphore(self._max_concurrent)
        await _until_abort(_all(self._run_job(turn, job, places) for job in jobs if job.is_open), aborted)

    async def _approve(self, turn: ChatTurn, jobs: list[Job]) -> None:
        """Get decisions for the calls that can run, and apply them."""
        assert self._before_call_tools is not None
        open_jobs = [job for job in jobs if job.is_open]
        if not open_jobs:
            return
        calls = [job.call for job in open_jobs]
        decisions = self._before_call_tools(calls, turn)
        decisions = await decisions if isawaitable(decisions) else decisions
        for job, decision in zip(open_jobs, check_decisions(decisions, calls), strict=True):
            if isinstance(decision, Deny):
                reason = f": {decision.reason}" if decision.reason else "."
                job.settle("denied", f"The call of {job.call.name!r} was denied{reason}")
            elif isinstance(decision, Edit):
                job.message.metadata[MARK]["arguments"] = copied(decision.arguments)
                job.set_arguments(decision.arguments)

    async def _run_job(self, turn: ChatTurn, job: Job, places: asyncio.Semaphore) -> None:
        """Run one job to its end or its time limit, within the limit on concurrent tools."""
        async with places:
            timeout = self._timeout
            if job.tool is not None and job.tool.timeout is not None:
                timeout = job.tool.timeout
            task = job.start(lambda job: self._run(turn, job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            done, _ = await asyncio.wait({task}, timeout=timeout)
            if not done:
                job.settle("timed out", f"The tool {job.call.name!r} timed out after {timeout:g} s.")
                task.cancel()
            await _call_tool_end_hooks(turn, job.message)

    def _run(self, turn: ChatTurn, job: Job) -> Any:
        if job.tool is not None and job.tool.run is not None:
            return job.tool.run(job.prepared)
        assert self._call_tool is not None
        return self._call_tool(job.call, turn)

    def _settle(self, turn: ChatTurn, jobs: list[Job]) -> None:
        """Settle the open jobs; their tools go on unless `cancel_tools_on_abort` is set."""
        for job in jobs:
            job.settle("cancelled", self._cancelled_text)
            if self._cancel_tools_on_abort and job.task is not None and not job.task.done():
                job.task.cancel()
                turn.plugin_data.setdefault("cancelled", set()).add(job.task)


def _table(tools: Iterable[object]) -> dict[str, Tool]:
    table: dict[str, Tool] = {}
    for tool in map(as_tool, tools):
        if tool.name in table:
            raise ValueError(f"there are two tools named {tool.name!r}; rename one")
        table[tool.name] = tool
    return table


def _check_runnable(tools: Mapping[str, Tool]) -> None:
    for name, tool in tools.items():
        if tool.run is None:
            raise ValueError(f"the tool {name!r} is only a schema; pass call_tool to run it")


def _earlier(turn: ChatTurn) -> list[Message]:
    """Return the messages from before this turn."""
    current = {id(message) for message in turn.current_turn}
    return [message for message in turn.messages if id(message) not in current]


def _remove_calls(messages: list[Message], earlier: Iterable[Message]) -> None:
    removed = {id(message) for message in earlier if message.role == "tool" or calls_of(message)}
    messages[:] = [message for message in messages if id(message) not in removed]


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _call_tool_end_hooks(turn: ChatTurn, message: Message) -> None:
    """Call `on_tool_end(turn, message)` of every plugin that has it, in order."""
    for plugin in turn.plugins:
        hook = getattr(plugin, "on_tool_end", None)
        result = hook(turn, message) if hook is not None else None
        if isawaitable(result):
            await result


async def _until_abort(work: Awaitable[None], aborted: asyncio.Future[None]) -> bool:
    """Return whether the work ended before an abort; cancel it otherwise."""
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
        task.exception()  # retrieved, so that asyncio does not log it; it came after the abort
    return False
