"""Decodes a client's messages request into the canonical request."""

from __future__ import annotations

from typing import Any, cast, get_args

from msgspec.structs import replace

from routecodex.canon.parts import Json, Part, Text, ToolCall
from routecodex.canon.request import Effort, Message, Output, Request, Role, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.messages.content import NAME, part_of, parts_of
from routecodex.protocols.messages.thinking import carried_signature
from routecodex.wire import json

Fields = dict[str, Any]

_BODY_FIELDS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "metadata",
        "thinking",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "service_tier",
    }
)
_MESSAGE_FIELDS = frozenset({"role", "content"})
_TOOL_FIELDS = frozenset({"name", "description", "input_schema", "strict", "cache_control"})
_MODES: dict[str, Any] = {"auto": "auto", "any": "required", "tool": "tool", "none": "none"}
_TIERS = {"standard_only": "default"}
_EFFORTS = frozenset(get_args(Effort))


def decode_request(request: WireRequest) -> Request:
    """Decode a validated request."""
    # `validate` skips unknown fields, so an invalid value inside one is found only here.
    body = json.read_values(request.body)
    choice = body.get("tool_choice") or {}
    metadata = body.get("metadata") or {}
    serial = choice.get("disable_parallel_tool_use")
    tier = body.get("service_tier")
    return Request(
        model=request.model,
        source=NAME,
        system=_system(body.get("system")),
        messages=tuple([_message(message) for message in body["messages"]]),
        tools=tuple([_tool(tool) for tool in body.get("tools") or ()]),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=None if serial is None else not serial,
        max_tokens=body.get("max_tokens"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        stop=tuple(body.get("stop_sequences") or ()),
        output=_output(body),
        thinking=_thinking(body),
        metadata={name: value for name, value in metadata.items() if name != "user_id"} or None,
        user=metadata.get("user_id"),
        service_tier=_TIERS.get(tier, tier) if tier else None,
        stream=request.stream,
        include_usage=True,
        extras=_extras(body),
    )


def _extras(body: Fields) -> dict[str, Json] | None:
    if body.keys() <= _BODY_FIELDS and not body.get("output_config"):
        return None
    extras = {name: value for name, value in body.items() if name not in _BODY_FIELDS}
    config = body.get("output_config") or {}
    rest = {name: value for name, value in config.items() if name not in ("effort", "format")}
    if rest:
        extras["output_config"] = rest
    return extras or None


def _system(value: Json) -> tuple[Text, ...]:
    if isinstance(value, str):
        return (Text(value),) if value else ()
    parts = [part_of(block) for block in value or ()]
    return tuple([part for part in parts if isinstance(part, Text)])


def _message(message: Fields) -> Message:
    content = message["content"]
    role = cast(Role, message["role"])
    if isinstance(content, str):
        parts: tuple[Part, ...] = (Text(content),) if content else ()
    else:
        parts = _parts(content)
    if len(message) == len(_MESSAGE_FIELDS):
        return Message(role, parts)
    extras = {name: value for name, value in message.items() if name not in _MESSAGE_FIELDS}
    return Message(role, parts, extras=extras)


def _parts(blocks: list[Fields]) -> tuple[Part, ...]:
    """Return the parts of a message; signatures that the gateway put into blocks go back into their calls."""
    signed = {}
    parts: list[Part] = []
    for block in blocks:
        kind = block["type"]
        found = carried_signature(block["data"]) if kind == "redacted_thinking" else None
        if found is not None:
            signed[found[1]] = found
        elif kind == "document":
            parts.extend(parts_of(block))
        else:
            parts.append(part_of(block))
    if not signed:
        return tuple(parts)
    return tuple(_with_signature(part, signed) for part in parts)


def _with_signature(part: Part, signed: dict[str, tuple[str, str, str]]) -> Part:
    if not isinstance(part, ToolCall) or part.id not in signed:
        return part
    owner, _, signature = signed[part.id]
    return replace(part, signature=signature, origin=owner)


def _tool(tool: Fields) -> Tool:
    if tool.get("type") not in (None, "custom"):
        name = tool.get("name") or tool["type"]
        return Tool(name, "hosted", hosted=tool, cache=tool.get("cache_control"))
    extras = {name: value for name, value in tool.items() if name not in _TOOL_FIELDS}
    return Tool(
        tool["name"],
        description=tool.get("description"),
        parameters=tool.get("input_schema"),
        strict=tool.get("strict"),
        cache=tool.get("cache_control"),
        extras=extras or None,
    )


def _tool_choice(choice: Fields) -> ToolChoice | None:
    if not choice:
        return None
    return ToolChoice(_MODES[choice["type"]], (choice["name"],) if choice.get("name") else ())


def _output(body: Fields) -> Output | None:
    # `output_format` is the field of the beta structured-outputs-2025-11-13.
    format = (body.get("output_config") or {}).get("format") or body.get("output_format")
    if not isinstance(format, dict) or format.get("type") != "json_schema":
        return None
    return Output("json_schema", name=format.get("name"), schema=format.get("schema"), strict=True)


def _thinking(body: Fields) -> Thinking | None:
    thinking = body.get("thinking")
    effort = (body.get("output_config") or {}).get("effort")
    known = effort if effort in _EFFORTS else None
    if thinking is None:
        return Thinking(effort=known) if known else None
    display = thinking.get("display")
    return Thinking(
        enabled=thinking["type"] != "disabled",
        effort=known,
        budget=thinking.get("budget_tokens"),
        adaptive=thinking["type"] == "adaptive",
        visible=display != "omitted",
        summary=display if display != "omitted" else None,
    )
