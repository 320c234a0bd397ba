"""Encodes a canonical request as a messages request, for an answer or for a token count.

Limits on combinations of settings are those of the Anthropic API reference and docs, unless a comment says
otherwise.
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
from routecodex.protocols.tool_mapping import (
    CUSTOM_PARAMETERS,
    description_of,
    distinct_names,
    flat_call,
    flat_name,
    is_shared_name,
)
from routecodex.protocols.tool_schemas import plain_parameters
from routecodex.wire import json

Fields = dict[str, Any]

_OBJECT: Fields = {"type": "object"}
_CHOICES = {"auto": "auto", "required": "any", "tool": "any", "none": "none"}
_TIERS = {"auto": "auto", "priority": "auto", "default": "standard_only", "standard_only": "standard_only"}

_USER_LIMIT = 256
"""Longest `metadata.user_id` (Anthropic API reference)."""

_MIN_TOP_P = 0.95
"""Least `top_p` with thinking (Anthropic docs, "Extended thinking")."""

_UNSUPPORTED_FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("seed", (None,)),
    ("frequency_penalty", (None, 0)),
    ("presence_penalty", (None, 0)),
    ("logprobs", (None, False)),
    ("top_logprobs", (None, 0)),
    ("verbosity", (None, "medium")),
)
"""Canonical settings without a field in messages, each with its default values."""

_SAMPLING_FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("temperature", (None, 1)),
    ("top_p", (None, 1)),
    ("top_k", (None,)),
)
"""Settings that the newest models reject (`ModelTraits.sampling`), each with its default values."""

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
"""Fields that the counting endpoint rejects."""

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
"""JSON schema keywords that the API rejects (Anthropic docs, "Structured outputs")."""

_SCHEMA_MAPS = ("properties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf")


def encode_request(request: Request, options: EncodeOptions) -> EncodedRequest:
    """Encode the request for a messages provider; notices name every dropped field."""
    if request.n > 1:
        raise BadRequest(
            f"n: this model returns one answer per request, not {request.n}; send n = 1", param="n"
        )
    reject_provider_state(request)
    notices = Notices()
    body = _build_body(request, options, notices)
    return EncodedRequest(json.encode(body), notices.lines())


def encode_count(request: Request, options: EncodeOptions) -> bytes:
    """Encode the request for `/v1/messages/count_tokens`."""
    body = _build_body(request, options, Notices())
    for name in _NOT_COUNTED:
        body.pop(name, None)
    return json.encode(body)


def rewrite_count(request: WireRequest, options: EncodeOptions) -> bytes:
    """Rewrite a messages client's request for `/v1/messages/count_tokens`."""
    body = rewrite(request, options).body
    if not any(b'"%s"' % name.encode() in body for name in _NOT_COUNTED):
        return body
    fields = json.read_fields(body)
    counted = {name: value for name, value in fields.items() if name not in _NOT_COUNTED}
    return body if len(counted) == len(fields) else json.encode(counted)


def _build_body(request: Request, options: EncodeOptions, notices: Notices) -> Fields:
    """Return the request body as an object."""
    request = distinct_names(request)
    messages = encode_messages(request, options, notices=notices)
    plan = thinking.plan_thinking(request, options, messages=messages, notices=notices)
    body: Fields = {"model": options.model, "max_tokens": plan.max_tokens}
    system = system_blocks(request)
    config = _output_config(request, options, plan, system)
    if system:
        body["system"] = system
    body["messages"] = messages
    body.update(_tool_fields(request, options, notices))
    if plan.thinking is not None:
        body["thinking"] = plan.thinking
    if config:
        body["output_config"] = config
    body.update(_sampling(request, options, plan, notices))
    body.update(_labels(request, notices))
    if request.stream:
        body["stream"] = True
    _add_extras(body, request, notices)
    for name in options.dialect.unsupported:
        if body.pop(name, None) is not None:
            notices.dropped(name, "this provider rejects it")
    return body


def _output_config(
    request: Request, options: EncodeOptions, plan: thinking.ThinkingPlan, system: list[Fields]
) -> Fields:
    """Return the `output_config`; an unsupported output format becomes an instruction in the system text."""
    config: Fields = {}
    if plan.effort is not None:
        config["effort"] = plan.effort
    output = request.output
    if output is None:
        return config
    if output.kind == "json_schema" and options.dialect.response_format == "json_schema":
        schema = output.schema if request.source == NAME else _strict_schema(output.schema)
        config["format"] = {"type": "json_schema", "schema": schema}
    else:
        system.append({"type": "text", "text": _json_instruction(output.schema)})
    return config


