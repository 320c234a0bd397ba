"""Encodes a canonical request as a Responses body; notices name the fields that Responses does not have."""

from __future__ import annotations

from typing import cast

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.canon.request import Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodedRequest, EncodeOptions
from routecodex.protocols.lost_fields import SERVER_HINTS, lost_fields
from routecodex.protocols.message_features import is_hosted_search
from routecodex.protocols.responses.codex_items import METADATA, plain_request, without_internals
from routecodex.protocols.responses.content import DECLARATION, ITEM, PartWriter
from routecodex.protocols.responses.decode_request import LOGPROBS
from routecodex.protocols.responses.encode_messages import ItemWriter, custom_call_ids, short_id
from routecodex.protocols.responses.schema import NAME
from routecodex.protocols.tool_schemas import plain_parameters
from routecodex.wire import json

_ENCRYPTED = "reasoning.encrypted_content"

_MIN_OUTPUT_TOKENS = 16
"""OpenAI rejects a smaller `max_output_tokens`."""

_METADATA_PAIRS, _METADATA_KEY, _METADATA_VALUE = 16, 64, 512
"""Limits of `metadata` in the OpenAI API reference: pairs, and characters of a key and a value."""
_TIERS = {"standard_only": "default", "standard": "default"}
_TIERS |= {tier: tier for tier in ("auto", "default", "flex", "priority", "scale")}
_SUMMARIES = ("auto", "concise", "detailed")
"""Values of `reasoning.summary` in the OpenAI API reference."""
_UNSUPPORTED = ("stop", "top_k", "seed")
_PENALTIES = ("frequency_penalty", "presence_penalty")
"""Fields of the Open Responses specification that OpenAI does not take."""


def encode_request(request: Request, options: EncodeOptions) -> EncodedRequest:
    """Return the request for a Responses upstream."""
    if request.n > 1:
        raise BadRequest(f"n: a Responses upstream gives one answer, not {request.n}; send n = 1", param="n")
    notices = Notices()
    same = request.source == NAME
    if options.codex_items == "plain":
        request = plain_request(request, options, notices)
    writer = PartWriter(
        same, options.vision, options.dialect.image_urls, request.source in (NAME, "chat"), notices
    )
    items = ItemWriter(request, options, writer, [], custom_call_ids(request.messages))
    instructions = items.system()
    items.messages()
    native = not same or options.codex_items == "native"
    sent = items.items if native else without_internals(items.items)
    body: dict[str, Json] = {"model": options.model, "input": sent}
    settings = _settings(request, options, notices)
    settings["instructions"] = instructions
    body |= {key: value for key, value in settings.items() if value is not None}
    _add_extras(body, request, notices)
    if not native:
        body.pop(METADATA, None)
    for name in options.dialect.unsupported:
        if body.pop(name, None) is not None:
            notices.dropped(name, "the upstream does not take it")
    return EncodedRequest(json.encode(body), notices.lines())


def _settings(request: Request, options: EncodeOptions, notices: Notices) -> dict[str, Json]:
    same = request.source == NAME
    for name in _UNSUPPORTED if same else _UNSUPPORTED + _PENALTIES:
        if getattr(request, name) not in (None, ()):
            notices.dropped(name, "responses has no such field")
    tools = _tools(request, options, notices)
    return {
        "tools": tools or None,
        "tool_choice": _tool_choice(request, options, notices) if tools else _idle_choice(request, notices),
        "parallel_tool_calls": _parallel(request, options, notices),
        "max_output_tokens": _max_tokens(request, options),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_logprobs": request.top_logprobs,
        "frequency_penalty": request.frequency_penalty if same else None,
        "presence_penalty": request.presence_penalty if same else None,
        "text": _text(request, options, notices),
        "reasoning": _reasoning(request, notices),
        "metadata": _metadata(request, notices),
        "user": _user(request),
        "safety_identifier": short_id(request.safety_identifier) if request.safety_identifier else None,
        "prompt_cache_key": short_id(request.cache_key) if request.cache_key else None,
        "service_tier": _tier(request, notices),
        "include": _include(request) or None,
        "store": None if same else False,
        "stream": True if request.stream else None,
    }


def _add_extras(body: dict[str, Json], request: Request, notices: Notices) -> None:
    for field in lost_fields(request) if request.source != NAME else ():
        notices.dropped(field, f"only {request.source} has it")
    for key, value in (request.extras or {}).items():
        if request.source != NAME:
            if key not in SERVER_HINTS and key != "safety_identifier":
                notices.dropped(key, f"it is a field of {request.source}")
        elif key == "include":
            body[key] = list(dict.fromkeys([*value, *body.get(key, ())]))
        elif isinstance(value, dict) and isinstance(body.get(key), dict):
            body[key] = {**value, **body[key]}
        else:
            body[key] = value


