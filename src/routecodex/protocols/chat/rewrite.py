"""A chat request fitted to an upstream that does not take all of chat: what need not change stays as it came.

Which settings go in which words is decided where requests of other protocols are written (outgoing.py): the
settings in question are taken out, put through canon, and what comes of them is put in their place.

A chat request bound for a chat upstream: the bytes it came as, but for what must change.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.protocols.chat.decode_request import decode_request
from routecodex.protocols.chat.encode_request import encode_request
from routecodex.protocols.chat.schema import RequestBody
from routecodex.protocols.chat.validate import RequestView
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.large_body import replace_model
from routecodex.wire import json, scan

Fields = dict[str, Raw]

_objects: Final = Decoder(list[Fields])
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_SYSTEM_ROLES: Final = ("system", "developer")


def _fit_dialect(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The request as this upstream takes it; unknown fields stay."""
    dialect, fields = aim.dialect, json.read_fields(inbound.body)
    notices = Notices()
    _rename_limit(fields, dialect)
    if not dialect.stream_usage:
        # The relay counts for an upstream that cannot be asked to.
        fields.pop("stream_options", None)
    lines, wish = _convert_settings(fields, inbound.wire, aim)
    if not dialect.strict_tools and scan.contains(inbound.body, b'"strict"'):
        _remove_strict(fields)
    if wish or dialect.merge_system or scan.contains(inbound.body, b'"developer"'):
        _convert_messages(fields, dialect, wish)
    for field in dialect.unsupported:
        if fields.pop(field, None) is not None:
            notices.dropped(field, "this upstream refuses it")
    fields["model"] = Raw(json.encode(aim.model))
    return EncodedRequest(json.encode(fields), (*lines, *notices.lines()))


def _rename_limit(fields: Fields, dialect: Dialect) -> None:
    """Limits the answer by the one field that this upstream knows; of two, the newer counts."""
    name = dialect.max_tokens_field
    given = [fields[limit] for limit in _LIMITS if json.is_present(fields.get(limit, json.ABSENT))]
    if name is not None and given:
        fields[name] = given[-1]
        fields.pop(next(limit for limit in _LIMITS if limit != name), None)


def _convert_settings(fields: Fields, view: RequestView, aim: EncodeOptions) -> tuple[tuple[str, ...], str]:
    """Says settings anew that the upstream takes in other words; notices, and what to ask for in the text."""
    asked = {name: fields.pop(name) for name in _deviating_fields(aim.dialect) if name in fields}
    if not asked:
        return (), ""
    # Only which tools there are matters to the choice of one.
    tools = [{"type": tool.type, tool.type: _tool_name(tool)} for tool in view.tools()]
    alone = json.encode({**asked, "model": aim.model, "messages": [], "tools": tools})
    request = decode_request(WireRequest("chat", alone, wire=None, model=aim.model, stream=False))
    encoded = encode_request(request, aim)
    said = json.read_fields(encoded.body)
    wishes = json.decode_raw(said["messages"])
    for name in said.keys() - {"model", "messages", "tools"}:
        # What the client says in the upstream's own words goes first.
        fields.setdefault(name, said[name])
    return encoded.notices, wishes[0]["content"] if wishes else ""


def _deviating_fields(dialect: Dialect) -> list[str]:
    """The settings that this upstream does not take as chat has them."""
    deviates = {
        "tool_choice": dialect.tool_choice != "full",
        "parallel_tool_calls": not dialect.parallel_tool_calls,
        "response_format": dialect.response_format != "json_schema",
        "reasoning_effort": dialect.reasoning_field != "reasoning_effort",
    }
    return [name for name, does in deviates.items() if does]


def _tool_name(tool: Any) -> dict[str, str]:
    described = tool.function if tool.type == "function" else tool.custom
    return {"name": described.name} if described is not None else {}


def _remove_strict(fields: Fields) -> None:
    """Takes `strict` from the functions."""
    tools = json.try_read(fields.get("tools", json.ABSENT), _objects) or []
    loosened = False
    for tool in tools:
        function = tool.get("function", json.ABSENT)
        if json.starts_with(function, b"{") and "strict" in (told := json.read_fields(bytes(function))):
            del told["strict"]
            tool["function"] = Raw(json.encode(told))
            loosened = True
    if loosened:
        fields["tools"] = Raw(json.encode(tools))


