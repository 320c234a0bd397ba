"""Server tools: what the gateway does by itself between a model's answers, as one plugin of the turn engine.

A tool may inject into a request, answer calls to tools of its own, and ask for one more round when the model
has ended. Tools are asked in the order of their priority; the first follow-up wins. One place decides whether
to go on, and rounds chain because the loop comes round again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response
from routecodex.server_tools.hidden_calls import HiddenCall, HiddenToolCalls
from routecodex.turns import Plugin

_MOST_ALIKE = 5
"""How often in a row the same calls of ours are answered: who needs more is going round in circles."""

FOLLOW_UP: Mapping[str, bool] = {"serverToolFollowup": True}
"""What is said of a round that a server tool asked for, and not the client."""
_OF_THE_CLIENT: Mapping[str, bool] = {}

log = logging.getLogger("routecodex.server_tools")


class FollowUp(Struct, frozen=True):
    """One more round: what to say, and how its request is called; `with_answer` tells the last answer too."""

    messages: tuple[Message, ...]
    suffix: str
    with_answer: bool = True


class TurnContext:
    """One turn as server tools see it.

    `captured` is the request without anything injected; `names` are the tools of ours that the model has been
    offered; `data` is each tool's own memory of the turn.
    """

    def __init__(
        self,
        *,
        id: str,
        session: str | None,
        captured: Request,
        now: Callable[[], float],
        streaming: bool = False,
    ) -> None:
        self.id = id
        self.session = session
        self.captured = captured
        self.now = now
        self.streaming = streaming
        self.round = 1
        self.named = session is not None
        """Whether the client says to which session it belongs, and so will say it the next time."""
        self.names: set[str] = set()
        self.data: dict[str, Any] = {}
        self.notes: list[str] = []
        self.broken = False
        """The last round failed: there is nothing to follow up."""
        self.sent = 0
        """The number of the last round that was handed to an upstream."""
        self.owes = False
        """The round under way answers calls of ours: without it the client has no whole answer."""

    @property
    def request_id(self) -> str:
        """The id of the round under way: a follow-up's begins with that of the turn."""
        suffix = self.data.get("suffix", "")
        return f"{self.id}:{suffix}" if suffix else self.id

    @property
    def metadata(self) -> Mapping[str, bool]:
        """What the round under way is, for tools and logs; neither a provider nor the client hears of it."""
        return FOLLOW_UP if self.round > 1 else _OF_THE_CLIENT

    def note(self, reason: str) -> None:
        """Why something was not done; for the log, and for the client while its headers are not sent."""
        log.info("%s: %s", self.request_id, reason)
        if reason not in self.notes:
            self.notes.append(reason)


Situation = TurnContext
"""The name of `TurnContext` up to 0.1, for server tools of other packages; it goes with the next release."""


class ServerTool:
    """One tool; what it does not override does nothing."""

    name = ""
    priority = 0
    """Who is asked first for a follow-up: the highest."""

    def wants(self, situation: TurnContext) -> bool:
        """Whether it takes part in this turn."""
        return True

    async def inject(self, situation: TurnContext, request: Request) -> Request:
        """The request of this round with what the tool adds to it."""
        return request

    def answers(self, situation: TurnContext, name: str) -> bool:
        """Whether a call of this name is for this tool."""
        return False

    async def call(self, situation: TurnContext, call: ToolCall) -> str:
        """The result of a call."""
        raise NotImplementedError

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        """What to say to a model that has ended without calling anything."""
        return None

    def called_away(self, situation: TurnContext) -> None:
        """The answer ended with calls for the client: nobody is asked for a follow-up."""

    async def dispatched(self, situation: TurnContext) -> None:
        """The first byte of the answer goes to the client."""

    async def fell_through(self, situation: TurnContext) -> None:
        """The round that was asked for gave nothing."""

    async def close(self, situation: TurnContext) -> None:
        """The turn is over, however it ended."""


