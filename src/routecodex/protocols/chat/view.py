"""What is read of a chat request: its fields, and its messages and tools when somebody asks for them."""

from __future__ import annotations

from typing import Final

from msgspec.json import Decoder

from routecodex.protocols.chat.schema import RequestBody, WireMessage, WireTool

_messages: Final = Decoder(list[WireMessage])
_tools: Final = Decoder(list[WireTool])


class RequestView:
    """A request that is known to be right; `count` is how many messages it has.

    Messages and tools that `fast_validate` has taken out are unread: they are decoded into the fields when
    they are first asked for. Such tools are all functions that the client runs.
    """

    __slots__ = ("_unread", "_unread_tools", "count", "fields")

    def __init__(
        self, fields: RequestBody, count: int, *, unread: bytes = b"", unread_tools: bytes = b""
    ) -> None:
        self.fields: Final = fields
        self.count: Final = count
        self._unread = unread
        self._unread_tools = unread_tools

    def messages(self) -> list[WireMessage]:
        """The conversation so far."""
        if self._unread:
            self.fields.messages = _messages.decode(self._unread)
            self._unread = b""
        return self.fields.messages

    def tools(self) -> list[WireTool]:
        """What the model may call."""
        if self._unread_tools:
            self.fields.tools = _tools.decode(self._unread_tools)
            self._unread_tools = b""
        return self.fields.tools or []

    def tools_at_sight(self) -> list[WireTool]:
        """The same, but for tools that are known to be functions and were not asked for yet."""
        return self.fields.tools or []
