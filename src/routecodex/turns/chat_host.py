"""The host of a conversation: one turn with chat-shaped requests, messages and chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from routecodex.turns.engine import Engine, TurnRun
from routecodex.turns.events import (
    ArgumentsAdded,
    MessageAppended,
    ReasoningAdded,
    RefusalAdded,
    StateChanged,
    TextAdded,
    ToolCallAdded,
    TurnEvent,
)
from routecodex.turns.message import Message, add_usage, copied, merge_delta
from routecodex.turns.turn import Turn

Body: TypeAlias = dict[str, Any]
Chunk: TypeAlias = Mapping[str, Any]
ChatEngine: TypeAlias = Engine[Body, Message, Chunk]
ChatRun: TypeAlias = TurnRun[Body, Message, Chunk]
ChatTurn: TypeAlias = Turn[Body, Message, Chunk]


class Sender(Protocol):
    """Sends a chat-shaped request body and yields the chat-shaped chunks of the answer.

    A sender may have `message_fields`, the message fields it needs besides the usual ones, and `aclose`. The
    `metadata` of a chunk is added to the metadata of the message.
    """

    def __call__(self, body: Body) -> AsyncIterator[Chunk]: ...


class EventListener(Protocol):
    """The receiver of a turn's events."""

    def emit(self, event: TurnEvent) -> None: ...

    async def wait_ready(self) -> None:
        """Wait until the listener accepts more events."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of the turns of a conversation; `messages` is the live list, `system` not part of it."""

    messages: list[Message]
    sender: Sender
    model: str
    fields: Collection[str]
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


class ChatHost:
    """Builds requests from the messages, merges chunks into answers and sums the usage of one turn."""

    def __init__(self, setting: Setting, listener: EventListener | None = None) -> None:
        self._setting = setting
        self._listener = listener
        self._usage: dict[str, Any] = {}
        self._round_usage: dict[str, Any] = {}

    @property
    def messages(self) -> list[Message]:
        return self._setting.messages

    @property
    def usage(self) -> dict[str, Any]:
        """The usage of all requests of the turn so far."""
        return add_usage(self._usage, self._round_usage)

    def build_request(self) -> Body:
        self._usage, self._round_usage = self.usage, {}
        messages = self._request_messages(self.messages)
        return {"model": self._setting.model, "messages": messages, **copied(self._setting.parameters)}

    def with_messages(self, request: Body, messages: Sequence[object]) -> Body:
        request["messages"] = self._request_messages([Message.of(message) for message in messages])
        return request

    def _request_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        bodies = (message.as_dict(self._setting.fields) for message in messages)
        system = self._setting.system
        first = [] if system is None else [{"role": "system", "content": system}]
        return [*first, *(body for body in bodies if not _is_empty_answer(body))]

    def send(self, request: Body) -> AsyncIterator[Chunk]:
        chunks = self._setting.sender(request)
        return chunks if self._listener is None else _with_events(chunks, self._listener)

    def new_message(self) -> Message:
        return Message("assistant")

    def merge(self, message: Message, chunk: Chunk) -> bool:
        usage = chunk.get("usage")
        if usage:
            self._round_usage = copied(usage)
            message.metadata["usage"] = copied(usage)
        metadata = chunk.get("metadata")
        if isinstance(metadata, Mapping):
            # Facts about the answer, such as its response headers; HttpSender sends them.
            message.metadata.update(copied(metadata))
        choice = _choice(chunk)
        if choice is None:
            return False
        merge_delta(message.__dict__, _delta(choice))
        if choice.get("finish_reason") is not None:
            message.metadata["finish_reason"] = choice["finish_reason"]
        return True

    def place(self, message: Message) -> None:
        self.messages.append(message)
        if self._listener is not None:
            self._listener.emit(MessageAppended(message))

    def as_message(self, value: object) -> Message:
        return Message.of(value)

    def tell(self, event: TurnEvent) -> None:
        if self._listener is not None:
            self._listener.emit(event)

    def processing(self, state: str) -> None:
        if self._listener is not None:
            self._listener.emit(StateChanged(state))


def _is_empty_answer(message: Mapping[str, Any]) -> bool:
    """Return whether an answer has no content, as after an abort during thinking; providers reject it."""
    return message.get("role") == "assistant" and not any(
        value for name, value in message.items() if name != "role"
    )


async def _with_events(chunks: AsyncIterator[Chunk], listener: EventListener) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks; emit the events of each after the turn has processed it."""
    calls: set[int] = set()
    try:
        async for chunk in chunks:
            yield chunk
            for event in _events(chunk, calls):
                listener.emit(event)
            await listener.wait_ready()
    finally:
        aclose = getattr(chunks, "aclose", None)
        if aclose is not None:
            await aclose()


def _events(chunk: Chunk, calls: set[int]) -> Iterator[TurnEvent]:
    """Yield the events of a chunk; `calls` are the indexes of tool calls that have started."""
    choice = _choice(chunk)
    delta = {} if choice is None else _delta(choice)
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning and isinstance(reasoning, str):
        yield ReasoningAdded(reasoning)
    content = delta.get("content")
    if content and isinstance(content, str):
        yield TextAdded(content)
    refusal = delta.get("refusal")
    if refusal and isinstance(refusal, str):
        yield RefusalAdded(refusal)
    for call in delta.get("tool_calls") or ():
        yield from _call_events(call, calls)


def _call_events(call: Mapping[str, Any], calls: set[int]) -> Iterator[TurnEvent]:
    function = call.get("function") or {}
    index = call.get("index", len(calls))
    if index not in calls:
        calls.add(index)
        yield ToolCallAdded(index, call.get("id"), function.get("name"))
    if function.get("arguments"):
        yield ArgumentsAdded(index, function["arguments"])


def _choice(chunk: Chunk) -> Mapping[str, Any] | None:
    """Return the first choice; there are others only when the request set `n`."""
    choices = chunk.get("choices") or ()
    return next((choice for choice in choices if not choice.get("index")), None)


def _delta(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the delta of a choice, or its whole message when the answer was not streamed."""
    delta = choice.get("delta") or choice.get("message") or {}
    return {name: value for name, value in delta.items() if name != "metadata"}
