"""Rewrites a chat request for a chat upstream; bytes that need not change stay.

Only the model name is replaced, unless the upstream's dialect excludes something that the request uses. Such
settings are decoded and encoded again (`encode_request`), so that every dialect rule exists once.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.protocols.chat.decode_request import decode_request
from routecodex.protocols.chat.encode_messages import TEXT_SEPARATOR, joined_text, system_as_user_text
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
_PLAIN: Final = Dialect()
_DEVELOPER: Final = b'"developer"'
_SYSTEM: Final = b'"system"'
_USER: Final = b'"user"'
_STRICT: Final = b'"strict"'
_USAGE_OPTION: Final = b',"stream_options":{"include_usage":true}}'


def rewrite(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Rewrite the request for this upstream; unchanged fields stay byte for byte."""
    view: RequestView = request.view
    dialect, wire = options.dialect, view.fields
    if wire.n is not None and wire.n > 1 and not dialect.n:
        raise BadRequest(
            "n: this upstream returns one answer per request; send n = 1", param="n", code="unsupported_value"
        )
    outline = request.current_outline() if request.outline else b""
    # An upstream without a dialect gets the request as the client wrote it.
    if dialect != _PLAIN and (
        _settings_deviate(wire, dialect) or _messages_deviate(view, outline or request.body, dialect)
    ):
        return _fit_dialect(request, options)
    body = replace_model(request.body, options.model, named=wire.model, outline=outline)
    if request.stream and not request.include_usage and dialect.stream_usage:
        # The relay keeps the usage from a client that did not ask for it.
        body = _with_usage(body) if wire.stream_options is None else _fields_with_usage(body)
    return EncodedRequest(body)


def _with_usage(body: bytes) -> bytes:
    """Return the body with `stream_options` as its last field: parsers take the last of two alike."""
    return b"".join((memoryview(body)[: body.rindex(b"}")], _USAGE_OPTION))


def _fields_with_usage(body: bytes) -> bytes:
    """Return the body with usage added to the client's own `stream_options`."""
    fields = json.read_fields(body)
    _ask_for_usage(fields)
    return json.encode(fields)


def _ask_for_usage(fields: Fields) -> None:
    chosen = json.decode_raw(fields.get("stream_options", json.ABSENT))
    kept = chosen if isinstance(chosen, dict) else {}
    fields["stream_options"] = Raw(json.encode({**kept, "include_usage": True}))


def _settings_deviate(wire: RequestBody, dialect: Dialect) -> bool:
    """Whether a setting may have to be dropped or converted."""
    limit = dialect.max_tokens_field
    return bool(
        dialect.unsupported
        or (limit == "max_tokens" and wire.max_completion_tokens is not None)
        or (limit == "max_completion_tokens" and wire.max_tokens is not None)
        or (wire.stream_options is not None and not dialect.stream_usage)
        or (wire.tool_choice is not None and dialect.tool_choice != "full")
        or (wire.parallel_tool_calls is not None and not dialect.parallel_tool_calls)
        or (wire.response_format is not None and dialect.response_format != "json_schema")
        or (wire.reasoning_effort is not None and _is_effort_foreign(dialect))
    )


def _is_effort_foreign(dialect: Dialect) -> bool:
    return dialect.reasoning_field != "reasoning_effort" or bool(dialect.reasoning_models)


def _messages_deviate(view: RequestView, body: bytes, dialect: Dialect) -> bool:
    """Whether messages or tools may have to change; a false positive costs only time."""
    return bool(
        (dialect.system_role == "system" and scan.contains(body, _DEVELOPER))
        or (dialect.merge_system and _has_later_system(view, body))
        or (not dialect.strict_tools and scan.contains(body, _STRICT))
    )


def _has_later_system(view: RequestView, body: bytes) -> bool:
    """Whether a system message may stand behind another message."""
    count = body.count(_SYSTEM) + body.count(_DEVELOPER)
    return count > 1 or (count > 0 and view.messages()[0].role not in _SYSTEM_ROLES)


