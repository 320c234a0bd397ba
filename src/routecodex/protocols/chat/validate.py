"""What must be right in a chat request: the first field that is wrong is named.

What is read of a chat request: its fields, and its messages and tools when somebody asks for them.

A chat request read and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols import large_body
from routecodex.protocols.chat.fast_validate import fast_validate
from routecodex.protocols.chat.schema import (
    ROLES,
    ImageUrl,
    RequestBody,
    WireMessage,
    WirePart,
    WireTool,
    WireToolCall,
    WireToolChoice,
)
from routecodex.protocols.codec import WireRequest
from routecodex.wire import json, scan
from routecodex.wire.json import ABSENT

_NEED_CONTENT: Final = frozenset({"system", "developer", "user", "tool"})
"""Roles whose messages are nothing without content."""

UNLIMITED: Final = -1
"""How clients of local models say that an answer may be as long as it likes."""

_content: Final = Decoder(str | list[WirePart] | None)
_first_byte: Final = scan.first_byte
_STRING: Final = 0x22

_NULL: Final = 0x6E
"""How a JSON string and a null begin; texts are most of a large body, and stay as the bytes they are."""


def _invalid(field: str, what: str) -> BadRequest:
    return BadRequest(f"{field}: {what}", param=field, code="invalid_value")


def _missing(field: str, what: str = "this field is required") -> BadRequest:
    return BadRequest(f"{field}: {what}", param=field, code="missing_field")


def check_messages(messages: list[WireMessage]) -> None:
    """Refuses a conversation of which a part is wrong, or missing."""
    if not messages:
        raise _invalid("messages", "must hold at least one message")
    _check_conversation(messages)


def check_fields(wire: RequestBody) -> None:
    """Refuses a request in which something else than its messages is wrong."""
    model = wire.model
    if not model or "\x00" in model:
        raise _invalid("model", "must name a model")
    _check_count("n", wire.n)
    _check_limit("max_tokens", wire.max_tokens)
    _check_limit("max_completion_tokens", wire.max_completion_tokens)
    check_tools(wire.tools or ())
    for index, function in enumerate(wire.functions or []):
        _check_name(f"functions[{index}].name", function.name)
    choice = wire.tool_choice
    if choice is not None and isinstance(choice, WireToolChoice):
        _check_choice(choice)


def _check_count(field: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise _invalid(field, "must be 1 or more")


def _check_limit(field: str, value: int | None) -> None:
    if value is not None and value < 1 and value != UNLIMITED:
        raise _invalid(field, "must be 1 or more")


def _check_conversation(messages: list[WireMessage]) -> None:
    """One light pass: what is wrong is put into words only when something is."""
    called: set[str | None] = set()
    absent = ABSENT
    for index, message in enumerate(messages):
        role, content = message.role, message.content
        if role == "tool":
            call_id = message.tool_call_id
            if call_id not in called or not call_id:
                raise _bad_result(index, call_id)
        elif role == "assistant":
            calls = message.tool_calls
            if calls and len(calls) == 1 and _is_complete(calls[0]):
                called.add(calls[0].id)
            elif calls:
                called.update(_call_ids(index, calls))
        elif role != "user" and role not in ROLES:
            raise _invalid(f"messages[{index}].role", f"unknown role {role!r}; use one of {', '.join(ROLES)}")
        kind: int = _NULL if content is absent else _first_byte(content)
        if kind == _STRING:
            continue
        if kind != _NULL:
            where = f"messages[{index}].content"
            _check_parts(where, json.read(content, _content, at=where))
        elif role != "assistant" and role in _NEED_CONTENT:
            raise _missing(f"messages[{index}].content")


def _check_parts(where: str, parts: str | list[WirePart] | None) -> None:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        holds = _PART_CHECKS.get(part.type)
        if holds is not None and not holds(part):
            raise _missing(f"{where}[{index}].{part.type}")


def _has_url(source: ImageUrl | str | None) -> bool:
    return bool(source.url if isinstance(source, ImageUrl) else source)


_PART_CHECKS: dict[str, Callable[[WirePart], bool]] = {
    "text": lambda part: part.text is not None,
    "image_url": lambda part: _has_url(part.image_url),
    "video_url": lambda part: _has_url(part.video_url),
    "input_audio": lambda part: part.input_audio is not None,
    "file": lambda part: part.file is not None and bool(part.file.file_data or part.file.file_id),
}
"""Whether a part holds what its type promises; types we do not know are not asked."""


def _call_ids(index: int, calls: list[WireToolCall]) -> set[str | None]:
    ids: set[str | None] = set()
    for call in calls:
        if not _is_complete(call) or call.id in ids:
            raise _bad_call(f"messages[{index}].tool_calls", calls)
        ids.add(call.id)
    return ids


def _is_complete(call: WireToolCall) -> bool:
    return bool(call.id) and (call.function is not None or call.custom is not None)


def _bad_call(where: str, calls: list[WireToolCall]) -> BadRequest:
    ids: set[str] = set()
    for index, call in enumerate(calls):
        field = f"{where}[{index}].id"
        if call.function is None and call.custom is None:
            return _missing(f"{where}[{index}].{call.type}")
        if not call.id:
            return _missing(field, "a tool call needs an id")
        if call.id in ids:
            return BadRequest(f"{field}: duplicate id {call.id!r}", param=field, code="duplicate_id")
        ids.add(call.id)
    raise AssertionError("only called when one of the calls is bad")


def _bad_result(index: int, call_id: str | None) -> BadRequest:
    field = f"messages[{index}].tool_call_id"
    if not call_id:
        return _missing(field, "a tool message needs the id of its call")
    return BadRequest(
        f"{field}: no earlier assistant message calls {call_id!r}", param=field, code="orphan_tool_result"
    )


def check_tools(tools: Sequence[WireTool]) -> None:
    """Refuses tools of which one has no name."""
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)


def _check_tool(where: str, tool: WireTool) -> None:
    if tool.type not in ("function", "custom"):
        return
    described = tool.function if tool.type == "function" else tool.custom
    if described is None:
        raise _missing(f"{where}.{tool.type}")
    _check_name(f"{where}.{tool.type}.name", described.name)


def _check_name(field: str, name: str) -> None:
    if not name or "\x00" in name:
        raise _invalid(field, "a tool needs a name")


def _check_choice(choice: WireToolChoice) -> None:
    if choice.type not in ("function", "custom") or choice.name:
        return
    named = choice.function if choice.type == "function" else choice.custom
    if named is None or not named.name:
        raise _missing(f"tool_choice.{choice.type}", "must name a tool")


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


_body: Final = Decoder(RequestBody)

_LONG_TEXTS: Final = ((b"content", 3), (b"text", 5))
"""Where long texts stand: in messages, and in their parts."""


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """The request, checked; BadRequest names the field that is wrong."""
    outline, may_be_tagged = large_body.elide_texts(body, _LONG_TEXTS)
    view = _read_outline(outline) if outline else None
    if view is None:
        outline = b""
        view = _read_whole(body)
    wire = view.fields
    options = wire.stream_options
    return WireRequest(
        protocol="chat",
        body=body,
        wire=view,
        model=wire.model if model is None else model,
        stream=bool(wire.stream) if stream is None else stream,
        include_usage=bool(options is not None and options.include_usage),
        uncut=body if outline else b"",
        outline=outline,
        untagged=not may_be_tagged,
    )


def _read_whole(body: bytes) -> RequestView:
    wire = json.read(body, _body)
    json.check_utf8(body)
    _check(wire)
    return RequestView(wire, len(wire.messages))


def _check(wire: RequestBody) -> None:
    check_fields(wire)
    check_messages(wire.messages)


def _read_outline(outline: bytes) -> RequestView | None:
    """A request without its long texts; None when something is wrong: what, is found in the whole one."""
    valid = fast_validate(outline)
    wire = json.try_read(outline if valid is None else valid[0], _body)
    if wire is None:
        return None
    try:
        if valid is not None:
            check_fields(wire)
            return RequestView(wire, valid[2], unread=valid[1], unread_tools=valid[3])
        _check(wire)
    except BadRequest:
        return None
    return RequestView(wire, len(wire.messages))
