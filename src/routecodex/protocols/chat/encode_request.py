"""Encodes a canonical request as a chat request for an upstream."""

from __future__ import annotations

import hashlib
from typing import Any

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.canon.request import Request, Thinking, Tool
from routecodex.protocols.chat.decode_request import TOOL_EXTRAS
from routecodex.protocols.chat.encode_messages import encode_messages
from routecodex.protocols.codec import EncodedRequest, EncodeOptions
from routecodex.protocols.dialect import reasoning_field_of
from routecodex.protocols.lost_fields import SERVER_HINTS, lost_fields, reject_provider_state
from routecodex.protocols.tool_mapping import (
    CUSTOM_PARAMETERS,
    description_of,
    distinct_names,
    flat_name,
    is_shared_name,
)
from routecodex.protocols.tool_schemas import plain_parameters
from routecodex.wire import json

_COPIED_FIELDS = [
    "temperature",
    "top_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
    "top_logprobs",
    "verbosity",
    "service_tier",
]

_THREE_EFFORTS = {"none": "low", "minimal": "low", "low": "low", "medium": "high", "high": "high"}
_THREE_EFFORTS |= {"xhigh": "max", "max": "max"}
"""Efforts of models that know low, high and max only (GLM-5.3); GLM-5.2 takes medium for high, too."""
_TIERS = frozenset({"auto", "default", "flex", "priority", "scale"})

_USER_LIMIT = 64
"""OpenAI rejects a longer `user` (API error string_above_max_length)."""

_BUDGET_EFFORTS = ((2048, "low"), (12_000, "medium"))


def encode_request(request: Request, options: EncodeOptions) -> EncodedRequest:
    """Encode the request in the upstream's dialect; notices name every dropped field."""
    reject_provider_state(request)
    request = distinct_names(request)
    notices = Notices()
    body: dict[str, Any] = {"model": options.model, "messages": encode_messages(request, options, notices)}
    _add_settings(body, request, options, notices)
    _add_tools(body, request, options, notices)
    _add_response_format(body, request, options, notices)
    if request.thinking is not None:
        style = reasoning_field_of(options.dialect, options.model)
        _add_thinking(body, request.thinking, style, notices)
    _add_extras(body, request, notices)
    if request.source != "chat":
        for field in lost_fields(request):
            notices.dropped(field, f"only {request.source} has it")
        if _has_cache_hints(request):
            notices.dropped("cache_control", "chat upstreams cache by prefix")
    for field in options.dialect.unsupported:
        if body.pop(field, None) is not None:
            notices.dropped(field, "this upstream rejects it")
    return EncodedRequest(json.encode(body), notices.lines())


def _add_settings(body: dict[str, Any], request: Request, options: EncodeOptions, notices: Notices) -> None:
    for field in _COPIED_FIELDS:
        value = getattr(request, field)
        if value is not None:
            body[field] = value
    if request.source != "chat" and request.service_tier not in _TIERS:
        body.pop("service_tier", None)
    if request.max_tokens is not None:
        body[options.dialect.max_tokens_field or "max_completion_tokens"] = _max_tokens(
            request.max_tokens, options, notices
        )
    if request.stop:
        body["stop"] = list(request.stop[:4])
        if len(request.stop) > 4:
            notices.dropped("stop sequences past the fourth", "chat accepts four")
    if request.top_k is not None:
        _add_chat_field(body, request, field="top_k", value=request.top_k, notices=notices)
    if request.metadata:
        _add_chat_field(body, request, field="metadata", value=request.metadata, notices=notices)
    if request.n > 1:
        if not options.dialect.n or request.source != "chat":
            raise BadRequest(
                "n: this upstream returns one answer per request; send n = 1",
                param="n",
                code="unsupported_value",
            )
        body["n"] = request.n
    from_chat = request.source == "chat"
    if from_chat and request.safety_identifier:
        body["safety_identifier"] = request.safety_identifier
    if request.user and not (from_chat and request.user == request.safety_identifier):
        body["user"] = request.user if len(request.user) <= _USER_LIMIT else _digest(request.user)
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key
    if request.stream:
        body["stream"] = True
        if options.dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}


def _max_tokens(requested: int, options: EncodeOptions, notices: Notices) -> int:
    limit = options.max_output_tokens
    if limit is None or requested <= limit:
        return requested
    notices.dropped("part of max_tokens", f"this model writes at most {limit} tokens")
    return limit


