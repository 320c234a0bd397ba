"""Encodes a canonical request as a generateContent or countTokens request.

Notices name the fields that Gemini does not have.
"""

from __future__ import annotations

from msgspec import Raw

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.canon.request import Request, Tool, ToolChoice
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.gemini.decode_request import GENERATION_CONFIG, TOOL_CONFIG
from routecodex.protocols.gemini.encode_messages import Contents, legal_name
from routecodex.protocols.gemini.field_names import to_camel, to_gemini_parameters, to_gemini_schema
from routecodex.protocols.gemini.rewrite import rewrite
from routecodex.protocols.gemini.schema import RequestView
from routecodex.protocols.gemini.thinking import model_traits, thinking_config
from routecodex.protocols.lost_fields import SERVER_HINTS, lost_fields, reject_provider_state
from routecodex.protocols.tool_mapping import CUSTOM_PARAMETERS, description_of, distinct_names
from routecodex.wire import json

# Limits of Google's API reference, GenerationConfig.
_MAX_STOPS = 5
_MAX_LOGPROBS = 20
_TIERS = {"flex": "flex", "priority": "priority", "standard": "standard", "default": "standard"}
_SILENT_TIERS = frozenset({"auto", "standard_only", "unspecified"})
_UNSUPPORTED = {
    "verbosity": "Gemini has no such setting",
    "metadata": "Gemini takes no metadata",
    "user": "Gemini takes no user ids",
    "cache_key": "Gemini caches prefixes by itself",
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}


def encode_request(request: Request, options: EncodeOptions) -> EncodedRequest:
    """Return the request for a Gemini upstream."""
    notices = Notices()
    body = encode_body(request, options, notices=notices)
    return EncodedRequest(json.encode(body), notices.lines())