def _tools(request: Request, options: EncodeOptions, notices: Notices) -> list[Json]:
    """Return the tools; those of a namespace are grouped at the position of its first tool."""
    written: list[Json] = []
    namespaces: dict[str, list[Json]] = {}
    for tool in request.tools:
        if request.source == NAME and DECLARATION in (tool.extras or {}):
            # The item that declares it is in the input.
            continue
        value = _tool(tool, request, options=options, notices=notices)
        if value is None:
            continue
        if tool.namespace is None:
            written.append(value)
            continue
        if tool.namespace not in namespaces:
            tools = namespaces.setdefault(tool.namespace, [])
            head = {"type": "namespace", "name": tool.namespace}
            written.append({**head, "description": tool.namespace_description or "", "tools": tools})
        namespaces[tool.namespace].append(value)
    return written


def _tool(
    tool: Tool, request: Request, *, options: EncodeOptions, notices: Notices
) -> dict[str, Json] | None:
    same = request.source == NAME
    if tool.kind == "hosted":
        return _hosted(tool, same, notices)
    if same and tool.extras and ITEM in tool.extras:
        return cast(dict[str, Json], tool.extras[ITEM])
    value: dict[str, Json] = {"type": tool.kind, "name": tool.name}
    if tool.description is not None:
        value["description"] = tool.description
    if tool.kind == "custom":
        if tool.format is not None:
            value["format"] = _grammar(tool.format)
    elif tool.parameters is not None or not same:
        value["parameters"] = tool.parameters if same else _parameters(tool, options, notices)
    if tool.kind == "function" and options.dialect.strict_tools:
        # OpenAI API reference: `strict` defaults to true on Responses; in the other protocols it is off.
        strict = tool.strict if same else bool(tool.strict)
        if strict is not None:
            value["strict"] = strict
    if tool.cache is not None:
        notices.dropped("cache_control", "responses upstreams cache by prefix")
    return {**value, **tool.extras} if same and tool.extras else value


def _grammar(form: Json) -> Json:
    """Return a custom tool's format; chat nests the grammar one level deeper (OpenAI API reference)."""
    if isinstance(form, dict) and isinstance(form.get("grammar"), dict):
        return {"type": "grammar", **form["grammar"]}
    return form


def _parameters(tool: Tool, options: EncodeOptions, notices: Notices) -> Json:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if options.dialect.composed_schemas:
        return parameters
    return plain_parameters(parameters, tool=tool.name, protocol=NAME, notices=notices)


def _hosted(tool: Tool, same: bool, notices: Notices) -> dict[str, Json] | None:
    if same:
        value: dict[str, Json] = tool.hosted
        return value
    if _searches_the_web(tool):
        return {"type": "web_search"}
    notices.dropped(f"tool {tool.name[:40]!a}", "it runs at another provider")
    return None


def _searches_the_web(tool: Tool) -> bool:
    """Return whether a hosted tool is a web search by its name or type; file search and the like are not."""
    kind = tool.hosted.get("type") if isinstance(tool.hosted, dict) else None
    names = [name for name in (tool.name, kind) if isinstance(name, str)]
    return any(is_hosted_search(name) or name.endswith("_web_search") for name in names)


def _tool_choice(request: Request, options: EncodeOptions, notices: Notices) -> Json:
    choice = request.tool_choice
    if choice is None:
        return None
    level = options.dialect.tool_choice
    if (level == "auto_only" and choice.mode != "auto") or (
        level == "no_required" and choice.mode == "required"
    ):
        notices.dropped(f"tool_choice {choice.mode}", "the upstream does not take it")
        return None
    tools = {tool.name: tool for tool in reversed(request.tools)}
    choices = (_choice_of(name, tools.get(name), source=request.source) for name in choice.names)
    named = [value for value in choices if value is not None]
    if choice.names and not named:
        notices.dropped("tool_choice", "the tool it names is not on offer here")
        return None
    if choice.mode == "tool":
        return named[0] if named else "required"
    if not named:
        return choice.mode
    return {"type": "allowed_tools", "mode": _allowed_mode(choice), "tools": named}


def _idle_choice(request: Request, notices: Notices) -> Json:
    """Return the choice for a request without tools; a Responses client's own choice is passed on."""
    choice = request.tool_choice
    if choice is None:
        return None
    if request.source == NAME and choice.mode != "tool":
        return choice.mode
    if choice.forces:
        notices.dropped("tool_choice", "there are no tools to choose from")
    return None


