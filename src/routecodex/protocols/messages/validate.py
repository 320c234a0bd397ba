"""Validates a messages request; an error names the first invalid field.

A large request is validated without its long texts.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import RequestOpenings, TextStart
from routecodex.protocols import large_body
from routecodex.protocols.codec import OpeningHeads, WireRequest
from routecodex.protocols.message_features import TEXT_START, opening_starts
from routecodex.protocols.messages.content import NAME
from routecodex.protocols.messages.schema import (
    AnswerBody,
    CountRequestBody,
    RequestBody,
    WireMediaSource,
    WireMessage,
    WirePart,
)
from routecodex.wire import json, scan
from routecodex.wire.json import ABSENT, is_present, starts_with

ROLES: Final = ("user", "assistant", "system")
"""Claude Code sends `system` inside `messages` to models it does not know."""

CHOICES: Final = ("auto", "any", "tool", "none")

_REQUIRED_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
}
_HAVE_SOURCE: Final = frozenset({"image", "document"})
_SOURCE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "base64": ("media_type", "data"),
    "text": ("data",),
    "url": ("url",),
    "file": ("file_id",),
}

_first_byte: Final = scan.first_byte
_STRING: Final = 0x22

_OBJECT: Final = 0x7B
"""First bytes of a JSON string and of an object: long texts are recognised without decoding them."""

_SCANS: Final = scan.IN_C
"""Whether to scan for a result of one text before decoding it: faster in C only, with the same outcome."""
_ONE_TEXT: Final = (b'[{"type":"text","text":"', b'[{"type": "text", "text": "')

_ONE_TEXT_END: Final = b'"}]'
"""Bytes around the text of a result that is a list of one text block, as most lists are."""

_LONG_TEXTS: Final = ((b"content", 3), (b"text", 3), (b"text", 5), (b"content", 5), (b"text", 7))
"""Keys and depths of long texts: in messages, system texts, blocks, results, and the blocks of results."""

_blocks: Final[Decoder[list[WirePart]]] = Decoder(list[WirePart])
_answer: Final[Decoder[AnswerBody]] = Decoder(AnswerBody)
_count: Final[Decoder[CountRequestBody]] = Decoder(CountRequestBody)
_source: Final[Decoder[WireMediaSource]] = Decoder(WireMediaSource)
_result: Final[Decoder[str | list[WirePart] | None]] = Decoder(str | list[WirePart] | None)


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """Validate a request for an answer; BadRequest names the invalid field."""
    return _read(body, _answer, model=model, stream=stream)


def validate_count(body: bytes) -> WireRequest:
    """Validate a request for a token count, which needs no `max_tokens`."""
    return _read(body, _count, model=None, stream=False)


def openings(request: WireRequest, heads: OpeningHeads) -> RequestOpenings:
    """Return the texts that may show the role of a request; called for every request."""
    wire: RequestBody = request.view
    messages, original = wire.messages, request.original
    system = _opening_starts(wire.system or "", original, heads)
    if messages and messages[0].role == "system":
        # Claude Code sends system texts as messages to models that it does not know.
        system += _opening_starts(messages[0].content, original, heads)
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message.role == "user":
            return system, _opening_starts(message.content, original, heads)
    return system, ()


def _opening_starts(
    content: str | list[WirePart], original: bytes, heads: OpeningHeads
) -> tuple[TextStart, ...]:
    if isinstance(content, str):
        return opening_starts((large_body.restore_text(content, original),), heads) if content else ()
    starts: tuple[TextStart, ...] = ()
    for block in content:
        if block.type != "text":
            continue
        if original:
            starts += opening_starts((large_body.restore_text(block.text, original),), heads)
            continue
        start = bytes(memoryview(block.text)[:TEXT_START])
        if heads.admit_raw(start):
            starts += (start,)
    return starts


def _read(body: bytes, decoder: Decoder[Any], *, model: str | None, stream: bool | None) -> WireRequest:
    outline, may_be_tagged = large_body.elide_texts(body, _LONG_TEXTS)
    wire = _read_outline(outline, decoder, model) if outline else None
    if wire is None:
        outline = b""
        wire = _read_whole(body, decoder, model)
    return WireRequest(
        protocol=NAME,
        body=body,
        view=wire,
        model=model or wire.model,
        stream=bool(wire.stream) if stream is None else stream,
        original=body if outline else b"",
        outline=outline,
        lacks_tags=not may_be_tagged,
    )


def _read_whole(body: bytes, decoder: Decoder[Any], model: str | None) -> RequestBody:
    wire: RequestBody = json.read(body, decoder)
    json.check_utf8(body)
    _check(wire, model)
    return wire


def _read_outline(outline: bytes, decoder: Decoder[Any], model: str | None) -> RequestBody | None:
    """Validate the body without its long texts; None if invalid: the whole body then names the field."""
    wire: RequestBody | None = json.try_read(outline, decoder)
    if wire is None:
        return None
    try:
        _check(wire, model)
    except BadRequest:
        return None
    return wire


def _check(wire: RequestBody, model: str | None) -> None:
    named = model or wire.model
    if not named:
        raise BadRequest("model: this field is required", param="model", code="missing_field")
    _check_name(named, at="model")
    _check_settings(wire)
    _check_messages(wire.messages)


def _check_name(name: str, *, at: str) -> None:
    if not name.strip():
        raise _invalid(at, "must not be empty")
    if "\x00" in name:
        raise _invalid(at, "must not contain a NUL character")


def _check_settings(wire: RequestBody) -> None:
    if isinstance(wire.system, list):
        for number, block in enumerate(wire.system):
            if not _is_text(block):
                _check_block(block, at=f"system[{number}]")
    for number, tool in enumerate(wire.tools or ()):
        if tool.type in (None, "custom") and tool.name is None:
            raise _missing(f"tools[{number}].name")
        if tool.name is not None:
            _check_name(tool.name, at=f"tools[{number}].name")
    choice = wire.tool_choice
    if choice is not None and choice.type not in CHOICES:
        raise _invalid("tool_choice.type", f"must be one of {', '.join(CHOICES)}; got {choice.type!r}")
    if choice is not None and choice.type == "tool" and not choice.name:
        raise _missing("tool_choice.name")
    user = (wire.metadata or {}).get("user_id")
    if user is not None and not isinstance(user, str):
        raise BadRequest(
            "metadata.user_id: expected 'str | null'", param="metadata.user_id", code="invalid_type"
        )
    thinking = wire.thinking
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is None:
        raise _missing("thinking.budget_tokens")


def _check_messages(messages: list[WireMessage]) -> None:
    """Check every message in one pass; error texts are built only on failure."""
    if not messages:
        raise _invalid("messages", "at least one message is required")
    called: set[str | None] = set()
    for number, message in enumerate(messages):
        role, content = message.role, message.content
        if role not in ROLES:
            at = f"messages[{number}].role"
            raise _invalid(at, f"must be one of {', '.join(ROLES)}; got {role!r}")
        if not isinstance(content, str):
            calls = _check_content(content, called, number)
            if calls and role == "assistant":
                called |= calls


def _check_content(blocks: list[WirePart], called: set[str | None], message: int) -> set[str | None]:
    """Check the blocks and return the ids of their calls; each result needs a call in an earlier message."""
    calls: set[str | None] = set()
    for number, block in enumerate(blocks):
        kind = block.type
        if kind == "text":
            if _is_text(block):
                continue
        elif kind == "tool_result":
            if block.tool_use_id in called and block.tool_use_id and _is_plain(block.content):
                continue
        elif kind == "tool_use" and _is_call(block) and block.id not in calls:
            calls.add(block.id)
            continue
        _check_unusual_block(block, f"messages[{message}].content[{number}]", called=called, calls=calls)
    return calls


def _check_unusual_block(
    block: WirePart, where: str, *, called: set[str | None], calls: set[str | None]
) -> None:
    """Check a block in full that the fast checks did not accept; it may still be valid."""
    _check_block(block, at=where)
    if block.type == "tool_use":
        if block.id in calls:
            raise _invalid(f"{where}.id", f"two calls of one message have the id {block.id!r}")
        calls.add(block.id)
    elif block.type == "tool_result" and block.tool_use_id not in called:
        raise _invalid(
            f"{where}.tool_use_id", f"no earlier assistant message has a call {block.tool_use_id!r}"
        )


def _is_call(block: WirePart) -> bool:
    """Whether the block is an ordinary call."""
    name, input = block.name, block.input
    if not name or not block.id or name.isspace() or "\x00" in name or input is ABSENT:
        return False
    return block.text is ABSENT and block.thinking is ABSENT and _first_byte(input) == _OBJECT


def _is_text(block: WirePart) -> bool:
    """Whether the block is an ordinary text, as nearly all are."""
    if block.type != "text" or block.thinking is not ABSENT:
        return False
    text = block.text
    return text is not ABSENT and _first_byte(text) == _STRING


def _is_plain(content: Raw) -> bool:
    """Whether a result is absent, a string, or a list of text blocks."""
    if content is ABSENT or _first_byte(content) == _STRING:
        return True
    if _SCANS and _is_one_text(bytes(content)):
        return True
    blocks = json.try_read(content, _blocks)
    return blocks is not None and all(map(_is_text, blocks))


def _is_one_text(content: bytes) -> bool:
    """Whether a value is a list of one text block in the spelling of JSON.stringify or json.dumps."""
    for begin in _ONE_TEXT:
        if content.startswith(begin):
            end = scan.string_end(content, len(begin))
            return end >= 0 and content[end:] == _ONE_TEXT_END
    return False


def _check_block(block: WirePart, *, at: str) -> None:
    for name, text in (("text", block.text), ("thinking", block.thinking)):
        if is_present(text) and not starts_with(text, b'"'):
            raise BadRequest(f"{at}.{name}: expected 'str'", param=f"{at}.{name}", code="invalid_type")
        if block.type == name and not is_present(text):
            raise _missing(f"{at}.{name}")
    for name in _REQUIRED_FIELDS.get(block.type, ()):
        if getattr(block, name) is None:
            raise _missing(f"{at}.{name}")
    if block.type == "tool_use":
        _check_call(block, at=at)
    elif block.type == "tool_result":
        _check_result(block, at=at)
    elif block.type in _HAVE_SOURCE:
        _check_source(block.source, at=f"{at}.source")
        if block.type == "document" and is_present(block.title) and not starts_with(block.title, b'"'):
            raise BadRequest(f"{at}.title: expected 'str'", param=f"{at}.title", code="invalid_type")


def _check_call(block: WirePart, *, at: str) -> None:
    assert block.name is not None
    _check_name(block.name, at=f"{at}.name")
    if not block.id:
        raise _invalid(f"{at}.id", "must not be empty")
    if not is_present(block.input):
        raise _missing(f"{at}.input")
    if not starts_with(block.input, b"{"):
        raise _invalid(f"{at}.input", "expected an object")


def _check_result(block: WirePart, *, at: str) -> None:
    if not block.tool_use_id:
        raise _invalid(f"{at}.tool_use_id", "must not be empty")
    if not is_present(block.content) or starts_with(block.content, b'"'):
        return
    content = _read_raw(block.content, _result, at=f"{at}.content")
    if isinstance(content, list):
        for number, inner in enumerate(content):
            _check_block(inner, at=f"{at}.content[{number}]")


def _check_source(raw: Raw, *, at: str) -> None:
    if not is_present(raw):
        raise _missing(at)
    source = _read_raw(raw, _source, at=at)
    for name in _SOURCE_FIELDS.get(source.type, ()):
        if getattr(source, name) is None:
            raise _missing(f"{at}.{name}")


def _read_raw(raw: Raw, decoder: Decoder[Any], *, at: str) -> Any:
    try:
        return json.read(bytes(raw), decoder)
    except BadRequest as error:
        path = error.param or ""
        joined = f"{at}{path}" if path.startswith("[") or not path else f"{at}.{path}"
        problem = error.message.rpartition(": ")[2]
        raise BadRequest(f"{joined}: {problem}", param=joined, code=error.code) from error


def _invalid(at: str, problem: str) -> BadRequest:
    return BadRequest(f"{at}: {problem}", param=at, code="invalid_value")


def _missing(at: str) -> BadRequest:
    return BadRequest(f"{at}: this field is required", param=at, code="missing_field")
