"""Messages and tools of a chat request, seen to be right without making anything of them.

Few of them are ever looked at, and they are nearly all that there is in a large request.

This is what `skim` promises. From the sources it would be one pass more, and is not used; where the hot path
is compiled, `compile/skim.c` stands in its place. That gives None for a few more: for what is rare.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.checking import check_messages, check_tools
from routecodex.protocols.chat.schema import Message, Tool
from routecodex.wire import json

_fields = Decoder(dict[str, Raw])
_messages = Decoder(list[Message])
_tools = Decoder(list[Tool])


def skim(outline: bytes, /) -> tuple[bytes, bytes, int, bytes] | None:
    """The request without its messages and tools; the messages by themselves, how many they are; the tools.

    None when there are no messages, or when one of them may be wrong: then nothing is known. The tools stay
    in the request, and what is told of them is empty, where one may be wrong, or runs elsewhere than at the
    client. What else there is is not looked at.
    """
    fields = json.try_read(outline, _fields) or {}
    told, offered = fields.get("messages", Raw(b"")), fields.get("tools", Raw(b""))
    messages = json.try_read(told, _messages)
    try:
        check_messages(messages or [])
    except BadRequest:
        return None
    tools = bytes(offered) if _are_functions(offered) else b""
    fields |= {"messages": Raw(b"[]"), **({"tools": Raw(b"[]")} if tools else {})}
    return json.encode(fields), bytes(told), len(messages or ()), tools


def _are_functions(offered: Raw) -> bool:
    tools = json.try_read(offered, _tools)
    if tools is None or any(tool.type != "function" for tool in tools):
        return False
    try:
        check_tools(tools)
    except BadRequest:
        return False
    return True