def _allowed_mode(choice: ToolChoice) -> str:
    return "required" if choice.mode == "required" else "auto"


def _choice_of(name: str, tool: Tool | None, *, source: str) -> dict[str, Json] | None:
    if tool is None:
        return {"type": "function", "name": name}
    if tool.kind == "hosted":
        if source == NAME:
            return {"type": tool.hosted["type"]}
        return {"type": "web_search"} if _searches_the_web(tool) else None
    return {"type": tool.kind, "name": name}


def _parallel(request: Request, options: EncodeOptions, notices: Notices) -> bool | None:
    if request.parallel_tool_calls is None or options.dialect.parallel_tool_calls:
        return request.parallel_tool_calls
    notices.dropped("parallel_tool_calls", "the upstream does not take it")
    return None


def _max_tokens(request: Request, options: EncodeOptions) -> int | None:
    limit = request.max_tokens
    if limit is None:
        return None
    if request.source != NAME:
        limit = max(limit, _MIN_OUTPUT_TOKENS)
    return min(limit, options.max_output_tokens) if options.max_output_tokens else limit


def _text(request: Request, options: EncodeOptions, notices: Notices) -> dict[str, Json] | None:
    text: dict[str, Json] = {}
    if request.output is not None and (
        form := _format(request.output, options.dialect.response_format, notices)
    ):
        text["format"] = form
    if request.verbosity is not None:
        text["verbosity"] = request.verbosity
    return text or None


def _format(output: Output, supported: str, notices: Notices) -> dict[str, Json] | None:
    if supported == "none":
        notices.dropped("structured output", "the upstream does not take it")
        return None
    if output.kind == "json_object":
        return {"type": "json_object"}
    if supported == "json_object":
        notices.dropped("json_schema", "the upstream takes plain JSON output only")
        return {"type": "json_object"}
    form: dict[str, Json] = {
        "type": "json_schema",
        "name": output.name or "answer",
        "schema": output.schema if output.schema is not None else {},
    }
    optional = {"strict": output.strict, "description": output.description}
    return form | {key: value for key, value in optional.items() if value is not None}


def _reasoning(request: Request, notices: Notices) -> dict[str, Json] | None:
    thinking = request.thinking
    if thinking is None:
        return None
    effort = _effort(thinking)
    if not thinking.enabled and effort is None:
        notices.dropped("thinking", "responses has no general way to switch it off")
        return None
    summary = thinking.summary
    if request.source != NAME and summary not in _SUMMARIES:
        # The `display` of messages (Anthropic docs, extended thinking: `summarized`) is not a value here.
        summary = "auto" if thinking.enabled and thinking.visible else None
    fields = {"effort": effort, "summary": summary}
    return {key: value for key, value in fields.items() if value is not None} or None


def _effort(thinking: Thinking) -> str | None:
    if thinking.effort is not None:
        return thinking.effort
    if not thinking.enabled or thinking.budget is None or thinking.budget < 0:
        return None
    levels = ((0, "none"), (4096, "low"), (16384, "medium"))
    return next((effort for largest, effort in levels if thinking.budget <= largest), "high")


def _metadata(request: Request, notices: Notices) -> dict[str, Json] | None:
    if not request.metadata or request.source == NAME:
        return request.metadata
    texts = {
        key: value if isinstance(value, str) else json.encode(value).decode()
        for key, value in request.metadata.items()
    }
    fitting = {k: v for k, v in texts.items() if len(k) <= _METADATA_KEY and len(v) <= _METADATA_VALUE}
    metadata = dict(list(fitting.items())[:_METADATA_PAIRS])
    if len(metadata) < len(texts):
        notices.dropped("metadata", "an entry is longer than responses takes, or there are too many")
    return metadata or None


def _user(request: Request) -> str | None:
    """Return the user, unless it was read from `safety_identifier`, which is sent by itself."""
    return short_id(request.user) if request.user and request.user != request.safety_identifier else None


def _tier(request: Request, notices: Notices) -> str | None:
    tier = request.service_tier
    if tier is None or request.source == NAME:
        return tier
    if tier not in _TIERS:
        notices.dropped(f"service_tier {tier[:40]!a}", "responses has no such tier")
    return _TIERS.get(tier)


def _include(request: Request) -> list[str]:
    include = []
    if request.logprobs or request.top_logprobs:
        include.append(LOGPROBS)
    # Requests of other protocols are not stored (`store: false`), so reasoning must come back encrypted.
    if request.source != NAME and request.thinking is not None and request.thinking.enabled:
        include.append(_ENCRYPTED)
    return include