def encode_body(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    """Return the request body as an object."""
    reject_provider_state(request)
    request = distinct_names(request)
    same = request.source == "gemini"
    if request.n > 1 and not (same and options.dialect.n):
        raise BadRequest("n: this upstream gives one answer per request", param="n", code="unsupported_value")
    body = _conversation(request, options, notices=notices)
    tools = _tools(request, notices=notices)
    if tools:
        body["tools"] = tools
    config = _tool_config(request, options, notices=notices)
    if config:
        body["toolConfig"] = config
    generation = _generation(request, options, notices=notices)
    if generation:
        body["generationConfig"] = generation
    _tier(request, body, notices=notices)
    _extras(request, body, notices=notices)
    for name, reason in _UNSUPPORTED.items():
        if getattr(request, name) is not None:
            notices.dropped(name, reason)
    if request.parallel_tool_calls is False:
        notices.dropped("parallel_tool_calls", "Gemini may always call several tools")
    _drop_unsupported(body, options, notices=notices)
    return body


def _conversation(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    texts = [part.text for part in request.system if part.text]
    if any(part.cache is not None for part in request.system):
        notices.dropped("cache_control", "Gemini caches prefixes by itself")
    contents = Contents(request, options, notices=notices)
    if options.dialect.merge_system or not request.messages:
        return {"contents": contents.build(request.messages, system="\n\n".join(texts))}
    fields: dict[str, Json] = {"contents": contents.build(request.messages)}
    if texts:
        fields["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    return fields


def _tools(request: Request, *, notices: Notices) -> list[Json]:
    same = request.source == "gemini"
    functions = []
    hosted: list[Json] = []
    for tool in request.tools:
        if tool.cache is not None:
            notices.dropped("cache_control", "Gemini caches prefixes by itself")
        if tool.kind != "hosted":
            functions.append(_function(tool, same=same, notices=notices))
        elif same:
            hosted.append(tool.hosted)
        else:
            notices.dropped(f"tool {tool.name}", f"hosted by a provider of {request.source}")
    return ([{"functionDeclarations": functions}] if functions else []) + hosted


def _function(tool: Tool, *, same: bool, notices: Notices) -> dict[str, Json]:
    if tool.strict:
        notices.dropped("strict", "Gemini has no strict tools")
    function: dict[str, Json] = {"name": legal_name(tool.name, tool.namespace)}
    description = description_of(tool)
    if description:
        function["description"] = description
    custom = tool.kind == "custom"
    parameters = CUSTOM_PARAMETERS if custom else to_gemini_parameters(tool.parameters)
    if parameters is not None:
        function["parametersJsonSchema"] = parameters
    if same and tool.extras:
        function.update(tool.extras)
    return function


def _tool_config(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    config = _config_extras(TOOL_CONFIG, request)
    choice = request.tool_choice
    offered = [tool for tool in request.tools if tool.kind != "hosted"]
    if choice is None or "functionCallingConfig" in config:
        return config
    if not offered:
        if choice.forces:
            notices.dropped("tool_choice", "there are no tools to choose from")
        return config
    mode = _mode(choice, options, notices=notices)
    calling: dict[str, Json] = {"mode": mode}
    by_name: dict[str, list[str]] = {}
    for tool in offered:
        by_name.setdefault(tool.name, []).append(legal_name(tool.name, tool.namespace))
    names = [name for chosen in dict.fromkeys(choice.names) for name in by_name.get(chosen, ())]
    if choice.names and not names:
        notices.dropped("tool_choice", "the tool it names is not on offer here")
        return config
    if names and mode == "ANY":
        calling["allowedFunctionNames"] = names
    config["functionCallingConfig"] = calling
    return config


def _mode(choice: ToolChoice, options: EncodeOptions, *, notices: Notices) -> str:
    mode = _MODES[choice.mode]
    if options.dialect.tool_choice == "full" or mode == "AUTO":
        return mode
    if mode == "ANY" or options.dialect.tool_choice == "auto_only":
        notices.dropped("tool_choice", "this provider decides by itself")
        return "AUTO"
    return mode


def _generation(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    limit = request.max_tokens
    if limit is not None and options.max_output_tokens is not None:
        limit = min(limit, options.max_output_tokens)
    if len(request.stop) > _MAX_STOPS:
        notices.dropped("stop", f"Gemini takes {_MAX_STOPS} stop sequences at most")
    fields: dict[str, Json] = {
        "maxOutputTokens": limit,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "stopSequences": list(request.stop[:_MAX_STOPS]) or None,
        "seed": request.seed,
        "presencePenalty": request.presence_penalty,
        "frequencyPenalty": request.frequency_penalty,
        "candidateCount": request.n if request.n > 1 else None,
        "responseLogprobs": request.logprobs or None,
        "logprobs": None if not request.top_logprobs else min(request.top_logprobs, _MAX_LOGPROBS),
        **_output(request, options, notices=notices),
        "thinkingConfig": _thinking(request, options, notices=notices),
    }
    return {name: value for name, value in fields.items() if value is not None} | _config_extras(
        GENERATION_CONFIG, request
    )


def _output(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    output = request.output
    if output is None:
        return {}
    calls = any(tool.kind != "hosted" for tool in request.tools)
    if calls and request.source != "gemini" and not model_traits(options.model).json_with_tools:
        notices.dropped("response_format", "this model takes no JSON output together with tools")
        return {}
    if options.dialect.response_format == "none":
        notices.dropped("response_format", "this provider has no structured output")
        return {}
    fields: dict[str, Json] = {"responseMimeType": "application/json"}
    if output.kind == "json_schema" and options.dialect.response_format == "json_schema":
        fields["responseJsonSchema"] = to_gemini_schema(output.schema)
    elif output.kind == "json_schema":
        notices.dropped("json_schema", "this provider takes JSON without a schema only")
    return fields


def _thinking(request: Request, options: EncodeOptions, *, notices: Notices) -> dict[str, Json] | None:
    thinking = request.thinking
    if thinking is None:
        return None
    if options.dialect.reasoning_field == "none" or not model_traits(options.model).thinks:
        if thinking.enabled:
            notices.dropped("thinking", "this model does not think")
        return None
    return thinking_config(thinking, options.model) or None


def _tier(request: Request, body: dict[str, Json], *, notices: Notices) -> None:
    tier = request.service_tier
    if tier is None:
        return
    known = tier if request.source == "gemini" else _TIERS.get(tier)
    if known is not None:
        body["serviceTier"] = known
    elif tier not in _SILENT_TIERS:
        notices.dropped("service_tier", "Gemini has no such tier")


def _extras(request: Request, body: dict[str, Json], *, notices: Notices) -> None:
    for field in lost_fields(request) if request.source != "gemini" else ():
        notices.dropped(field, f"only {request.source} has it")
    for name, value in (request.extras or {}).items():
        if request.source == "gemini":
            if not name.startswith((TOOL_CONFIG, GENERATION_CONFIG)):
                body.setdefault(name, value)
        elif name not in SERVER_HINTS:
            notices.dropped(name, f"only {request.source} has it")


def _config_extras(config: str, request: Request) -> dict[str, Json]:
    """Return the fields of this config that a Gemini client sent and canon does not have."""
    extras = (request.extras or {}).items() if request.source == "gemini" else ()
    return {name.removeprefix(config): value for name, value in extras if name.startswith(config)}


def _drop_unsupported(body: dict[str, Json], options: EncodeOptions, *, notices: Notices) -> None:
    """Remove fields that this provider does not support, at the top or in the generation config."""
    for name in options.dialect.unsupported:
        for fields in (body, body.get("generationConfig") or {}):
            if fields.pop(name, None) is not None:
                notices.dropped(name, "this provider does not take it")


def encode_count(request: Request, options: EncodeOptions) -> bytes:
    """Return the body of a countTokens request for a canonical request."""
    body = {"model": _resource(options.model), **encode_body(request, options, notices=Notices())}
    return json.encode({"generateContentRequest": body})


def rewrite_count(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Return a Gemini client's countTokens request for a Gemini provider."""
    view: RequestView = request.view
    rewritten = rewrite(request, options)
    fields = json.read_fields(rewritten.body)
    if not view.counted and fields.keys() == {"contents"}:
        return rewritten
    # In camelCase, so that a field sent in both spellings goes out once.
    inner = {to_camel(name): value for name, value in fields.items()}
    inner = {"model": Raw(json.encode(_resource(options.model))), **inner}
    return EncodedRequest(json.encode({"generateContentRequest": inner}), rewritten.notices)


def count_path(model: str) -> str:
    """Return the path of a countTokens request, below the provider's base URL."""
    return f"/v1beta/{_resource(model)}:countTokens"


def _resource(model: str) -> str:
    return f"models/{model.removeprefix('models/')}"