def _add_chat_field(
    body: dict[str, Any], request: Request, *, field: str, value: Json, notices: Notices
) -> None:
    if request.source == "chat":
        body[field] = value
    else:
        notices.dropped(field, "chat has no such field")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _add_tools(body: dict[str, Any], request: Request, options: EncodeOptions, notices: Notices) -> None:
    tools = [
        encoded for tool in request.tools if (encoded := _tool(tool, request, options, notices)) is not None
    ]
    if not tools:
        if request.tool_choice is not None and request.tool_choice.forces:
            notices.dropped("tool_choice", "there are no tools to choose from")
        return
    body["tools"] = tools
    if request.parallel_tool_calls is not None:
        if options.dialect.parallel_tool_calls:
            body["parallel_tool_calls"] = request.parallel_tool_calls
        else:
            notices.dropped("parallel_tool_calls", "this upstream has no such setting")
    choice = _tool_choice(request, options, notices)
    if choice is not None:
        body["tool_choice"] = choice


def _tool(tool: Tool, request: Request, options: EncodeOptions, notices: Notices) -> dict[str, Any] | None:
    if tool.kind == "hosted":
        if request.source == "chat":
            return dict(tool.hosted)
        notices.dropped(f"tool {tool.name}", "it runs only at its own provider")
        return None
    if tool.kind == "custom" and request.source == "chat":
        custom = {"name": tool.name, "description": tool.description, "format": tool.format}
        declared = {key: item for key, item in custom.items() if item is not None}
        return {"type": "custom", "custom": declared, **_tool_extras(tool)}
    function: dict[str, Any] = {"name": flat_name(tool)}
    description = description_of(tool)
    if description:
        function["description"] = description
    parameters = tool.parameters
    if request.source != "chat" and not options.dialect.composed_schemas:
        parameters = plain_parameters(parameters, tool=tool.name, protocol="chat", notices=notices)
    function["parameters"] = CUSTOM_PARAMETERS if tool.kind == "custom" else _schema(parameters)
    if tool.strict is not None and options.dialect.strict_tools:
        function["strict"] = tool.strict
    if request.source != "chat":
        return {"type": "function", "function": function}
    function.update({key: value for key, value in (tool.extras or {}).items() if key != TOOL_EXTRAS})
    return {"type": "function", "function": function, **_tool_extras(tool)}


def _tool_extras(tool: Tool) -> dict[str, Json]:
    """Return the fields that a chat client sent beside the function of a tool."""
    cache: dict[str, Json] = {"cache_control": tool.cache} if tool.cache else {}
    return {**cache, **((tool.extras or {}).get(TOOL_EXTRAS) or {})}


def _schema(parameters: Json) -> Json:
    return parameters if parameters else {"type": "object", "properties": {}}


def _tool_choice(request: Request, options: EncodeOptions, notices: Notices) -> Json:
    choice = request.tool_choice
    if choice is None:
        return None
    allowed = options.dialect.tool_choice
    if allowed == "auto_only" and choice.mode not in ("auto", "none"):
        notices.dropped("tool_choice", "this upstream accepts only auto and none")
        return "auto"
    foreign = _foreign_hosted_tools(request)
    names = [name for name in choice.names if name not in foreign]
    if choice.names and not names:
        notices.dropped("tool_choice", "the tool it names is not available here")
        return None
    if choice.forces and len(names) == 1 and not is_shared_name(names[0], request.tools):
        return _forced_tool(request, names[0])
    if names:
        notices.dropped("the list of allowed tools", "chat upstreams accept one tool or all")
    if choice.forces and allowed == "no_required":
        notices.dropped("tool_choice required", "this upstream has no such mode")
        return "auto"
    return "required" if choice.forces else choice.mode


def _foreign_hosted_tools(request: Request) -> set[str]:
    """Return the names of tools that only providers of another protocol run."""
    return {tool.name for tool in request.tools if tool.kind == "hosted" and request.source != "chat"}


def _forced_tool(request: Request, name: str) -> Json:
    tool = next((tool for tool in request.tools if tool.name == name), None)
    if tool is not None and tool.kind == "custom" and request.source == "chat":
        return {"type": "custom", "custom": {"name": name}}
    return {"type": "function", "function": {"name": name if tool is None else flat_name(tool)}}