def _tool_fields(request: Request, options: EncodeOptions, notices: Notices) -> Fields:
    choice = request.tool_choice
    shared = choice is not None and choice.mode == "tool" and _chosen_name(request) is None
    named = choice is not None and (shared or choice.mode in ("auto", "required"))
    allowed = frozenset(choice.names) if choice is not None and named else frozenset()
    offered = [tool for tool in request.tools if not allowed or tool.name in allowed]
    tools = [entry for tool in offered if (entry := _tool(tool, request, options, notices)) is not None]
    if not tools:
        if choice is not None and choice.mode in ("required", "tool"):
            notices.dropped("tool_choice", "there are no tools to choose from")
        return _tools_of_history(request)
    encoded = _tool_choice(request, options, notices)
    return {"tools": tools, "tool_choice": encoded} if encoded else {"tools": tools}


def _tools_of_history(request: Request) -> Fields:
    """Declare the tools of earlier calls: the API rejects `tool_use` blocks in requests without tools."""
    if request.source == NAME:
        return {}
    calls = (part for message in request.messages for part in message.parts if isinstance(part, ToolCall))
    names = {flat_call(call): None for call in calls}
    if not names:
        return {}
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def _tool(tool: Tool, request: Request, options: EncodeOptions, notices: Notices) -> Fields | None:
    if tool.kind == "hosted":
        if request.source == NAME:
            return dict(tool.hosted)
        notices.dropped(f"tool {tool.name}", "it runs at another provider")
        return None
    entry: Fields = {"name": flat_name(tool)}
    description = description_of(tool)
    if description:
        entry["description"] = description
    entry["input_schema"] = (
        CUSTOM_PARAMETERS if tool.kind == "custom" else _input_schema(tool, request, options, notices)
    )
    if tool.strict is not None and options.dialect.strict_tools and (tool.strict or request.source == NAME):
        entry["strict"] = tool.strict
    mark = cache_control_of(tool.cache, source=request.source)
    if mark is not None:
        entry["cache_control"] = mark
    if request.source == NAME:
        entry.update(tool.extras or {})
    return entry


def _input_schema(tool: Tool, request: Request, options: EncodeOptions, notices: Notices) -> Fields:
    schema = tool.parameters
    if request.source != NAME or not options.dialect.composed_schemas:
        schema = plain_parameters(schema, tool=tool.name, protocol=NAME, notices=notices)
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    # Anthropic: "input_schema.type: Input should be 'object'", also for a list of types with it.
    return schema if isinstance(schema.get("type"), str) else {"type": "object", **schema} | _OBJECT


def _tool_choice(request: Request, options: EncodeOptions, notices: Notices) -> Fields | None:
    """Return the `tool_choice`; None if it equals the default."""
    dialect = options.dialect
    choice = request.tool_choice
    mode = choice.mode if choice is not None else "auto"
    if mode != "auto" and _is_refused(mode, dialect.tool_choice):
        notices.dropped(f"tool_choice {mode}", "this provider rejects it")
        choice, mode = None, "auto"
    if mode in ("required", "tool") and not thinking.traits_for(request, options).can_be_forced:
        notices.dropped(f"tool_choice {mode}", "this model does not accept a forced tool call")
        choice, mode = None, "auto"
    if choice is not None and choice.forces and _names_dropped_tools(request):
        notices.dropped("tool_choice", "the tool it names is not available here")
        choice, mode = None, "auto"
    encoded: Fields = {"type": _CHOICES[mode]}
    name = _chosen_name(request) if mode in ("tool", "required") else None
    if name is not None:
        encoded = {"type": "tool", "name": _flat_choice(request, name)}
    if request.parallel_tool_calls is not None and mode != "none":
        if dialect.parallel_tool_calls:
            encoded["disable_parallel_tool_use"] = not request.parallel_tool_calls
        else:
            notices.dropped("parallel_tool_calls", "this provider has no such setting")
    differs = choice is not None or "disable_parallel_tool_use" in encoded
    return encoded if differs else None


def _chosen_name(request: Request) -> str | None:
    """Return the name of the one tool that must be called."""
    choice = request.tool_choice
    if choice is None or not choice.forces or len(choice.names) != 1:
        return None
    return None if is_shared_name(choice.names[0], request.tools) else choice.names[0]


def _is_refused(mode: str, supported: str) -> bool:
    return supported == "auto_only" or (supported == "no_required" and mode in ("required", "tool"))


def _names_dropped_tools(request: Request) -> bool:
    """Whether all tools that the choice names run at another provider."""
    choice = request.tool_choice
    if choice is None or not choice.names or request.source == NAME:
        return False
    return all(tool.kind == "hosted" for tool in request.tools if tool.name in choice.names)


