"""Server tools: work that the gateway does itself between answers, as one plugin of the turn engine.

A tool may inject into a request, answer calls to its own functions, and ask for one more round when the model
has stopped. Tools are asked in the order of their priority, and the first follow-up wins. Only this plugin
decides whether there is another round; a follow-up never starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, RoleName
from routecodex.canon.response import Response
from routecodex.server_tools.hidden_calls import HiddenCall, HiddenToolCalls
from routecodex.turns import Plugin

_MOST_REPEATS = 5
"""Times in a row that the same calls are answered; more of them are a loop of the model."""

FOLLOW_UP: Mapping[str, bool] = {"serverToolFollowup": True}
"""Metadata of a round that a server tool asked for, and not the client."""
_CLIENT_ROUND: Mapping[str, bool] = {}

log = logging.getLogger("routecodex.server_tools")

StateT = TypeVar("StateT")


class FollowUp(Struct, frozen=True):
    """One more round: the messages to send, and the suffix of its id; `with_answer` keeps the last answer."""

    messages: tuple[Message, ...]
    suffix: str
    with_answer: bool = True


class TurnContext:
    """One turn as server tools see it.

    `captured` is the request without anything injected, `tool_names` the tools of the gateway that the model
    was offered. `owner` is the client whose state the turn may use, if there are several.
    """

    def __init__(
        self,
        *,
        id: str,
        session: str | None,
        captured: Request,
        now: Callable[[], float],
        streaming: bool = False,
        notices: Notices | None = None,
        owner: str = "",
    ) -> None:
        self.id = id
        self.session = session
        self.owner = owner
        self.captured = captured
        self.now = now
        self.streaming = streaming
        self.notices: Notices = Notices() if notices is None else notices
        self.round = 1
        self.suffix = ""
        """Names the round under way, behind the id of the turn; empty for the client's own request."""
        self.role: RoleName = "main"
        """Role of the request: most tools take part in the main conversation only."""
        self.named = session is not None
        """Whether the client names its session itself, and so will name it the next time."""
        self.tool_names: set[str] = set()
        self.lacks_search = False
        """The request declares a web search that a target does not have."""
        self.cut_off = False
        """The answer of the last round was cut off, and may be continued."""
        self.failed = False
        """The last round failed: there is nothing to follow up."""
        self.sent = 0
        """The number of the last round that was sent to an upstream."""
        self.owes_answer = False
        """The round under way answers calls of the gateway's tools: without it the answer is incomplete."""
        self._states: dict[object, Any] = {}
        self.data: dict[str, Any] = {}
        """State of tools of other packages; `state` is typed."""

    def state(self, tool: object, make: Callable[[], StateT]) -> StateT:
        """Return the state of one tool in this turn, made when it is first asked for."""
        state: StateT | None = self._states.get(tool)
        if state is None:
            state = self._states[tool] = make()
        return state

    @property
    def request_id(self) -> str:
        """Id of the round under way; that of a follow-up begins with the id of the turn."""
        return f"{self.id}:{self.suffix}" if self.suffix else self.id

    @property
    def metadata(self) -> Mapping[str, bool]:
        """Kind of the round under way, for tools and logs; neither providers nor clients see it."""
        return FOLLOW_UP if self.round > 1 else _CLIENT_ROUND

    @property
    def names(self) -> set[str]:
        """The name of `tool_names` up to 0.1, for tools of other packages."""
        return self.tool_names

    def running(self, call: ToolCall) -> AbstractContextManager[None]:
        """Return the context in which a call of a tool runs."""
        return nullcontext()

    def fail_call(self, cause: str | GatewayError) -> None:
        """Note that the call under way failed, with its error or a code; only traces show it."""

    def note(self, reason: str) -> None:
        """Log why something was not done, and show it to the client if its headers are not sent yet."""
        if reason not in self.notices.lines():
            log.info("%s: %s", self.request_id, reason)
            self.notices.add(reason)


Situation = TurnContext
"""The name of `TurnContext` up to 0.1, for server tools of other packages; it goes with the next release."""


