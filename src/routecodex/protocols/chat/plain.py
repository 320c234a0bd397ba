"""Whether the messages of a chat request are right at first sight: most are, and need no closer look.

This is what `are_plain` promises. From the sources it would be one pass more, and is not used (`scan.IN_C`);
where the hot path is compiled, `compile/plain.c` does the same in its place.
"""

from __future__ import annotations

from routecodex.protocols.chat.schema import ROLES, Call, Message
from routecodex.wire import scan
from routecodex.wire.json import ABSENT

_STRING, _NULL = b'"n'
_SILENT = frozenset({"assistant", "function"})
"""Roles whose messages may do without content."""
_REMEMBERED = 64


def are_plain(messages: list[Message], /) -> bool:
    """Whether all roles are known, contents texts, calls whole, and results behind calls of theirs.

    When not, nothing is known: one of them may be wrong, or only rare, such as a content with parts or a
    result that comes more than 64 calls after its own.
    """
    called: list[str | None] = []
    for message in messages:
        role, calls = message.role, message.tool_calls
        if role not in ROLES or not _is_plain(message):
            return False
        if role == "tool" and not (message.tool_call_id and message.tool_call_id in called):
            return False
        if role == "assistant" and calls:
            ids = [call.id for call in calls]
            if not all(map(_is_whole, calls)) or len(ids) > _REMEMBERED or len(set(ids)) < len(ids):
                return False
            called = (called + ids)[-_REMEMBERED:]
    return True


def _is_plain(message: Message) -> bool:
    content = message.content
    kind = _NULL if content is ABSENT else scan.sign(content)
    return kind == _STRING or (kind == _NULL and message.role in _SILENT)


def _is_whole(call: Call) -> bool:
    return bool(call.id) and (call.function is not None or call.custom is not None)
