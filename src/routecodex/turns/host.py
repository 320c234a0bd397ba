"""What the engine needs of its host: requests, messages and chunks mean something there only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeVar

RequestT = TypeVar("RequestT")
MessageT = TypeVar("MessageT")
ChunkT = TypeVar("ChunkT")


class Host(Protocol[RequestT, MessageT, ChunkT]):
    """Where a turn happens: it keeps the messages, speaks to the model and merges what comes back."""

    @property
    def messages(self) -> list[MessageT]:
        """The live list; plugins may edit it."""

    def build_request(self) -> RequestT:
        """A fresh request from the messages as they are now; editing it changes no message."""

    def with_messages(self, request: RequestT, messages: Sequence[object]) -> RequestT:
        """The request with these messages in place of its own; the same object where it can be edited."""

    def send(self, request: RequestT) -> AsyncIterator[ChunkT]:
        """The chunks of the answer; the engine closes what has `aclose`, however the stream ends."""

    def new_message(self) -> MessageT:
        """An empty response for chunks to be merged into."""

    def merge(self, message: MessageT, chunk: ChunkT) -> bool:
        """Merges the chunk; whether it held something of the message (a usage report, say, does not)."""

    def place(self, message: MessageT) -> None:
        """Appends the message to `messages`."""

    def as_message(self, given: object) -> MessageT:
        """A message from whatever plugins may hand over."""

    def processing(self, state: str) -> None:
        """Is told of every new processing state."""