class ServerTool:
    """One server tool; the methods that it does not override do nothing."""

    name = ""
    priority = 0
    """Order of follow-ups: the highest is asked first."""

    def wants(self, turn: TurnContext) -> bool:
        """Return whether the tool takes part in this turn."""
        return True

    async def inject(self, turn: TurnContext, request: Request) -> Request:
        """Return the request of this round with the tool's additions."""
        return request

    def answers(self, turn: TurnContext, name: str) -> bool:
        """Return whether a call of this name is for this tool."""
        return False

    async def call(self, turn: TurnContext, call: ToolCall) -> str:
        """Return the result of a call."""
        raise NotImplementedError

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        """Return one more round after an answer without tool calls, or None."""
        return None

    def called_away(self, turn: TurnContext) -> None:
        """Note that the answer ended with calls for the client: no tool is asked for a follow-up."""

    async def dispatched(self, turn: TurnContext) -> None:
        """Note that the first content of a round, or the whole answer, has been written to the client."""

    async def before_end(self, turn: TurnContext) -> None:
        """Finish what has to be stored before the client sees the end of the answer."""

    async def fell_through(self, turn: TurnContext) -> None:
        """Note that the round which was asked for failed."""

    async def close(self, turn: TurnContext) -> None:
        """Release resources: the turn is over, however it ended."""