def _flat_choice(request: Request, name: str) -> str:
    return next((flat_name(tool) for tool in request.tools if tool.name == name), name)


def _sampling(
    request: Request, options: EncodeOptions, plan: thinking.ThinkingPlan, notices: Notices
) -> Fields:
    out: Fields = {}
    if request.stop:
        sequences = [text for text in request.stop if text.strip()]
        if len(sequences) < len(request.stop):
            notices.dropped("stop", "messages rejects blank stop sequences")
        if sequences:
            out["stop_sequences"] = sequences
    traits = thinking.traits_for(request, options)
    if traits.sampling:
        out.update(_sampling_fields(request, plan, notices))
        # A top_p of 1 has no effect.
        if not traits.temperature_with_top_p and "temperature" in out and out.pop("top_p", 1) < 1:
            notices.dropped("top_p", "temperature is set, and this model accepts only one of them")
    else:
        for name, defaults in _SAMPLING_FIELDS:
            if getattr(request, name) not in defaults:
                notices.dropped(name, "this model rejects it")
    for name, defaults in _UNSUPPORTED_FIELDS:
        if getattr(request, name) not in defaults:
            notices.dropped(name, "messages has no such field")
    return out


def _sampling_fields(request: Request, plan: thinking.ThinkingPlan, notices: Notices) -> Fields:
    out: Fields = {}
    if request.temperature is not None:
        if request.temperature > 1:
            notices.dropped("part of temperature", "messages accepts at most 1")
        out["temperature"] = min(request.temperature, 1.0)
    if request.top_p is not None:
        out["top_p"] = request.top_p
    if request.top_k is not None:
        out["top_k"] = request.top_k
    _drop_conflicts(out, plan, notices)
    return out


def _drop_conflicts(out: Fields, plan: thinking.ThinkingPlan, notices: Notices) -> None:
    """Drop settings that the API rejects in combination (Anthropic docs, "Extended thinking")."""
    if not plan.thinks:
        return
    if out.get("temperature", 1) != 1:
        notices.dropped("temperature", "with thinking only 1 is accepted")
        del out["temperature"]
    if "top_k" in out:
        notices.dropped("top_k", "it is not accepted with thinking")
        del out["top_k"]
    if out.get("top_p", 1) < _MIN_TOP_P:
        notices.dropped("top_p", "with thinking only 0.95 to 1 is accepted")
        del out["top_p"]


def _labels(request: Request, notices: Notices) -> Fields:
    """Return user, metadata and service tier."""
    out: Fields = {}
    metadata = dict(request.metadata or {})
    user = request.user if request.user is not None else metadata.pop("user_id", None)
    if request.source == NAME:
        labels = {**metadata, **({"user_id": user} if user is not None else {})}
        if labels:
            out["metadata"] = labels
    else:
        if metadata:
            notices.dropped("metadata", "messages has only user_id")
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


def _strict_schema(schema: Json) -> Json:
    """Close all objects, and move unsupported constraints into descriptions.

    Anthropic's SDKs transform schemas the same way.
    """
    if not isinstance(schema, dict):
        return schema
    unsupported = {name: value for name, value in schema.items() if _is_unsupported(name, value)}
    strict = {name: value for name, value in schema.items() if name not in unsupported}
    for name in _SCHEMA_MAPS:
        if isinstance(strict.get(name), dict):
            strict[name] = {key: _strict_schema(value) for key, value in strict[name].items()}
    for name in _SCHEMA_LISTS:
        if isinstance(strict.get(name), list):
            strict[name] = [_strict_schema(value) for value in strict[name]]
    if "oneOf" in strict:
        strict.setdefault("anyOf", strict.pop("oneOf"))
    if isinstance(strict.get("items"), dict):
        strict["items"] = _strict_schema(strict["items"])
    if strict.get("type") == "object":
        strict["additionalProperties"] = False
    return _with_constraints(strict, unsupported)


def _is_unsupported(name: str, value: Json) -> bool:
    return name in _UNSUPPORTED_KEYWORDS or (name == "minItems" and value not in (0, 1))


def _with_constraints(schema: dict[str, Any], constraints: dict[str, Any]) -> dict[str, Any]:
    if not constraints:
        return schema
    rules = json.encode(constraints).decode()
    before = schema.get("description")
    return {**schema, "description": f"{before} {rules}" if before else rules}


def _json_instruction(schema: Json) -> str:
    """Return the instruction for a model without structured output: any JSON object, or one of the schema."""
    text = "Answer with one JSON object and nothing else: no prose, no code fence."
    if schema is None:
        return text
    return f"{text} It must fit this JSON schema:\n{json.encode(schema).decode()}"
