"""The shape of a messages request, read once: types, roles, required fields, tool results with their calls.

One wide Struct stands for every kind of block: an unknown `type` passes, a known field of the wrong type
does not. Fields whose shape depends on the type are kept raw and read when the type is known.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import Inbound
from routecodex.protocols.messages.names import NAME
from routecodex.wire import json
from routecodex.wire.json import ABSENT, begins, present

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


class Block(Struct):
    """A content block of any type; its texts, most of a large body, stay as the bytes they are."""

    type: str
    text: Raw = ABSENT
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT
    tool_use_id: str | None = None
    content: Raw = ABSENT
    is_error: bool | None = None
    source: Raw = ABSENT
    thinking: Raw = ABSENT
    signature: str | None = None
    data: str | None = None
    cache_control: dict[str, Any] | None = None


class Source(Struct):
    """Where an image or a document comes from."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class Turn(Struct):
    role: str
    content: str | list[Block]


class OfferedTool(Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Raw = ABSENT
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class Choice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    type: str
    budget_tokens: Count | None = None
    display: str | None = None


class OutputFormat(Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct):
    effort: str | None = None
    format: OutputFormat | None = None


class Body(Struct):
    """A request for token counts; a request for an answer has `max_tokens` too."""

    messages: list[Turn]
    model: str = ""
    max_tokens: Count | None = None
    system: str | list[Block] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Choice | None = None
    metadata: dict[str, Any] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Amount | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Count | None = None
    service_tier: str | None = None


class CountBody(Body):
    """A request for token counts."""


class AnswerBody(Body, kw_only=True):
    """A request for an answer."""

    max_tokens: Count = field()


ROLES = ("user", "assistant", "system")
CHOICES = ("auto", "any", "tool", "none")

_REQUIRED: dict[str, tuple[str, ...]] = {
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
}
_SOURCED = frozenset({"image", "document"})
_SOURCES: dict[str, tuple[str, ...]] = {
    "base64": ("media_type", "data"),
    "text": ("data",),
    "url": ("url",),
    "file": ("file_id",),
}

_QUOTE = ord('"')

_blocks: Decoder[list[Block]] = Decoder(list[Block])
_answer: Decoder[AnswerBody] = Decoder(AnswerBody)
_count: Decoder[CountBody] = Decoder(CountBody)
_source: Decoder[Source] = Decoder(Source)
_result: Decoder[str | list[Block] | None] = Decoder(str | list[Block] | None)


def read(body: bytes, *, model: str | None = None, stream: bool | None = None) -> Inbound:
    """A request for an answer; BadRequest names the field that is wrong."""
    return _inbound(body, json.read(body, _answer), model=model, stream=stream)


def read_count(body: bytes) -> Inbound:
    """A request for token counts: like one for an answer, without `max_tokens`."""
    return _inbound(body, json.read(body, _count), model=None, stream=False)


def _inbound(body: bytes, wire: Body, *, model: str | None, stream: bool | None) -> Inbound:
    json.check_text(body)
    named = model or wire.model
    if not named:
        raise BadRequest("model: this field is required", param="model", code="missing_field")
    _check_name(named, at="model")
    _check_settings(wire)
    _check_messages(wire.messages)
    return Inbound(NAME, body, wire, named, bool(wire.stream) if stream is None else stream)


def _bad(at: str, what: str) -> BadRequest:
    return BadRequest(f"{at}: {what}", param=at, code="invalid_value")


def _missing(at: str) -> BadRequest:
    return BadRequest(f"{at}: this field is required", param=at, code="missing_field")


def _check_name(name: str, *, at: str) -> None:
    if not name.strip():
        raise _bad(at, "must not be empty")
    if "\x00" in name:
        raise _bad(at, "must not hold a NUL character")


def _check_settings(wire: Body) -> None:
    if isinstance(wire.system, list):
        for number, block in enumerate(wire.system):
            if not _is_text(block):
                _check_block(block, at=f"system[{number}]")
    for number, tool in enumerate(wire.tools or ()):
        if tool.type in (None, "custom") and tool.name is None:
            raise _missing(f"tools[{number}].name")
        if tool.name is not None:
            _check_name(tool.name, at=f"tools[{number}].name")
        if present(tool.input_schema) and not begins(tool.input_schema, b"{"):
            raise _bad(f"tools[{number}].input_schema", "expected an object")
    choice = wire.tool_choice
    if choice is not None and choice.type not in CHOICES:
        raise _bad("tool_choice.type", f"must be one of {', '.join(CHOICES)}; got {choice.type!r}")
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


def _check_messages(messages: list[Turn]) -> None:
    if not messages:
        raise _bad("messages", "at least one message is required")
    called: set[str] = set()
    for number, turn in enumerate(messages):
        if turn.role not in ROLES:
            at = f"messages[{number}].role"
            raise _bad(at, f"must be one of {', '.join(ROLES)}; got {turn.role!r}")
        if isinstance(turn.content, str):
            continue
        calls = _check_content(turn.content, called, at=f"messages[{number}].content")
        if turn.role == "assistant":
            called |= calls


def _check_content(blocks: list[Block], called: set[str], *, at: str) -> set[str]:
    """The ids of the calls among the blocks; each result must answer a call of an earlier message."""
    calls: set[str] = set()
    for number, block in enumerate(blocks):
        kind = block.type
        if kind == "text":
            if _is_text(block):
                continue
        elif kind == "tool_result" and block.tool_use_id in called and _is_plain(block.content):
            continue
        where = f"{at}[{number}]"
        _check_block(block, at=where)
        if block.type == "tool_use":
            assert block.id is not None
            if block.id in calls:
                raise _bad(f"{where}.id", f"two calls of one message have the id {block.id!r}")
            calls.add(block.id)
        elif block.type == "tool_result" and block.tool_use_id not in called:
            raise _bad(
                f"{where}.tool_use_id", f"no earlier assistant message has a call {block.tool_use_id!r}"
            )
    return calls


def _is_text(block: Block) -> bool:
    """Whether it is a text block with nothing odd in it: nearly all are, and need no closer look."""
    if block.type != "text" or block.thinking is not ABSENT:
        return False
    text = memoryview(block.text)
    return len(text) > 1 and text[0] == _QUOTE


def _is_plain(content: Raw) -> bool:
    """Whether a result is absent, a string, or a list of text blocks."""
    view = memoryview(content)
    if not len(view) or view[0] == _QUOTE:
        return True
    blocks = json.try_read(content, _blocks)
    return blocks is not None and all(map(_is_text, blocks))


def _check_block(block: Block, *, at: str) -> None:
    for name, text in (("text", block.text), ("thinking", block.thinking)):
        if present(text) and not begins(text, b'"'):
            raise BadRequest(f"{at}.{name}: expected 'str'", param=f"{at}.{name}", code="invalid_type")
        if block.type == name and not present(text):
            raise _missing(f"{at}.{name}")
    for name in _REQUIRED.get(block.type, ()):
        if getattr(block, name) is None:
            raise _missing(f"{at}.{name}")
    if block.type == "tool_use":
        _check_call(block, at=at)
    elif block.type == "tool_result":
        _check_result(block, at=at)
    elif block.type in _SOURCED:
        _check_source(block.source, at=f"{at}.source")


def _check_call(block: Block, *, at: str) -> None:
    assert block.name is not None
    _check_name(block.name, at=f"{at}.name")
    if not block.id:
        raise _bad(f"{at}.id", "must not be empty")
    if not present(block.input):
        raise _missing(f"{at}.input")
    if not begins(block.input, b"{"):
        raise _bad(f"{at}.input", "expected an object")


def _check_result(block: Block, *, at: str) -> None:
    if not block.tool_use_id:
        raise _bad(f"{at}.tool_use_id", "must not be empty")
    if not present(block.content) or begins(block.content, b'"'):
        return
    content = _read_raw(block.content, _result, at=f"{at}.content")
    if isinstance(content, list):
        for number, inner in enumerate(content):
            _check_block(inner, at=f"{at}.content[{number}]")


def _check_source(raw: Raw, *, at: str) -> None:
    if not present(raw):
        raise _missing(at)
    source = _read_raw(raw, _source, at=at)
    for name in _SOURCES.get(source.type, ()):
        if getattr(source, name) is None:
            raise _missing(f"{at}.{name}")


def _read_raw(raw: Raw, decoder: Decoder[Any], *, at: str) -> Any:
    try:
        return json.read(bytes(raw), decoder)
    except BadRequest as error:
        path = error.param or ""
        joined = f"{at}{path}" if path.startswith("[") or not path else f"{at}.{path}"
        what = error.message.rpartition(": ")[2]
        raise BadRequest(f"{joined}: {what}", param=joined, code=error.code) from error
