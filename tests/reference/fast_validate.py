"""Reference of `compile/fast_validate.c` in Python: validates chat messages and tools.

It accepts every valid request. The C may accept fewer: it returns None for rare ones.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.schema import WireMessage, WireTool
from routecodex.protocols.chat.validate import check_messages, check_tools
from routecodex.wire import json

_fields = Decoder(dict[str, Raw])
_messages = Decoder(list[WireMessage])
_tools = Decoder(list[WireTool])


def fast_validate(outline: bytes, /) -> tuple[bytes, bytes, int, bytes] | None:
    """Validate messages and tools; return the request without both, the messages, their count, the tools."""
    fields = json.try_read(outline, _fields) or {}
    messages, tools = fields.get("messages", Raw(b"")), fields.get("tools", Raw(b""))
    decoded = json.try_read(messages, _messages) or []
    try:
        check_messages(decoded)
    except BadRequest:
        return None
    taken = bytes(tools) if _are_functions(tools) else b""
    fields |= {"messages": Raw(b"[]"), **({"tools": Raw(b"[]")} if taken else {})}
    return json.encode(fields), bytes(messages), len(decoded), taken


def _are_functions(tools: Raw) -> bool:
    decoded = json.try_read(tools, _tools)
    if decoded is None or any(tool.type != "function" for tool in decoded):
        return False
    try:
        check_tools(decoded)
    except BadRequest:
        return False
    return True
