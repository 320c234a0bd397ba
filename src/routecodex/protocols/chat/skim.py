"""The messages of a chat request, seen to be right without making anything of them: few are ever looked at.

This is what `skim` promises. From the sources it would be one pass more, and is not used; where the hot path
is compiled, `compile/skim.c` stands in its place. That gives None for a few more: for what is rare.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.checking import check_messages
from routecodex.protocols.chat.schema import Message
from routecodex.wire import json

_fields = Decoder(dict[str, Raw])
_messages = Decoder(list[Message])


def skim(outline: bytes, /) -> tuple[bytes, bytes, int] | None:
    """The request without its messages, these by themselves, and how many they are.

    None when there are none, or when one of them may be wrong: then nothing is known. What else is in the
    request is not looked at.
    """
    fields = json.try_read(outline, _fields) or {}
    told = fields.get("messages", Raw(b""))
    messages = json.try_read(told, _messages)
    try:
        check_messages(messages or [])
    except BadRequest:
        return None
    return json.encode({**fields, "messages": Raw(b"[]")}), bytes(told), len(messages or ())