def _add_response_format(
    body: dict[str, Any], request: Request, options: EncodeOptions, notices: Notices
) -> None:
    output, form = request.output, options.dialect.response_format
    if output is None:
        return
    if form == "none":
        notices.dropped("response_format", "this upstream has no structured output")
    elif output.kind == "json_schema" and form == "json_schema":
        schema = {"name": output.name or "answer", "schema": output.schema or {}}
        if output.strict is not None:
            schema["strict"] = output.strict
        if output.description is not None:
            schema["description"] = output.description
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    else:
        body["response_format"] = {"type": "json_object"}
        if output.kind == "json_schema":
            _add_schema_instruction(body["messages"], output.schema, options.dialect.system_role)


def _add_schema_instruction(messages: list[dict[str, Any]], schema: Json, role: str) -> None:
    """Add the schema to the system text, because JSON mode (`json_object`) has no field for it."""
    text = f"Answer with one JSON object that fits this JSON schema: {json.encode(schema).decode()}"
    if messages and messages[0]["role"] == role:
        content = messages[0]["content"]
        part = {"type": "text", "text": text}
        messages[0]["content"] = [*content, part] if isinstance(content, list) else f"{content}\n\n{text}"
    else:
        messages.insert(0, {"role": role, "content": text})


def _add_thinking(body: dict[str, Any], thinking: Thinking, style: str, notices: Notices) -> None:
    effort = thinking.effort or _effort(thinking)
    match style:
        case "reasoning_effort":
            # OpenAI has no switch besides the effort `none`, and older models reject that: send it only if
            # the client did.
            if thinking.enabled or thinking.effort is not None:
                body["reasoning_effort"] = effort
            else:
                notices.dropped("thinking", "chat has no general way to switch it off")
        case "thinking":
            body["thinking"] = {"type": "enabled" if thinking.enabled else "disabled"}
            _note_lost_depth(thinking, notices)
        case "thinking_and_effort":
            body["thinking"] = {"type": "enabled" if thinking.enabled else "disabled"}
            if thinking.enabled and (thinking.effort or thinking.budget):
                body["reasoning_effort"] = effort
        case "three_efforts":
            if thinking.effort or thinking.budget or not thinking.enabled:
                body["reasoning_effort"] = _THREE_EFFORTS[effort if thinking.enabled else "low"]
            if not thinking.enabled:
                notices.dropped("thinking: disabled", "this model always thinks")
        case "enable_thinking":
            body["enable_thinking"] = thinking.enabled
            if thinking.budget and thinking.enabled:
                body["thinking_budget"] = thinking.budget
            elif thinking.effort and thinking.enabled:
                notices.dropped("reasoning_effort", "this upstream has budgets only")
        case "reasoning":
            body["reasoning"] = _openrouter_reasoning(thinking, effort)
        case _:
            notices.dropped("thinking", "this upstream has no setting for it")


def _note_lost_depth(thinking: Thinking, notices: Notices) -> None:
    field = "reasoning_effort" if thinking.effort else "the thinking budget" if thinking.budget else ""
    if field and thinking.enabled:
        notices.dropped(field, "this upstream only switches thinking on and off")


def _openrouter_reasoning(thinking: Thinking, effort: str) -> dict[str, Any]:
    if not thinking.enabled:
        return {"enabled": False}
    return {"max_tokens": thinking.budget} if thinking.budget else {"effort": effort}


def _effort(thinking: Thinking) -> str:
    if thinking.budget is None:
        return "medium"
    return next((effort for limit, effort in _BUDGET_EFFORTS if thinking.budget <= limit), "high")


def _add_extras(body: dict[str, Any], request: Request, notices: Notices) -> None:
    for field, value in (request.extras or {}).items():
        if request.source == "chat":
            current = body.get(field)
            both = isinstance(value, dict) and isinstance(current, dict)
            body[field] = value | current if both else value
        elif field not in SERVER_HINTS:
            notices.dropped(field, "chat has no such field")


def _has_cache_hints(request: Request) -> bool:
    parts = [part for message in request.messages for part in message.parts]
    hints = [getattr(item, "cache", None) for item in (*request.system, *parts, *request.tools)]
    return hints.count(None) < len(hints)
