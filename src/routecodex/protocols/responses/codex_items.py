"""Tools and items that Codex sends and few Responses providers know (Codex 0.169).

`native` providers get them as they came, all others without the internals, and `plain` ones as functions,
their calls and results, and messages. `ToolNames` and the stream encoder turn the calls back.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Opaque, Part, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.message_features import is_hosted_search
from routecodex.protocols.responses.content import DECLARATION, ITEM
from routecodex.protocols.tool_mapping import (
    CUSTOM_PARAMETERS,
    description_of,
    distinct_names,
    flat_call,
    flat_name,
    wrap_input,
)
from routecodex.wire import json

METADATA = "client_metadata"
ITEM_INTERNALS = frozenset({"internal_chat_message_metadata_passthrough", "encrypted_function_args"})
"""Fields of items for OpenAI's own servers; Codex adds them for a provider that is named `OpenAI`."""

_INTERNAL_MARKS = tuple(b'"%b"' % name.encode() for name in (METADATA, *sorted(ITEM_INTERNALS)))
_MARKS = (
    b'"additional_tools"',
    b'"agent_message"',
    b'"custom"',
    b'"custom_tool_call"',
    b'"namespace"',
    b'"tool_search"',
    b'"tool_search_call"',
)
_items = Decoder(list[dict[str, Raw]])


def holds_codex_items(body: bytes) -> bool:
    """Whether a request may hold one of Codex's tools or items; quotes in a text are escaped."""
    return any(body.find(mark) >= 0 for mark in _MARKS)


def holds_internals(body: bytes) -> bool:
    """Whether a request may hold one of Codex's internals."""
    return any(body.find(mark) >= 0 for mark in _INTERNAL_MARKS)


def drop_internals(fields: dict[str, Raw]) -> bool:
    """Remove the internals from the fields of a body; return whether there were any."""
    found = fields.pop(METADATA, None) is not None
    value = fields.get("input")
    if value is None or not any(bytes(value).find(mark) >= 0 for mark in _INTERNAL_MARKS):
        return found
    items = json.try_read(value, _items)
    if items is None or not any(item.keys() & ITEM_INTERNALS for item in items):
        return found
    fields["input"] = Raw(json.encode([_without_internals(item) for item in items]))
    return True


def without_internals(items: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return items without their internals."""
    return [_without_internals(item) if item.keys() & ITEM_INTERNALS else item for item in items]


def _without_internals(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ITEM_INTERNALS}


def plain_request(request: Request, options: EncodeOptions, notices: Notices) -> Request:
    """Return a request with function tools only, as a provider takes it that knows no others."""
    request = distinct_names(request)
    tools = [_plain_tool(tool) for tool in request.tools if _is_function(tool, options, notices)]
    messages = [_plain_message(message) for message in request.messages]
    return replace(
        request,
        tool_choice=_plain_choice(request),
        system=tuple(text for text in request.system if not _declares(text)),
        tools=tuple(tools),
        messages=tuple(message for message in messages if message.parts),
    )


def _plain_choice(request: Request) -> ToolChoice | None:
    choice = request.tool_choice
    if choice is None or not choice.names:
        return choice
    names = {tool.name: flat_name(tool) for tool in reversed(request.tools) if tool.kind != "hosted"}
    return replace(choice, names=tuple(names.get(name, name) for name in choice.names))


def _is_function(tool: Tool, options: EncodeOptions, notices: Notices) -> bool:
    """Whether the client runs the tool; a web search stays if the provider is known to have one."""
    if tool.kind != "hosted" or (options.dialect.web_search and is_hosted_search(tool.name)):
        return True
    notices.dropped(f"tool {tool.name[:40]!a}", "this provider takes functions only")
    return False


def _plain_tool(tool: Tool) -> Tool:
    if tool.kind == "hosted":
        return tool
    extras = {name: value for name, value in (tool.extras or {}).items() if name not in (ITEM, DECLARATION)}
    plain = replace(
        tool, name=flat_name(tool), namespace=None, namespace_description=None, extras=extras or None
    )
    if tool.kind != "custom":
        return plain
    return replace(
        plain, kind="function", description=description_of(tool), parameters=CUSTOM_PARAMETERS, format=None
    )


def _declares(text: Text) -> bool:
    return DECLARATION in ((text.extras or {}).get(ITEM) or {})


def _plain_message(message: Message) -> Message:
    parts = [_plain_part(part) for part in message.parts if not _is_declaration(part)]
    return replace(message, parts=tuple(parts))


def _is_declaration(part: Part) -> bool:
    value = part.value if isinstance(part, Opaque) else None
    return isinstance(value, dict) and value.get("type") == "additional_tools"


def _plain_part(part: Part) -> Part:
    match part:
        case ToolCall():
            arguments = wrap_input(part.arguments) if part.custom else part.arguments
            return replace(
                part,
                name=flat_call(part),
                namespace=None,
                arguments=arguments,
                custom=False,
                extras=_plain_extras(part.extras, custom=part.custom),
            )
        case ToolResult():
            return replace(part, custom=False, extras=_plain_extras(part.extras, custom=part.custom))
        case Text() if _is_agent_message(part):
            return replace(part, extras=_plain_extras(part.extras, custom=False))
        case _:
            return part


def _is_agent_message(text: Text) -> bool:
    item = (text.extras or {}).get(ITEM)
    return isinstance(item, dict) and item.get("type") == "agent_message"


def _plain_extras(extras: dict[str, Json] | None, *, custom: bool) -> dict[str, Json] | None:
    """Return the fields of an item that stay; OpenAI checks that the id of an item fits its type."""
    gone = (ITEM, "id") if custom else (ITEM,)
    return {name: value for name, value in (extras or {}).items() if name not in gone} or None