def _fit_dialect(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Rewrite the request in the upstream's dialect; unknown fields stay."""
    dialect, fields = options.dialect, json.read_fields(request.body)
    notices = Notices()
    _rename_limit(fields, dialect)
    if not dialect.stream_usage:
        # The relay estimates the usage of such an upstream.
        fields.pop("stream_options", None)
    elif request.stream:
        _ask_for_usage(fields)
    lines, instruction = _convert_settings(fields, request.view, options)
    if not dialect.strict_tools and scan.contains(request.body, _STRICT):
        _remove_strict(fields)
    if instruction or dialect.merge_system or scan.contains(request.body, _DEVELOPER):
        _convert_messages(fields, dialect, instruction)
    for field in dialect.unsupported:
        if fields.pop(field, None) is not None:
            notices.dropped(field, "this upstream rejects it")
    fields["model"] = Raw(json.encode(options.model))
    return EncodedRequest(json.encode(fields), (*lines, *notices.lines()))


def _rename_limit(fields: Fields, dialect: Dialect) -> None:
    """Rename the token limit to the field of this upstream; of two, `max_completion_tokens` counts."""
    name = dialect.max_tokens_field
    limits = [fields[limit] for limit in _LIMITS if json.is_present(fields.get(limit, json.ABSENT))]
    if name is not None and limits:
        fields[name] = limits[-1]
        fields.pop(next(limit for limit in _LIMITS if limit != name), None)


def _convert_settings(
    fields: Fields, view: RequestView, options: EncodeOptions
) -> tuple[tuple[str, ...], str]:
    """Convert deviating settings to the dialect; return notices and an instruction for the model."""
    settings = {name: fields.pop(name) for name in _deviating_fields(options.dialect) if name in fields}
    if not settings:
        return (), ""
    # `tool_choice` needs only the names of the tools.
    tools = [{"type": tool.type, tool.type: _tool_name(tool)} for tool in view.tools()]
    body = json.encode({**settings, "model": options.model, "messages": [], "tools": tools})
    request = decode_request(WireRequest("chat", body, view=None, model=options.model, stream=False))
    encoded = encode_request(request, options)
    converted = json.read_fields(encoded.body)
    messages = json.decode_raw(converted["messages"])
    for name in converted.keys() - {"model", "messages", "tools"}:
        # A setting that the client wrote in the upstream's dialect wins.
        fields.setdefault(name, converted[name])
    # In a variable first: mypyc 2.4 frees a Final attribute of a local that a returned tuple still holds.
    notices = encoded.notices
    return notices, messages[0]["content"] if messages else ""


def _deviating_fields(dialect: Dialect) -> list[str]:
    """Return the settings that this upstream does not accept in OpenAI's form."""
    deviates = {
        "tool_choice": dialect.tool_choice != "full",
        "parallel_tool_calls": not dialect.parallel_tool_calls,
        "response_format": dialect.response_format != "json_schema",
        "reasoning_effort": _is_effort_foreign(dialect),
    }
    return [name for name, differs in deviates.items() if differs]


def _tool_name(tool: Any) -> dict[str, str]:
    declared = tool.function if tool.type == "function" else tool.custom
    return {"name": declared.name} if declared is not None else {}


def _remove_strict(fields: Fields) -> None:
    """Remove `strict` from the functions."""
    tools = json.try_read(fields.get("tools", json.ABSENT), _objects) or []
    changed = False
    for tool in tools:
        function = tool.get("function", json.ABSENT)
        if json.starts_with(function, b"{") and "strict" in (declared := json.read_fields(bytes(function))):
            del declared["strict"]
            tool["function"] = Raw(json.encode(declared))
            changed = True
    if changed:
        fields["tools"] = Raw(json.encode(tools))


def _convert_messages(fields: Fields, dialect: Dialect, instruction: str) -> None:
    """Convert the system text for this upstream, and add the instruction to it."""
    messages = _objects.decode(fields["messages"])
    roles = [json.decode_raw(message["role"]) for message in messages]
    if dialect.system_role == "system":
        for message, role in zip(messages, roles, strict=True):
            if role == "developer":
                message["role"] = Raw(_SYSTEM)
    leading = next((at for at, role in enumerate(roles) if role not in _SYSTEM_ROLES), len(roles))
    if dialect.merge_system and leading > 1 and (text := _joined_text(messages[:leading])) is not None:
        messages[:leading] = [{**messages[0], "content": Raw(json.encode(text))}]
        roles[:leading] = roles[:1]
        leading = 1
    if dialect.merge_system:
        _convert_later_system(messages, roles, leading)
    if instruction:
        _add_instruction(messages, instruction, role=dialect.system_role, has_system=leading > 0)
    fields["messages"] = Raw(json.encode(messages))


def _convert_later_system(messages: list[Fields], roles: list[str], leading: int) -> None:
    """Convert the system messages behind other messages to user text."""
    for at in range(leading, len(messages)):
        if roles[at] in _SYSTEM_ROLES and (text := _joined_text(messages[at : at + 1])) is not None:
            messages[at] = {"role": Raw(_USER), "content": Raw(json.encode(system_as_user_text(text)))}


def _joined_text(messages: list[Fields]) -> str | None:
    """Return the texts of these messages as one; None if one of them has other parts."""
    texts: list[str] = []
    for message in messages:
        text = joined_text(json.decode_raw(message.get("content", json.ABSENT)))
        if text is None:
            return None
        texts.append(text)
    return TEXT_SEPARATOR.join(filter(None, texts))


def _add_instruction(messages: list[Fields], text: str, *, role: str, has_system: bool) -> None:
    """Add the text to the first system message, or insert one."""
    if not has_system:
        messages.insert(0, {"role": Raw(json.encode(role)), "content": Raw(json.encode(text))})
        return
    content = json.decode_raw(messages[0].get("content", json.ABSENT))
    if isinstance(content, list):
        content.append({"type": "text", "text": text})
    else:
        content = f"{content}\n\n{text}" if content else text
    messages[0]["content"] = Raw(json.encode(content))
