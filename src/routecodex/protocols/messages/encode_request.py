"""JSON schemas for structured output, reduced to the part of the language this protocol takes.

Constraints that it refuses are told to the model in the description instead.

The canonical request as a messages one.

Requests for token counts: `POST /v1/messages/count_tokens`.
"""

from __future__ import annotations

from typing import Any

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, ToolCall
from routecodex.canon.request import Request, Tool
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.lost_fields import SERVER_HINTS, lost_fields, reject_provider_state
from routecodex.protocols.messages import thinking
from routecodex.protocols.messages.content import NAME
from routecodex.protocols.messages.encode_messages import cache_control_of, encode_messages, system_blocks
from routecodex.protocols.messages.rewrite import rewrite
from routecodex.protocols.tool_mapping import CUSTOM_PARAMETERS, description_of, flat_call, flat_name
from routecodex.wire import json

_UNSUPPORTED_KEYWORDS = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "patternProperties",
        "propertyNames",
    }
)
_SCHEMA_MAPS = ("properties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf")


def _strict_schema(schema: Json) -> Json:
    """The schema with closed objects and without constraints that would be refused."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not _is_unsupported(name, value)}
    told = {name: value for name, value in schema.items() if _is_unsupported(name, value)}
    for name in _SCHEMA_MAPS:
        if isinstance(kept.get(name), dict):
            kept[name] = {key: _strict_schema(value) for key, value in kept[name].items()}
    for name in _SCHEMA_LISTS:
        if isinstance(kept.get(name), list):
            kept[name] = [_strict_schema(value) for value in kept[name]]
    if "oneOf" in kept:
        kept.setdefault("anyOf", kept.pop("oneOf"))
    if isinstance(kept.get("items"), dict):
        kept["items"] = _strict_schema(kept["items"])
    if kept.get("type") == "object":
        kept["additionalProperties"] = False
    return _with_constraints(kept, told)


def _is_unsupported(name: str, value: Json) -> bool:
    return name in _UNSUPPORTED_KEYWORDS or (name == "minItems" and value not in (0, 1))


def _with_constraints(schema: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    if not told:
        return schema
    rules = json.encode(told).decode()
    before = schema.get("description")
    return {**schema, "description": f"{before} {rules}" if before else rules}


def _json_instruction(schema: Json) -> str:
    """What to tell a model that takes no schema: any JSON object, or one that fits it."""
    asked = "Answer with one JSON object and nothing else: no prose, no code fence."
    if schema is None:
        return asked
    return f"{asked} It must fit this JSON schema:\n{json.encode(schema).decode()}"


Fields = dict[str, Any]

_CHOICES = {"auto": "auto", "required": "any", "tool": "tool", "none": "none"}
_TIERS = {"auto": "auto", "priority": "auto", "default": "standard_only", "standard_only": "standard_only"}
_USER_LIMIT = 256
_MIN_TOP_P = 0.95

_UNSUPPORTED_FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("seed", (None,)),
    ("frequency_penalty", (None, 0)),
    ("presence_penalty", (None, 0)),
    ("logprobs", (None, False)),
    ("top_logprobs", (None, 0)),
    ("verbosity", (None, "medium")),
)
"""Canonical settings this protocol has no field for, each with the values that ask for nothing."""

_SAMPLING_FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("temperature", (None, 1)),
    ("top_p", (None, 1)),
    ("top_k", (None,)),
)
"""The same for settings that the newest models refuse."""


def encode_request(request: Request, aim: EncodeOptions) -> EncodedRequest:
    """The request for a messages provider, with a notice for whatever cannot be said there."""
    if request.n > 1:
        raise BadRequest(f"n: {request.n} answers at once are not possible with this model", param="n")
    reject_provider_state(request)
    notices = Notices()
    body = _build_body(request, aim, notices)
    return EncodedRequest(json.encode(body), notices.lines())


def _build_body(request: Request, aim: EncodeOptions, notices: Notices) -> Fields:
    """The request body as an object."""
    messages = encode_messages(request, aim, notices=notices)
    plan = thinking.plan_thinking(request, aim, messages=messages, notices=notices)
    body: Fields = {"model": aim.model, "max_tokens": plan.max_tokens}
    system = system_blocks(request)
    config = _output_config(request, aim, plan, system)
    if system:
        body["system"] = system
    body["messages"] = messages
    body.update(_tool_fields(request, aim, notices))
    if plan.thinking is not None:
        body["thinking"] = plan.thinking
    if config:
        body["output_config"] = config
    body.update(_sampling(request, aim, plan, notices))
    body.update(_labels(request, notices))
    if request.stream:
        body["stream"] = True
    _add_extras(body, request, notices)
    for name in aim.dialect.unsupported:
        if body.pop(name, None) is not None:
            notices.dropped(name, "this provider does not take it")
    return body


def _output_config(
    request: Request, aim: EncodeOptions, plan: thinking.ThinkingPlan, system: list[Fields]
) -> Fields:
    """The `output_config`; what it cannot ask for is added to the system text."""
    config: Fields = {}
    if plan.effort is not None:
        config["effort"] = plan.effort
    output = request.output
    if output is None:
        return config
    if output.kind == "json_schema" and aim.dialect.response_format == "json_schema":
        schema = output.schema if request.source == NAME else _strict_schema(output.schema)
        config["format"] = {"type": "json_schema", "schema": schema}
    else:
        system.append({"type": "text", "text": _json_instruction(output.schema)})
    return config


def _tool_fields(request: Request, aim: EncodeOptions, notices: Notices) -> Fields:
    choice = request.tool_choice
    allowed = choice.names if choice is not None and choice.mode in ("auto", "required") else ()
    offered = [tool for tool in request.tools if not allowed or tool.name in allowed]
    tools = [entry for tool in offered if (entry := _tool(tool, request, aim, notices)) is not None]
    if not tools:
        if choice is not None and choice.mode in ("required", "tool"):
            notices.dropped("tool_choice", "there are no tools to choose from")
        return _tools_of_history(request)
    wanted = _tool_choice(request, aim, notices)
    return {"tools": tools, "tool_choice": wanted} if wanted else {"tools": tools}


def _tools_of_history(request: Request) -> Fields:
    """Calls in the history need their tools declared, even where none may be called any more."""
    if request.source == NAME:
        return {}
    calls = (part for message in request.messages for part in message.parts if isinstance(part, ToolCall))
    names = {flat_call(call): None for call in calls}
    if not names:
        return {}
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def _tool(tool: Tool, request: Request, aim: EncodeOptions, notices: Notices) -> Fields | None:
    if tool.kind == "hosted":
        if request.source == NAME:
            return dict(tool.hosted)
        notices.dropped(f"tool {tool.name}", "it runs at another provider")
        return None
    entry: Fields = {"name": flat_name(tool)}
    description = description_of(tool)
    if description:
        entry["description"] = description
    entry["input_schema"] = CUSTOM_PARAMETERS if tool.kind == "custom" else _object_schema(tool.parameters)
    if tool.strict is not None and aim.dialect.strict_tools and (tool.strict or request.source == NAME):
        entry["strict"] = tool.strict
    mark = cache_control_of(tool.cache, source=request.source)
    if mark is not None:
        entry["cache_control"] = mark
    if request.source == NAME:
        entry.update(tool.extras or {})
    return entry


def _object_schema(schema: Any) -> Fields:
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    return schema if "type" in schema else {"type": "object", **schema}


def _tool_choice(request: Request, aim: EncodeOptions, notices: Notices) -> Fields | None:
    """The `tool_choice`; None where the default says the same."""
    dialect = aim.dialect
    choice = request.tool_choice
    mode = choice.mode if choice is not None else "auto"
    if mode != "auto" and _is_refused(mode, dialect.tool_choice):
        notices.dropped(f"tool_choice {mode}", "this provider does not take it")
        choice, mode = None, "auto"
    if mode in ("required", "tool") and not thinking.traits_for(request, aim).can_be_forced:
        notices.dropped(f"tool_choice {mode}", "this model cannot be made to call a tool")
        choice, mode = None, "auto"
    if choice is not None and choice.forces and _names_dropped_tools(request):
        notices.dropped("tool_choice", "the tool it names is not on offer here")
        choice, mode = None, "auto"
    wanted: Fields = {"type": _CHOICES[mode]}
    if choice is not None and mode in ("tool", "required") and len(choice.names) == 1:
        wanted = {"type": "tool", "name": _flat_choice(request, choice.names[0])}
    if request.parallel_tool_calls is not None and mode != "none":
        if dialect.parallel_tool_calls:
            wanted["disable_parallel_tool_use"] = not request.parallel_tool_calls
        else:
            notices.dropped("parallel_tool_calls", "this provider does not take it")
    said = choice is not None or wanted.get("disable_parallel_tool_use") is not None
    return wanted if said else None


def _is_refused(mode: str, taken: str) -> bool:
    return taken == "auto_only" or (taken == "no_required" and mode in ("required", "tool"))


def _names_dropped_tools(request: Request) -> bool:
    """Whether the choice names tools that run elsewhere, all of them."""
    choice = request.tool_choice
    if choice is None or not choice.names or request.source == NAME:
        return False
    return all(tool.kind == "hosted" for tool in request.tools if tool.name in choice.names)


def _flat_choice(request: Request, name: str) -> str:
    return next((flat_name(tool) for tool in request.tools if tool.name == name), name)


def _sampling(request: Request, aim: EncodeOptions, plan: thinking.ThinkingPlan, notices: Notices) -> Fields:
    out: Fields = {}
    if request.stop:
        kept = [text for text in request.stop if text.strip()]
        if len(kept) < len(request.stop):
            notices.dropped("stop", "blank stop sequences are not taken")
        if kept:
            out["stop_sequences"] = kept
    if thinking.traits_for(request, aim).sampling:
        out.update(_sampling_fields(request, plan, notices))
    else:
        for name, silent in _SAMPLING_FIELDS:
            if getattr(request, name) not in silent:
                notices.dropped(name, "this model does not take it")
    for name, silent in _UNSUPPORTED_FIELDS:
        if getattr(request, name) not in silent:
            notices.dropped(name, "messages has no such field")
    return out


def _sampling_fields(request: Request, plan: thinking.ThinkingPlan, notices: Notices) -> Fields:
    out: Fields = {}
    if request.temperature is not None:
        if request.temperature > 1:
            notices.dropped("part of temperature", "messages goes up to 1")
        out["temperature"] = min(request.temperature, 1.0)
    if request.top_p is not None:
        out["top_p"] = request.top_p
    if request.top_k is not None:
        out["top_k"] = request.top_k
    _drop_conflicts(out, request, plan, notices)
    return out


def _drop_conflicts(out: Fields, request: Request, plan: thinking.ThinkingPlan, notices: Notices) -> None:
    """Takes out what the provider refuses in this combination."""
    if plan.thinks:
        if out.get("temperature", 1) != 1:
            notices.dropped("temperature", "only 1 is legal while the model thinks")
            del out["temperature"]
        if "top_k" in out:
            notices.dropped("top_k", "not legal while the model thinks")
            del out["top_k"]
        if out.get("top_p", 1) < _MIN_TOP_P:
            notices.dropped("top_p", "only 0.95 to 1 is legal while the model thinks")
            del out["top_p"]
    # Newer models refuse both at once; a top_p of 1 says nothing.
    if request.source != NAME and "temperature" in out and out.pop("top_p", 1) < 1:
        notices.dropped("top_p", "temperature is set too, and only one may be")


def _labels(request: Request, notices: Notices) -> Fields:
    """Who asks and at which tier: what changes nothing in the answer itself."""
    out: Fields = {}
    metadata = dict(request.metadata or {})
    user = request.user if request.user is not None else metadata.pop("user_id", None)
    if request.source == NAME:
        labels = {**metadata, **({"user_id": user} if user is not None else {})}
        if labels:
            out["metadata"] = labels
    else:
        if metadata:
            notices.dropped("metadata", "messages knows a user_id only")
        if isinstance(user, str) and 0 < len(user) <= _USER_LIMIT:
            out["metadata"] = {"user_id": user}
        elif user:
            notices.dropped("user", f"longer than {_USER_LIMIT} characters")
    tier = request.service_tier
    if tier is not None and (tier in _TIERS or request.source == NAME):
        out["service_tier"] = _TIERS.get(tier, tier)
    elif tier is not None:
        notices.dropped(f"service_tier {tier}", "messages has no such tier")
    return out


def _add_extras(body: Fields, request: Request, notices: Notices) -> None:
    extras = dict(request.extras or {})
    if request.source == NAME:
        config = extras.pop("output_config", None)
        if config:
            body["output_config"] = {**config, **body.get("output_config", {})}
        for name, value in extras.items():
            body.setdefault(name, value)
        return
    for name in (*(name for name in extras if name not in SERVER_HINTS), *lost_fields(request)):
        notices.dropped(name, f"only {request.source} has it")


COUNT_PATH = "/v1/messages/count_tokens"

_NOT_COUNTED = (
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
)


def encode_count(request: Request, aim: EncodeOptions) -> bytes:
    """The body that asks a messages provider to count the request."""
    body = _build_body(request, aim, Notices())
    for name in _NOT_COUNTED:
        body.pop(name, None)
    return json.encode(body)


def rewrite_count(inbound: WireRequest, aim: EncodeOptions) -> bytes:
    """A messages client's request to count, for a messages provider."""
    body = rewrite(inbound, aim).body
    if not any(b'"%s"' % name.encode() in body for name in _NOT_COUNTED):
        return body
    fields = json.read_fields(body)
    kept = {name: value for name, value in fields.items() if name not in _NOT_COUNTED}
    return body if len(kept) == len(fields) else json.encode(kept)
