"""Run a turn with server tools but without a gateway, with a scripted model that records its requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.events import AnswerPart, Event, Finished, Started, UsageReported
from routecodex.canon.finish import Finish, Reason
from routecodex.canon.parts import Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response, ResponseBuilder, unfold
from routecodex.server_tools.framework import FollowUp, ServerTool, ServerToolPlugin, TurnContext
from routecodex.server_tools.hidden_calls import HiddenToolCalls
from routecodex.stores.memory import MemoryStore
from routecodex.turns.engine import Engine

HELLO = Message("user", (Text("hello"),))


def request_with(*messages: Message) -> Request:
    return Request(model="m", source="chat", messages=messages or (HELLO,))


def response_with(*parts: AnswerPart | str, reason: Reason | None = None) -> Response:
    """Build an answer; strings become texts, and calls set the finish reason."""
    whole = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    ends: Reason = "tool_calls" if any(isinstance(part, ToolCall) for part in whole) else "stop"
    return Response(parts=whole, finish=Finish(reason or ends))


def turn_context(request: Request | None = None, *, session: str | None = "s-1") -> TurnContext:
    return TurnContext(id="req_1", session=session, captured=request or request_with(), now=lambda: 0.0)


def follow_up_with(text: str, suffix: str = "more") -> FollowUp:
    return FollowUp((Message("user", (Text(text),)),), suffix)


class ScriptedMessage:
    """An answer of the model as the turn sees it."""

    def __init__(self) -> None:
        self._builder = ResponseBuilder()
        self.kept = True

    def add(self, event: Event) -> None:
        self._builder.add(event)

    def response(self) -> Response:
        return self._builder.response()


class Model:
    """The host of a turn; `requests` are the requests of its rounds."""

    def __init__(self, turn: TurnContext, *answers: Response) -> None:
        self._turn = turn
        self._answers = list(answers)
        self.messages: list[Any] = list(turn.captured.messages)
        self.requests: list[Request] = []

    def build_request(self) -> Request:
        return self.with_messages(self._turn.captured, self.messages)

    def with_messages(self, request: Request, messages: Sequence[object]) -> Request:
        return replace(request, messages=tuple(map(_message, messages)))

    async def send(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self._turn.sent = self._turn.round
        for event in unfold(self._answers.pop(0)):
            yield event

    def new_message(self) -> ScriptedMessage:
        return ScriptedMessage()

    def merge(self, message: Any, chunk: Event) -> bool:
        message.add(chunk)
        return not isinstance(chunk, Started | UsageReported | Finished)

    def place(self, message: Any) -> None:
        self.messages.append(message)

    def as_message(self, message: object) -> Any:
        return message

    def processing(self, state: str) -> None:
        """Ignore the state."""


def _message(message: object) -> Message:
    if isinstance(message, ScriptedMessage):
        return Message("assistant", message.response().parts)
    assert isinstance(message, Message)
    return message


class FinishedTurn:
    """A finished turn: its requests and its store."""

    def __init__(self, model: Model, store: MemoryStore) -> None:
        self.requests = model.requests
        self.store = store

    @property
    def new(self) -> list[tuple[Message, ...]]:
        """The messages that each round added to the request."""
        before = [(), *(request.messages for request in self.requests)]
        return [request.messages[len(old) :] for old, request in zip(before, self.requests, strict=False)]


async def run_turn(
    tools: Sequence[ServerTool],
    *answers: Response,
    turn: TurnContext,
    seconds: float = 900.0,
    store: MemoryStore | None = None,
) -> FinishedTurn:
    """Run a turn to its end."""
    store = store or MemoryStore()
    plugin = ServerToolPlugin(tools, turn, hidden=HiddenToolCalls(store), seconds=seconds)
    model = Model(turn, *answers)
    engine: Engine[Request, Any, Event] = Engine((plugin,), max_requests=None)
    await engine.begin(model).run()
    return FinishedTurn(model, store)
