"""What is read of a chat request: all of its fields, and its messages when somebody asks for them."""

from __future__ import annotations

from typing import Final

from msgspec.json import Decoder

from routecodex.protocols.chat.schema import ChatRequest, Message

_messages: Final = Decoder(list[Message])


class View:
    """A request that is known to be right; `count` is how many messages it has.

    Where these were only skimmed, they are `unread` and not among the fields until they are asked for.
    """

    __slots__ = ("_unread", "count", "fields")

    def __init__(self, fields: ChatRequest, count: int, *, unread: bytes = b"") -> None:
        self.fields: Final = fields
        self.count: Final = count
        self._unread = unread

    def messages(self) -> list[Message]:
        """The conversation so far."""
        if self._unread:
            self.fields.messages = _messages.decode(self._unread)
            self._unread = b""
        return self.fields.messages