def _convert_messages(fields: Fields, dialect: Dialect, wish: str) -> None:
    """Puts the system text as this upstream takes it, with the wish in it."""
    messages = _objects.decode(fields["messages"])
    roles = [json.decode_raw(message["role"]) for message in messages]
    if dialect.system_role == "system":
        for message, role in zip(messages, roles, strict=True):
            if role == "developer":
                message["role"] = Raw(b'"system"')
    leading = next((at for at, role in enumerate(roles) if role not in _SYSTEM_ROLES), len(roles))
    if dialect.merge_system and leading > 1 and (text := _joined_text(messages[:leading])) is not None:
        messages[:leading] = [{**messages[0], "content": Raw(json.encode(text))}]
    if wish:
        _add_instruction(messages, wish, role=dialect.system_role, leads=leading > 0)
    fields["messages"] = Raw(json.encode(messages))


def _joined_text(messages: list[Fields]) -> str | None:
    """The text of these messages as one; None when one of them is more than text."""
    texts: list[str] = []
    for message in messages:
        content = json.decode_raw(message.get("content", json.ABSENT))
        for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            if part.get("type") != "text":
                return None
            texts.append(part["text"])
    return "\n\n".join(filter(None, texts))


def _add_instruction(messages: list[Fields], wish: str, *, role: str, leads: bool) -> None:
    """Adds the wish to the first message if that is the system's, else puts it in front."""
    if not leads:
        messages.insert(0, {"role": Raw(json.encode(role)), "content": Raw(json.encode(wish))})
        return
    content = json.decode_raw(messages[0].get("content", json.ABSENT))
    if isinstance(content, list):
        content.append({"type": "text", "text": wish})
    else:
        content = f"{content}\n\n{wish}" if content else wish
    messages[0]["content"] = Raw(json.encode(content))


_PLAIN: Final = Dialect()
_DEVELOPER: Final = b'"developer"'
_SYSTEM: Final = b'"system"'
_STRICT: Final = b'"strict"'


def rewrite(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The request for this upstream; untouched fields stay byte for byte."""
    view: RequestView = inbound.wire
    dialect, wire = aim.dialect, view.fields
    if wire.n is not None and wire.n > 1 and not dialect.n:
        raise BadRequest("n: this upstream gives one answer at a time", param="n", code="unsupported_value")
    outline = inbound.keys() if inbound.outline else b""
    # An upstream of which nothing is known is sent what the client wrote.
    if dialect != _PLAIN and (
        _settings_deviate(wire, dialect) or _messages_deviate(outline or inbound.body, dialect)
    ):
        return _fit_dialect(inbound, aim)
    return EncodedRequest(replace_model(inbound.body, aim.model, named=wire.model, outline=outline))


def _settings_deviate(wire: RequestBody, dialect: Dialect) -> bool:
    """Whether a setting may have to go, or to be said in other words."""
    limit = dialect.max_tokens_field
    return bool(
        dialect.unsupported
        or (limit == "max_tokens" and wire.max_completion_tokens is not None)
        or (limit == "max_completion_tokens" and wire.max_tokens is not None)
        or (wire.stream_options is not None and not dialect.stream_usage)
        or (wire.tool_choice is not None and dialect.tool_choice != "full")
        or (wire.parallel_tool_calls is not None and not dialect.parallel_tool_calls)
        or (wire.response_format is not None and dialect.response_format != "json_schema")
        or (wire.reasoning_effort is not None and dialect.reasoning_field != "reasoning_effort")
    )


def _messages_deviate(body: bytes, dialect: Dialect) -> bool:
    """Whether messages or tools may have to change; words that stand elsewhere cost only time."""
    return bool(
        (dialect.system_role == "system" and scan.contains(body, _DEVELOPER))
        or (dialect.merge_system and body.count(_SYSTEM) > 1)
        or (not dialect.strict_tools and scan.contains(body, _STRICT))
    )
