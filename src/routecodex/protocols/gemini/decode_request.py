"""Decodes a generateContent request into a canonical one."""

from __future__ import annotations

from msgspec.structs import replace

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Effort, Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.gemini.content import decode_media
from routecodex.protocols.gemini.field_names import camel_keys, to_json_schema, to_snake
from routecodex.protocols.gemini.thinking import REDACTED, unseal_signature
from routecodex.protocols.gemini.validate import CallMatcher
from routecodex.wire import json

TOOL_CONFIG, GENERATION_CONFIG = "toolConfig.", "generationConfig."
"""Prefixes of extras that come from inside these objects."""

_CANON_FIELDS = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "serviceTier", "model"}
)
_CONFIG_FIELDS = frozenset(
    {
        "maxOutputTokens",
        "temperature",
        "topP",
        "topK",
        "stopSequences",
        "seed",
        "presencePenalty",
        "frequencyPenalty",
        "candidateCount",
        "responseLogprobs",
        "logprobs",
        "thinkingConfig",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
    }
)
_OUTPUT_FIELDS = ("responseMimeType", "responseSchema", "responseJsonSchema")
_PART_FIELDS = frozenset({"text", "thought", "thoughtSignature", "functionCall", "functionResponse"})
_EFFORTS: dict[str, Effort] = {"MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}

_EMPTY_TEXT = Text("")
_WRAPPERS = ("result", "output")
"""Keys for a plain text result, because `response` must be an object (Google's docs, gemini-cli)."""


def decode_request(request: WireRequest) -> Request:
    """Return the canonical request; the body was validated before."""
    value = json.read_values(request.body)
    if request.view.snake:
        value = camel_keys(value)
    config = value.get("generationConfig") or {}
    extras = {name: inner for name, inner in value.items() if name not in _CANON_FIELDS and inner is not None}
    tool_config = value.get("toolConfig") or {}
    choice, tool_extras = _tool_choice(tool_config)
    output, config_extras = _output(config)
    # One extra per field, because the notices for other protocols name each dropped field.
    extras |= {f"{TOOL_CONFIG}{name}": inner for name, inner in tool_extras.items()}
    extras |= {f"{GENERATION_CONFIG}{name}": inner for name, inner in config_extras.items()}
    system, system_media = _system(value.get("systemInstruction"))
    return Request(
        model=request.model,
        messages=(*system_media, *_messages(_as_list(value["contents"]))),
        source="gemini",
        system=system,
        tools=tuple(tool for item in _as_list(value.get("tools")) for tool in _tools(item)),
        tool_choice=choice,
        max_tokens=config.get("maxOutputTokens") or None,
        temperature=config.get("temperature"),
        top_p=config.get("topP"),
        top_k=None if config.get("topK") is None else int(config["topK"]),
        stop=tuple(config.get("stopSequences") or ()),
        seed=config.get("seed"),
        frequency_penalty=config.get("frequencyPenalty"),
        presence_penalty=config.get("presencePenalty"),
        n=config.get("candidateCount") or 1,
        logprobs=config.get("responseLogprobs"),
        top_logprobs=config.get("logprobs"),
        output=output,
        thinking=_thinking(config.get("thinkingConfig")),
        service_tier=value.get("serviceTier"),
        stream=request.stream,
        include_usage=True,
        extras=extras or None,
    )


def _as_list(value: Json) -> list[Json]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _system(value: Json) -> tuple[tuple[Text, ...], tuple[Message, ...]]:
    """Return the system texts; other parts of the instruction (images) become a first user message."""
    if isinstance(value, str):
        return (Text(value),) if value else (), ()
    parts = _as_list(value.get("parts")) if isinstance(value, dict) else _as_list(value)
    texts = tuple(Text(part["text"]) for part in parts if part.get("text"))
    others = tuple(_plain_part(part) for part in parts if part.get("text") is None)
    return texts, ((Message("user", others),) if others else ())


def _messages(contents: list[dict[str, Json]]) -> list[Message]:
    matcher = CallMatcher()
    messages = []
    for at, content in enumerate(contents):
        model = content.get("role") == "model"
        if model:
            matcher.start_turn()
        listed = enumerate(_as_list(content.get("parts")))
        parts = tuple(_part(part, at=(at, position), matcher=matcher) for position, part in listed)
        results = all(isinstance(part, ToolResult) for part in parts)
        messages.append(Message("assistant" if model else "tool" if results else "user", parts))
    return _join_thoughts(messages)


def _join_thoughts(messages: list[Message]) -> list[Message]:
    """Return the messages with the text of each streamed thought beside its signature.

    A stream sends the text of a thought first and its signature in an empty part (see encode_stream).
    Google's SDKs send these parts back as they came, the Python SDK in one content per chunk.
    """
    changes: dict[tuple[int, int], Part | None] = {}
    thoughts: list[tuple[tuple[int, int], str]] = []
    for at, message in enumerate(messages):
        for position, part in enumerate(message.parts):
            if isinstance(part, Reasoning) and part.signature is None:
                thoughts.append(((at, position), part.text))
            elif isinstance(part, Reasoning) and thoughts and _is_signature_alone(part):
                changes |= dict.fromkeys(where for where, _ in thoughts)
                changes[at, position] = replace(part, text="".join(text for _, text in thoughts))
                thoughts = []
            elif part != _EMPTY_TEXT:
                thoughts = []
    return _with_changes(messages, changes) if changes else messages


def _is_signature_alone(part: Reasoning) -> bool:
    return not part.text and not part.redacted and part.origin is not None


def _with_changes(messages: list[Message], changes: dict[tuple[int, int], Part | None]) -> list[Message]:
    """Return the messages with some parts replaced or (None) removed, without messages that become empty."""
    changed = []
    for at, message in enumerate(messages):
        parts = (changes.get((at, position), part) for position, part in enumerate(message.parts))
        left = tuple(part for part in parts if part is not None)
        if left or not message.parts:
            changed.append(replace(message, parts=left))
    return changed


def _part(part: dict[str, Json], *, at: tuple[int, int], matcher: CallMatcher) -> Part:
    call = part.get("functionCall")
    if call is not None:
        return _call(part, matcher.call(call["name"], id=call.get("id"), at=at))
    result = part.get("functionResponse")
    if result is not None:
        id = matcher.result(result.get("name"), id=result.get("id"))
        # Without a match (cached contents only), the call is in the cache.
        call_id = id or result.get("id") or f"call_{at[0]}_{at[1]}"
        return _result(result, call_id, name=result.get("name") or matcher.name(call_id))
    return _plain_part(part)


def _plain_part(part: dict[str, Json]) -> Text | Reasoning | Media | Opaque:
    media = decode_media(part)
    if media is not None:
        return media
    signature = part.get("thoughtSignature")
    text = part.get("text")
    if text is None and (signature is None or len(part) > 1):
        return Opaque("gemini", part)
    extras = _rest(part)
    if part.get("thought"):
        origin, own = unseal_signature(signature) if signature else (None, None)
        redacted = own is not None and origin is not None and own.startswith(REDACTED)
        own = own.removeprefix(REDACTED) if own is not None and redacted else own
        return Reasoning(text or "", signature=own, redacted=redacted, origin=origin, extras=extras)
    # Text has no field for the owner of its signature, so the signature stays sealed.
    return Text(text or "", signature=signature, extras=extras)


def _call(part: dict[str, Json], id: str) -> ToolCall:
    call = part["functionCall"]
    signature = part.get("thoughtSignature")
    origin, own = unseal_signature(signature) if signature else (None, None)
    arguments = json.encode(call.get("args") or {}).decode()
    return ToolCall(id, call["name"], arguments, signature=own, origin=origin, extras=_rest(part))


def _rest(part: dict[str, Json]) -> dict[str, Json] | None:
    return {name: value for name, value in part.items() if name not in _PART_FIELDS} or None


def _result(result: dict[str, Json], id: str, *, name: str | None) -> ToolResult:
    response = result.get("response") or {}
    key, value = next(iter(response.items())) if len(response) == 1 else ("", None)
    extras = {name: value for name, value in result.items() if name in ("willContinue", "scheduling")}
    is_error = key == "error" and isinstance(value, str)
    if isinstance(value, str) and (is_error or key in _WRAPPERS):
        text = value
        if key == "output":
            extras["wrapper"] = key
    else:
        text = json.encode(response).decode()
    media = (_plain_part(part) for part in result.get("parts") or ())
    parts = (Text(text), *(part for part in media if isinstance(part, Text | Media | Opaque)))
    return ToolResult(id, parts, is_error=is_error, name=name, extras=extras or None)


def _tools(tool: dict[str, Json]) -> list[Tool]:
    tools = []
    for name, value in tool.items():
        if name == "functionDeclarations":
            tools += [_function(function) for function in _as_list(value)]
        elif value is not None:
            tools.append(Tool(to_snake(name), "hosted", hosted={name: value}))
    return tools


def _function(function: dict[str, Json]) -> Tool:
    fields = ("name", "description", "parameters", "parametersJsonSchema")
    schema = function.get("parametersJsonSchema")
    if schema is None:
        schema = to_json_schema(function.get("parameters"))
    extras = {name: value for name, value in function.items() if name not in fields}
    return Tool(
        function["name"],
        description=function.get("description"),
        parameters=schema,
        extras=extras or None,
    )


def _tool_choice(config: dict[str, Json]) -> tuple[ToolChoice | None, dict[str, Json]]:
    """Return the choice, and the other fields of the tool config."""
    extras = {name: value for name, value in config.items() if name != "functionCallingConfig"}
    calling = config.get("functionCallingConfig") or {}
    mode = (calling.get("mode") or "").upper()
    names = tuple(calling.get("allowedFunctionNames") or ())
    if mode == "VALIDATED":
        extras["functionCallingConfig"] = calling
        return ToolChoice("auto"), extras
    if mode == "ANY":
        return ToolChoice("tool" if len(names) == 1 else "required", names), extras
    if mode == "NONE":
        return ToolChoice("none"), extras
    return (ToolChoice("auto") if mode == "AUTO" else None), extras


def _output(config: dict[str, Json]) -> tuple[Output | None, dict[str, Json]]:
    """Return the structured output, and the fields of the generation config that canon does not have."""
    extras = {
        name: value for name, value in config.items() if name not in _CONFIG_FIELDS and value is not None
    }
    kind = config.get("responseMimeType")
    if kind not in (None, "application/json", "text/plain"):
        extras.update({name: config[name] for name in _OUTPUT_FIELDS if config.get(name) is not None})
        return None, extras
    schema = config.get("responseJsonSchema")
    if schema is None:
        schema = to_json_schema(config.get("responseSchema"))
    if schema is not None:
        return Output("json_schema", schema=schema), extras
    return (Output("json_object") if kind == "application/json" else None), extras


def _thinking(config: Json) -> Thinking | None:
    if not config:
        return None
    visible = bool(config.get("includeThoughts"))
    budget = config.get("thinkingBudget")
    effort = _EFFORTS.get((config.get("thinkingLevel") or "").upper())
    # Google's docs, thinking: a budget of 0 turns thinking off, -1 lets the model choose.
    if budget == 0:
        return Thinking(enabled=False, visible=visible)
    if budget == -1:
        return Thinking(effort=effort, adaptive=True, visible=visible)
    return Thinking(effort=effort, budget=budget, visible=visible)
