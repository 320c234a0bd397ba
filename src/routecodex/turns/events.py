"""What `Conversation.stream` tells, in the order it happens.

For every request: `StateChanged` ("requesting"), then with the first data `StateChanged` ("streaming") and
`MessageAppended`, then the pieces as the model sent them, whatever plugins make of the message. Messages that
plugins append follow, and what tools say into theirs. The last event is `TurnEnded`; a turn that fails raises
its error in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from routecodex.turns.message import Message
from routecodex.turns.turn import RequestState


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The turn does something else now: requesting, streaming, calling-tools, or a plugin's own word."""

    state: str


@dataclass(frozen=True, slots=True)
class MessageAppended:
    """A response that begins, or a plugin's message, has entered `messages`."""

    message: Message


@dataclass(frozen=True, slots=True)
class TextAdded:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningAdded:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalAdded:
    """More of what the model says in place of an answer it will not give."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallAdded:
    """The model begins to call a tool; `index` names the call in the events that follow."""

    index: int
    id: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class ArgumentsAdded:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolOutputAdded:
    """More of what a tool says, in its message already."""

    message: Message
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool's message has its result; `message.metadata["tool"]` tells how it ended."""

    message: Message


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over, completed or aborted; `usage` is that of all its requests."""

    message: Message | None
    state: RequestState
    usage: dict[str, Any]


TurnEvent = (
    StateChanged
    | MessageAppended
    | TextAdded
    | ReasoningAdded
    | RefusalAdded
    | ToolCallAdded
    | ArgumentsAdded
    | ToolOutputAdded
    | ToolEnded
    | TurnEnded
)
