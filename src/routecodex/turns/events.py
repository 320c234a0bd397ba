"""Events of `Conversation.stream`, in the order they happen.

Every request begins with `StateChanged` ("requesting"). The first data adds `StateChanged` ("streaming") and
`MessageAppended`. Then come the deltas as the model sent them, even if plugins change the message, the
messages that plugins append, and the output of tools. The last event is `TurnEnded`; a turn that fails raises
its error instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from routecodex.turns.message import Message
from routecodex.turns.turn import RequestState


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The processing state changed: requesting, streaming, calling-tools, or a state set by a plugin."""

    state: str


@dataclass(frozen=True, slots=True)
class MessageAppended:
    """A message was appended to `messages`: a response with its first data, or one of a plugin."""

    message: Message


@dataclass(frozen=True, slots=True)
class TextAdded:
    """A text delta of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningAdded:
    """A delta of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalAdded:
    """A text delta of a refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallAdded:
    """A tool call started; `index` identifies it in the following events."""

    index: int
    id: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class ArgumentsAdded:
    """A delta of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolOutputAdded:
    """Output of a tool, already in its message."""

    message: Message
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool message has its result; `message.metadata["tool"]` holds the end state."""

    message: Message


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn was completed or aborted; `usage` is the sum over its requests.

    `output` is the answer as the `output_type` of the turn, if it has one.
    """

    message: Message | None
    state: RequestState
    usage: dict[str, Any]
    output: Any = None


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
