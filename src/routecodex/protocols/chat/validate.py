"""Validates a chat request; an error names the first invalid field.

A large request is validated without its long texts, and its messages and tools are decoded on first use
(`RequestView`): routing needs only a few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import RequestOpenings, TextStart
from routecodex.protocols import large_body
from routecodex.protocols.chat.fast_validate import fast_validate
from routecodex.protocols.chat.schema import (
    ROLES,
    ImageUrl,
    RequestBody,
    TextPart,
    WireMessage,
    WirePart,
    WireTool,
    WireToolCall,
    WireToolChoice,
)
from routecodex.protocols.codec import OpeningHeads, WireRequest
from routecodex.protocols.message_features import TEXT_START, TextValue, opening_starts
from routecodex.wire import json, scan
from routecodex.wire.json import ABSENT

_NEED_CONTENT: Final = frozenset({"system", "developer", "user", "tool"})
"""Roles whose messages require content."""

UNLIMITED: Final = -1
"""No limit on the answer, as clients of LM Studio and llama.cpp send it (LM Studio docs, OpenAI API)."""

_STRING: Final = 0x22
_LIST: Final = 0x5B

SYSTEM_ROLES: Final = frozenset({"system", "developer"})

_NULL: Final = 0x6E
"""First bytes of a JSON string and of null: long texts are recognised without decoding them."""

_LONG_TEXTS: Final = ((b"content", 3), (b"text", 5))
"""Keys and depths of long texts: in messages, and in their parts."""

_ROLE_FIRST: Final = b'{"role":'
_NEXT_MESSAGE: Final = b',{"role":'
_USER_MESSAGE: Final = b'{"role":"user",'
_SYSTEM_MESSAGES: Final = (b'{"role":"system",', b'{"role":"developer",')
"""Messages as the SDKs write them: without white space, and the role first."""

_body: Final = Decoder(RequestBody)
_message: Final = Decoder(WireMessage)
_messages: Final = Decoder(list[WireMessage])
_tools: Final = Decoder(list[WireTool])
_parts: Final = Decoder(list[TextPart])
_content: Final = Decoder(str | list[WirePart] | None)
_first_byte: Final = scan.first_byte


class RequestView:
    """A validated request; `count` is the number of its messages.

    Messages and tools that `fast_validate` took out of the body stay raw until their first use. Raw tools are
    all functions that the client runs.
    """

    __slots__ = ("_raw_messages", "_raw_tools", "count", "fields")

    def __init__(
        self, fields: RequestBody, count: int, *, raw_messages: bytes = b"", raw_tools: bytes = b""
    ) -> None:
        self.fields: Final = fields
        self.count: Final = count
        self._raw_messages = raw_messages
        self._raw_tools = raw_tools

    def messages(self) -> list[WireMessage]:
        """Return the messages, decoded on first use."""
        if self._raw_messages:
            self.fields.messages = _messages.decode(self._raw_messages)
            self._raw_messages = b""
        return self.fields.messages

    def leading(self) -> list[WireMessage]:
        """Return the first messages: of raw ones only the system messages, if they are written as usual."""
        if not self._raw_messages:
            return self.fields.messages
        found: list[WireMessage] = []
        at = 1
        while self._raw_messages.startswith(_SYSTEM_MESSAGES, at):
            end = self._raw_messages.find(_NEXT_MESSAGE, at)
            message = json.try_read(self._raw_messages[at : end if end >= 0 else -1], _message)
            if message is None:
                return self.messages()
            found.append(message)
            if end < 0:
                return found
            at = end + 1
        return found if self._raw_messages.startswith(_ROLE_FIRST, at) else self.messages()

    def newest_user(self) -> WireMessage | None:
        """Return the last message of the user; a raw one is decoded alone, if it is written as usual."""
        if self._raw_messages:
            message = self._newest_raw()
            if message is not None:
                return message
        for message in reversed(self.messages()):
            if message.role == "user":
                return message
        return None

    def openings(self, original: bytes, heads: OpeningHeads) -> RequestOpenings:
        """Return those of the leading system texts and of the newest user texts that may show a role."""
        leading, newest = self.leading(), self.newest_user()
        user = () if newest is None else _opening_starts(newest, original, heads)
        if not leading or leading[0].role not in SYSTEM_ROLES:
            return (), user
        system = _opening_starts(leading[0], original, heads)
        for at in range(1, len(leading)):
            if leading[at].role not in SYSTEM_ROLES:
                break
            system += _opening_starts(leading[at], original, heads)
        return system, user

    def _newest_raw(self) -> WireMessage | None:
        at = self._raw_messages.rfind(_USER_MESSAGE)
        if at < 0:
            return None
        end = self._raw_messages.find(_NEXT_MESSAGE, at)
        return json.try_read(self._raw_messages[at : end if end >= 0 else -1], _message)

    def tools(self) -> list[WireTool]:
        """Return the tools, decoded on first use."""
        if self._raw_tools:
            self.fields.tools = _tools.decode(self._raw_tools)
            self._raw_tools = b""
        return self.fields.tools or []

    def decoded_tools(self) -> list[WireTool]:
        """Return the tools that are decoded already; raw ones are functions, never hosted tools."""
        return self.fields.tools or []


def openings(request: WireRequest, heads: OpeningHeads) -> RequestOpenings:
    """Return the texts that may show the role of a request; called for every request."""
    view: RequestView = request.view
    return view.openings(request.original, heads)


def _opening_starts(message: WireMessage, original: bytes, heads: OpeningHeads) -> tuple[TextStart, ...]:
    content = bytes(message.content)
    if content and content[0] == _STRING:
        if not heads.admit_raw(content):
            return ()
        if not original:
            return (content[:TEXT_START],)
    return opening_starts(read_content(message, original)[0], heads)


def read_content(message: WireMessage, original: bytes) -> tuple[Sequence[TextValue], Sequence[str]]:
    """Return the texts of a message, and the types of its parts."""
    view = memoryview(message.content)
    kind = view[0] if view.nbytes else 0
    if kind == _STRING:
        return (large_body.restore_text(message.content, original),), ()
    parts = json.try_read(message.content, _parts) if kind == _LIST else None
    if parts is None:
        return (), ()
    texts = [part.text for part in parts if part.type == "text" and json.starts_with(part.text, b'"')]
    return [large_body.restore_text(text, original) for text in texts], [part.type for part in parts]


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """Validate the body; BadRequest names the invalid field."""
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
        view=view,
        model=wire.model if model is None else model,
        stream=bool(wire.stream) if stream is None else stream,
        include_usage=bool(options is not None and options.include_usage),
        original=body if outline else b"",
        outline=outline,
        lacks_tags=not may_be_tagged,
    )


def _read_whole(body: bytes) -> RequestView:
    wire = json.read(body, _body)
    json.check_utf8(body)
    _check(wire)
    return RequestView(wire, len(wire.messages))


def _read_outline(outline: bytes) -> RequestView | None:
    """Validate the body without its long texts; None if invalid: the whole body then names the field."""
    valid = fast_validate(outline)
    wire = json.try_read(outline if valid is None else valid[0], _body)
    if wire is None:
        return None
    try:
        if valid is not None:
            check_fields(wire)
            return RequestView(wire, valid[2], raw_messages=valid[1], raw_tools=valid[3])
        _check(wire)
    except BadRequest:
        return None
    return RequestView(wire, len(wire.messages))


def _check(wire: RequestBody) -> None:
    check_fields(wire)
    check_messages(wire.messages)


def check_fields(wire: RequestBody) -> None:
    """Raise BadRequest for the first invalid field other than `messages`."""
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


def check_tools(tools: Sequence[WireTool]) -> None:
    """Raise BadRequest for the first tool without a definition or a name."""
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)


def _check_tool(where: str, tool: WireTool) -> None:
    if tool.type not in ("function", "custom"):
        return
    definition = tool.function if tool.type == "function" else tool.custom
    if definition is None:
        raise _missing(f"{where}.{tool.type}")
    _check_name(f"{where}.{tool.type}.name", definition.name)


def _check_name(field: str, name: str) -> None:
    if not name or "\x00" in name:
        raise _invalid(field, "a tool needs a name")


def _check_choice(choice: WireToolChoice) -> None:
    if choice.type not in ("function", "custom") or choice.name:
        return
    named = choice.function if choice.type == "function" else choice.custom
    if named is None or not named.name:
        raise _missing(f"tool_choice.{choice.type}", "must name a tool")


def check_messages(messages: list[WireMessage]) -> None:
    """Raise BadRequest for the first invalid message."""
    if not messages:
        raise _invalid("messages", "must contain at least one message")
    _check_conversation(messages)


def _check_conversation(messages: list[WireMessage]) -> None:
    """Check every message in one pass; error texts are built only on failure."""
    call_ids: set[str | None] = set()
    absent = ABSENT
    for index, message in enumerate(messages):
        role, content = message.role, message.content
        if role == "tool":
            call_id = message.tool_call_id
            if call_id not in call_ids or not call_id:
                raise _bad_result(index, call_id)
        elif role == "assistant":
            calls = message.tool_calls
            if calls and len(calls) == 1 and _is_complete(calls[0]):
                call_ids.add(calls[0].id)
            elif calls:
                call_ids.update(_call_ids(index, calls))
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


_PART_CHECKS: dict[str, Callable[[WirePart], bool]] = {
    "text": lambda part: part.text is not None,
    "image_url": lambda part: _has_url(part.image_url),
    "video_url": lambda part: _has_url(part.video_url),
    "input_audio": lambda part: part.input_audio is not None,
    "file": lambda part: part.file is not None and bool(part.file.file_data or part.file.file_id),
}
"""Check that a part has the field its type requires; unknown types are accepted."""


def _has_url(source: ImageUrl | str | None) -> bool:
    return bool(source.url if isinstance(source, ImageUrl) else source)


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
    raise AssertionError("called only when one of the calls is invalid")


def _bad_result(index: int, call_id: str | None) -> BadRequest:
    field = f"messages[{index}].tool_call_id"
    if not call_id:
        return _missing(field, "a tool message needs the id of its call")
    return BadRequest(
        f"{field}: no earlier assistant message calls {call_id!r}", param=field, code="orphan_tool_result"
    )


def _invalid(field: str, problem: str) -> BadRequest:
    return BadRequest(f"{field}: {problem}", param=field, code="invalid_value")


def _missing(field: str, problem: str = "this field is required") -> BadRequest:
    return BadRequest(f"{field}: {problem}", param=field, code="missing_field")