class ServerToolPlugin(Plugin):
    """The tools of one turn, as a plugin of the turn engine."""

    def __init__(
        self, tools: Iterable[ServerTool], situation: TurnContext, *, pairs: HiddenToolCalls, seconds: float
    ) -> None:
        self._tools = sorted(tools, key=lambda tool: -tool.priority)
        self._situation = situation
        self._pairs = pairs
        self._deadline = situation.now() + seconds
        self._asked: FollowUp | None = None
        self._heard: tuple[FollowUp, str] | None = None
        self._made: tuple[tuple[str, str], ...] = ()
        self._alike = 0

    async def on_turn_start(self, turn: Any) -> Callable[[], Any]:
        """Nothing is taken before something can be given back."""
        return self._close

    async def on_before_request(self, turn: Any) -> None:
        request: Request = turn.request_body
        request = await self._pairs.restored(request, self._session)
        for tool in self._tools:
            try:
                request = await tool.inject(self._situation, request)
            except Exception:
                # The person's request is worth more than what a tool would have added to it.
                log.exception("%s: %s could not add to the request", self._situation.request_id, tool.name)
        turn.request_body = request

    async def on_after_request(self, turn: Any) -> None:
        situation = self._situation
        if situation.broken:
            await self._fall_through()
            return
        response: Response = turn.current_message.response()
        calls = [part for part in response.parts if isinstance(part, ToolCall)]
        ours = [call for call in calls if call.name in situation.names]
        if ours:
            await self._run(turn, ours, theirs=[call for call in calls if call not in ours])
        elif not calls:
            await self._go_on(turn, response)
        else:
            for tool in self._tools:
                tool.called_away(situation)

    async def dispatched(self) -> None:
        """The first byte of the answer goes to the client."""
        for tool in self._tools:
            await tool.dispatched(self._situation)

    @property
    def _session(self) -> str | None:
        return self._situation.session if self._situation.named else None

    async def _fall_through(self) -> None:
        for tool in self._tools:
            try:
                await tool.fell_through(self._situation)
            except Exception:
                log.exception("%s: %s could not take back its round", self._situation.request_id, tool.name)

    async def _run(self, turn: Any, ours: Sequence[ToolCall], *, theirs: Sequence[ToolCall]) -> None:
        """Runs the calls that are ours; the model hears the results now, or with the client's own."""
        pairs = await asyncio.gather(*(self._pair(call) for call in ours))
        if theirs:
            placed = _before_which(turn.current_message.response(), pairs)
            await self._pairs.keep(self._session, placed, beside=[call.id for call in theirs])
        elif not self._repeats(ours) and not self._is_late(
            "the results of its calls are not told to the model"
        ):
            results = (ToolResult(pair.id, (Text(pair.result),), name=pair.name) for pair in pairs)
            self._situation.owes = True
            self._again(turn, "tools", (Message("tool", tuple(results)),))

    async def _pair(self, call: ToolCall) -> HiddenCall:
        result = await self._result(call)
        return HiddenCall(call.id, call.name, call.arguments, result, call.signature, call.origin)

    async def _result(self, call: ToolCall) -> str:
        """What the call gave; a tool that fails is a result too, and the turn goes on."""
        try:
            tool = next(tool for tool in self._tools if tool.answers(self._situation, call.name))
            return await tool.call(self._situation, call)
        except msgspec.DecodeError as exc:
            return _failure("bad_arguments", f"the arguments cannot be read: {exc}")
        except Exception:
            log.exception("%s: a call of %s failed", self._situation.request_id, call.name)
            return _failure("tool_failed", f"{call.name} failed; it may work if it is called again")

    async def _go_on(self, turn: Any, response: Response) -> None:
        situation = self._situation
        if self._says_the_same(response):
            situation.note("no follow-up: the model gave the same answer twice in a row")
            return
        for tool in self._tools:
            if self._is_late("no follow-up"):
                return
            wanted = await self._wanted(tool, response)
            if wanted is None:
                continue
            turn.current_message.kept = wanted.with_answer
            self._asked = wanted
            situation.owes = False
            self._again(turn, wanted.suffix, wanted.messages)
            return

    async def _wanted(self, tool: ServerTool, response: Response) -> FollowUp | None:
        """What the tool would say; one that fails says nothing, and the answer ends as it is."""
        situation = self._situation
        try:
            return await tool.follow_up(situation, response)
        except GatewayError as error:
            situation.note(f"no follow-up of {tool.name}: {error.message}")
        except Exception:
            log.exception("%s: %s failed", situation.request_id, tool.name)
            situation.note(f"no follow-up of {tool.name}: it failed")
        return None

    def _repeats(self, calls: Sequence[ToolCall]) -> bool:
        """Whether the model makes the same calls of ours again and again."""
        made = tuple((call.name, call.arguments) for call in calls)
        self._alike = self._alike + 1 if made == self._made else 1
        self._made = made
        if self._alike <= _MOST_ALIKE:
            return False
        self._situation.note(f"no further round: the model made the same call {self._alike} times in a row")
        return True

    def _is_late(self, what: str) -> bool:
        if self._situation.now() < self._deadline:
            return False
        self._situation.note(f"{what}: the turn has taken all the time it may")
        return True

    def _says_the_same(self, response: Response) -> bool:
        """Whether the same follow-up was answered twice in the same words."""
        if self._asked is None:
            return False
        said = "".join(part.text for part in response.parts if isinstance(part, Text))
        before, self._heard = self._heard, (self._asked, said)
        return before == self._heard

    def _again(self, turn: Any, suffix: str, messages: tuple[Message, ...]) -> None:
        situation = self._situation
        situation.round += 1
        situation.data["suffix"] = suffix
        log.info("%s: round %d", situation.request_id, situation.round)
        turn.append_and_request(list(messages))

    async def _close(self) -> None:
        for tool in self._tools:
            try:
                await tool.close(self._situation)
            except Exception:
                # The others have things to give back too, and the answer is not to suffer.
                log.exception("%s: %s did not close", self._situation.request_id, tool.name)


def _failure(code: str, message: str) -> str:
    return msgspec.json.encode({"ok": False, "error": {"code": code, "message": message}}).decode()


def _before_which(response: Response, pairs: Sequence[HiddenCall]) -> list[HiddenCall]:
    """The pairs, each with the id of the client's call that came after it."""
    ours = {pair.id for pair in pairs}
    after: dict[str, str] = {}
    follows = ""
    for part in reversed(response.parts):
        if isinstance(part, ToolCall):
            if part.id in ours:
                after[part.id] = follows
            else:
                follows = part.id
    return [replace(pair, before=after[pair.id]) for pair in pairs]


def append_user_message(request: Request, text: str) -> Request:
    """The request with one more message of the user at its end."""
    return replace(request, messages=(*request.messages, Message("user", (Text(text),))))
