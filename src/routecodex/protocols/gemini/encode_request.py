"""Canon to a generateContent request, for whatever protocol the client speaks.

countTokens: a generateContent request, counted instead of answered.
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
from routecodex.protocols.tool_mapping import CUSTOM_PARAMETERS, description_of
from routecodex.wire import json

_MAX_STOPS = 5
_MAX_LOGPROBS = 20
_TIERS = {"flex": "flex", "priority": "priority", "standard": "standard", "default": "standard"}
_SILENT_TIERS = frozenset({"auto", "standard_only", "unspecified"})
_NO_HOME = {
    "verbosity": "Gemini has no such setting",
    "metadata": "Gemini takes no metadata",
    "user": "Gemini takes no user ids",
    "cache_key": "Gemini caches prefixes by itself",
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}


def encode_request(request: Request, aim: EncodeOptions) -> EncodedRequest:
    """The request as Gemini takes it; notices name what could not be said."""
    notices = Notices()
    body = encode_body(request, aim, notices=notices)
    return EncodedRequest(json.encode(body), notices.lines())


def encode_body(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    """The request as an object."""
    reject_provider_state(request)
    same = request.source == "gemini"
    if request.n > 1 and not (same and aim.dialect.n):
        raise BadRequest("n: this upstream gives one answer per request", param="n", code="unsupported_value")
    body = _conversation(request, aim, notices=notices)
    tools = _tools(request, notices=notices)
    if tools:
        body["tools"] = tools
    config = _tool_config(request, aim, notices=notices)
    if config:
        body["toolConfig"] = config
    generation = _generation(request, aim, notices=notices)
    if generation:
        body["generationConfig"] = generation
    _tier(request, body, notices=notices)
    _extras(request, body, notices=notices)
    for name, why in _NO_HOME.items():
        if getattr(request, name) is not None:
            notices.dropped(name, why)
    if request.parallel_tool_calls is False:
        notices.dropped("parallel_tool_calls", "Gemini may always call several tools")
    _leave_out(body, aim, notices=notices)
    return body


def _conversation(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    texts = [part.text for part in request.system if part.text]
    if any(part.cache is not None for part in request.system):
        notices.dropped("cache_control", "Gemini caches prefixes by itself")
    contents = Contents(request, aim, notices=notices)
    if aim.dialect.merge_system or not request.messages:
        return {"contents": contents.build(request.messages, opening="\n\n".join(texts))}
    built: dict[str, Json] = {"contents": contents.build(request.messages)}
    if texts:
        built["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    return built


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
    declared: dict[str, Json] = {"name": legal_name(tool.name, tool.namespace)}
    description = description_of(tool)
    if description:
        declared["description"] = description
    custom = tool.kind == "custom"
    parameters = CUSTOM_PARAMETERS if custom else to_gemini_parameters(tool.parameters)
    if parameters is not None:
        declared["parametersJsonSchema"] = parameters
    if same and tool.extras:
        declared.update(tool.extras)
    return declared


def _tool_config(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    config = _inside(TOOL_CONFIG, request)
    choice = request.tool_choice
    offered = {tool.name: tool for tool in request.tools if tool.kind != "hosted"}
    if choice is None or "functionCallingConfig" in config:
        return config
    if not offered:
        if choice.forces:
            notices.dropped("tool_choice", "there are no tools to choose from")
        return config
    mode = _mode(choice, aim, notices=notices)
    calling: dict[str, Json] = {"mode": mode}
    names = [legal_name(name, offered[name].namespace) for name in choice.names if name in offered]
    if choice.names and not names:
        notices.dropped("tool_choice", "the tool it names is not on offer here")
        return config
    if names and mode == "ANY":
        calling["allowedFunctionNames"] = names
    config["functionCallingConfig"] = calling
    return config


def _mode(choice: ToolChoice, aim: EncodeOptions, *, notices: Notices) -> str:
    mode = _MODES[choice.mode]
    if aim.dialect.tool_choice == "full" or mode == "AUTO":
        return mode
    if mode == "ANY" or aim.dialect.tool_choice == "auto_only":
        notices.dropped("tool_choice", "this provider decides by itself")
        return "AUTO"
    return mode


def _generation(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    limit = request.max_tokens
    if limit is not None and aim.max_output_tokens is not None:
        limit = min(limit, aim.max_output_tokens)
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
        **_output(request, aim, notices=notices),
        "thinkingConfig": _thinking(request, aim, notices=notices),
    }
    return {name: value for name, value in fields.items() if value is not None} | _inside(
        GENERATION_CONFIG, request
    )


def _output(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json]:
    output = request.output
    if output is None:
        return {}
    calls = any(tool.kind != "hosted" for tool in request.tools)
    if calls and request.source != "gemini" and not model_traits(aim.model).json_with_tools:
        notices.dropped("response_format", "this model takes no JSON output together with tools")
        return {}
    if aim.dialect.response_format == "none":
        notices.dropped("response_format", "this provider has no structured output")
        return {}
    fields: dict[str, Json] = {"responseMimeType": "application/json"}
    if output.kind == "json_schema" and aim.dialect.response_format == "json_schema":
        fields["responseJsonSchema"] = to_gemini_schema(output.schema)
    elif output.kind == "json_schema":
        notices.dropped("json_schema", "this provider takes JSON without a schema only")
    return fields


def _thinking(request: Request, aim: EncodeOptions, *, notices: Notices) -> dict[str, Json] | None:
    thinking = request.thinking
    if thinking is None:
        return None
    if aim.dialect.reasoning_field == "none" or not model_traits(aim.model).thinks:
        if thinking.enabled:
            notices.dropped("thinking", "this model does not think")
        return None
    return thinking_config(thinking, aim.model) or None


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


def _inside(config: str, request: Request) -> dict[str, Json]:
    """What a Gemini client said in this config that has no home in canon."""
    said = (request.extras or {}).items() if request.source == "gemini" else ()
    return {name.removeprefix(config): value for name, value in said if name.startswith(config)}


def _leave_out(body: dict[str, Json], aim: EncodeOptions, *, notices: Notices) -> None:
    """Fields this provider refuses, at the top or in the generation config."""
    for name in aim.dialect.unsupported:
        for place in (body, body.get("generationConfig") or {}):
            if place.pop(name, None) is not None:
                notices.dropped(name, "this provider does not take it")


def encode_count(request: Request, aim: EncodeOptions) -> bytes:
    """The body of a countTokens request for a request in canon."""
    body = {"model": _resource(aim.model), **encode_body(request, aim, notices=Notices())}
    return json.encode({"generateContentRequest": body})


def rewrite_count(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """A Gemini client's countTokens request for a Gemini provider."""
    view: RequestView = inbound.wire
    rewritten = rewrite(inbound, aim)
    fields = json.read_fields(rewritten.body)
    if not view.counted and fields.keys() == {"contents"}:
        return rewritten
    named = {"model": Raw(json.encode(_resource(aim.model))), **_without_twins(fields)}
    return EncodedRequest(json.encode({"generateContentRequest": named}), rewritten.notices)


def count_path(model: str) -> str:
    """Where a countTokens request goes, below the provider's base URL."""
    return f"/v1beta/{_resource(model)}:countTokens"


def _without_twins(fields: dict[str, Raw]) -> dict[str, Raw]:
    """The fields by their camelCase names: one spelling, so that none is said twice."""
    return {to_camel(name): value for name, value in fields.items()}


def _resource(model: str) -> str:
    return f"models/{model.removeprefix('models/')}"