class ServerToolPlugin(Plugin):
    """The tools of one turn, as an engine plugin."""

    def __init__(
        self, tools: Iterable[ServerTool], turn: TurnContext, *, hidden: HiddenToolCalls, seconds: float
    ) -> None:
        self._tools = sorted(tools, key=lambda tool: -tool.priority)
        self._turn = turn
        self._hidden = hidden
        self._deadline = turn.now() + seconds
        self._last_follow_up: FollowUp | None = None
        self._last_exchange: tuple[FollowUp, str] | None = None
        self._last_calls: tuple[tuple[str, str], ...] = ()
        self._repeats = 0

    async def on_turn_start(self, run: Any) -> Callable[[], Any]:
        """Register the cleanup before any tool holds a resource."""
        return self._close

    async def on_before_request(self, run: Any) -> None:
        request: Request = run.request_body
        request = await self._hidden.restored(request, self._session, owner=self._turn.owner)
        for tool in self._tools:
            try:
                request = await tool.inject(self._turn, request)
            except Exception:
                # The request goes out without the tool's addition.
                log.exception("%s: %s could not add to the request", self._turn.request_id, tool.name)
        run.request_body = request

    async def on_after_request(self, run: Any) -> None:
        turn = self._turn
        if turn.failed:
            await self._fall_through()
            return
        response: Response = run.current_message.response()
        calls = [part for part in response.parts if isinstance(part, ToolCall)]
        own_calls = [call for call in calls if call.name in turn.tool_names]
        if own_calls:
            others = [call for call in calls if call.name not in turn.tool_names]
            await self._answer_calls(run, own_calls, others)
        elif not calls:
            await self._follow_up(run, response)
        else:
            for tool in self._tools:
                tool.called_away(turn)

    async def dispatched(self) -> None:
        """Tell every tool that the client has been written to."""
        for tool in self._tools:
            try:
                await tool.dispatched(self._turn)
            except Exception:
                log.exception("%s: %s failed after the first byte", self._turn.request_id, tool.name)

    async def before_end(self) -> None:
        """Tell every tool that the answer is about to end."""
        for tool in self._tools:
            try:
                await tool.before_end(self._turn)
            except Exception:
                log.exception("%s: %s failed before the end", self._turn.request_id, tool.name)

    @property
    def _session(self) -> str | None:
        return self._turn.session if self._turn.named else None

    async def _fall_through(self) -> None:
        for tool in self._tools:
            try:
                await tool.fell_through(self._turn)
            except Exception:
                log.exception("%s: %s could not take back its round", self._turn.request_id, tool.name)

    async def _answer_calls(
        self, run: Any, own_calls: Sequence[ToolCall], client_calls: Sequence[ToolCall]
    ) -> None:
        """Run the gateway's calls; the model gets the results now, or together with the client's own."""
        hidden = await asyncio.gather(*(self._run_call(call) for call in own_calls))
        if client_calls:
            placed = _with_positions(run.current_message.response(), hidden)
            await self._hidden.keep(
                self._session, placed, beside=[call.id for call in client_calls], owner=self._turn.owner
            )
        elif not self._is_loop(own_calls) and not self._is_late(
            "the results of its calls are not told to the model"
        ):
            results = (ToolResult(call.id, (Text(call.result),), name=call.name) for call in hidden)
            self._turn.owes_answer = True
            self._next_round(run, "tools", (Message("tool", tuple(results)),))

    async def _run_call(self, call: ToolCall) -> HiddenCall:
        result = await self._result(call)
        return HiddenCall(call.id, call.name, call.arguments, result, call.signature, call.origin)

    async def _result(self, call: ToolCall) -> str:
        """Return the result of a call; the failure of a tool is a result too, and the turn goes on."""
        try:
            tool = next(tool for tool in self._tools if tool.answers(self._turn, call.name))
            with self._turn.running(call):
                return await tool.call(self._turn, call)
        except msgspec.DecodeError as exc:
            return _failure("bad_arguments", f"the arguments cannot be read: {exc}")
        except Exception:
            log.exception("%s: a call of %s failed", self._turn.request_id, call.name)
            return _failure("tool_failed", f"{call.name} failed; it may work if it is called again")

    async def _follow_up(self, run: Any, response: Response) -> None:
        turn = self._turn
        if self._is_same_answer(response):
            turn.note("no follow-up: the model gave the same answer twice in a row")
            return
        for tool in self._tools:
            if self._is_late("no follow-up"):
                return
            follow_up = await self._follow_up_of(tool, response)
            if follow_up is None:
                continue
            run.current_message.kept = follow_up.with_answer
            self._last_follow_up = follow_up
            turn.owes_answer = False
            self._next_round(run, follow_up.suffix, follow_up.messages)
            return

    async def _follow_up_of(self, tool: ServerTool, response: Response) -> FollowUp | None:
        """Return a tool's follow-up; None if the tool fails, and the answer ends as it is."""
        turn = self._turn
        try:
            return await tool.follow_up(turn, response)
        except GatewayError as error:
            turn.note(f"no follow-up of {tool.name}: {error.message}")
        except Exception:
            log.exception("%s: %s failed", turn.request_id, tool.name)
            turn.note(f"no follow-up of {tool.name}: it failed")
        return None

    def _is_loop(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether the model repeats the same calls too often."""
        made = tuple((call.name, call.arguments) for call in calls)
        self._repeats = self._repeats + 1 if made == self._last_calls else 1
        self._last_calls = made
        if self._repeats <= _MOST_REPEATS:
            return False
        self._turn.note(f"no further round: the model made the same call {self._repeats} times in a row")
        return True

    def _is_late(self, consequence: str) -> bool:
        if self._turn.now() < self._deadline:
            return False
        self._turn.note(f"{consequence}: the turn has taken all the time it may")
        return True

    def _is_same_answer(self, response: Response) -> bool:
        """Return whether the same follow-up got the same text twice in a row."""
        if self._last_follow_up is None:
            return False
        text = "".join(part.text for part in response.parts if isinstance(part, Text))
        before, self._last_exchange = self._last_exchange, (self._last_follow_up, text)
        return before == self._last_exchange

    def _next_round(self, run: Any, suffix: str, messages: tuple[Message, ...]) -> None:
        turn = self._turn
        turn.round += 1
        turn.suffix = suffix
        log.info("%s: round %d", turn.request_id, turn.round)
        run.append_and_request(list(messages))

    async def _close(self) -> None:
        for tool in self._tools:
            try:
                await tool.close(self._turn)
            except Exception:
                # The other tools hold resources too, and the answer must not suffer.
                log.exception("%s: %s did not close", self._turn.request_id, tool.name)


def _failure(code: str, message: str) -> str:
    return msgspec.json.encode({"ok": False, "error": {"code": code, "message": message}}).decode()


def _with_positions(response: Response, hidden: Sequence[HiddenCall]) -> list[HiddenCall]:
    """Return hidden calls, each with the id of the client's call that came after it."""
    own_ids = {call.id for call in hidden}
    after: dict[str, str] = {}
    next_id = ""
    for part in reversed(response.parts):
        if isinstance(part, ToolCall):
            if part.id in own_ids:
                after[part.id] = next_id
            else:
                next_id = part.id
    return [replace(call, before=after[call.id]) for call in hidden]


def append_user_message(request: Request, text: str) -> Request:
    """Return the request with one more user message at its end."""
    return replace(request, messages=(*request.messages, Message("user", (Text(text),))))
