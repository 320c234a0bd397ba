"""Decodes a client's chat request into the canonical request."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Effort, Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.chat.validate import UNLIMITED
from routecodex.protocols.codec import WireRequest
from routecodex.wire import json

_BODY_FIELDS = frozenset(
    [
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "n",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "parallel_tool_calls",
        "response_format",
        "reasoning_effort",
        "reasoning",
        "thinking",
        "enable_thinking",
        "thinking_budget",
        "verbosity",
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
    ]
)

_MESSAGE_FIELDS = frozenset(
    [
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "refusal",
    ]
)

REASONING_FIELDS = ("reasoning_details", "reasoning_content", "reasoning")
"""Reasoning in an assistant message: the first and last are OpenRouter's, the second is DeepSeek's."""

MESSAGE_EXTRAS = "chat.message"
"""Key in the `extras` of a system text: other fields of its message; None if it continues the last one."""

TOOL_EXTRAS = "chat.tool"
"""Key in the `extras` of a tool: fields beside its function."""

_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})
_TOOL_FIELDS = frozenset({"type", "function", "cache_control"})
_REASONING_KEYS = frozenset({"effort", "max_tokens", "enabled"})
_CHOICES = {
    "auto": ToolChoice("auto"),
    "none": ToolChoice("none"),
    "required": ToolChoice("required"),
    "any": ToolChoice("required"),
}
"""Modes of `tool_choice`; `any` is Mistral's name of `required`."""

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


def decode_request(request: WireRequest) -> Request:
    """Decode a validated request."""
    body = json.read_values(request.body)
    system, messages = _split_system([_message(item, at) for at, item in enumerate(body["messages"])])
    stop = body.get("stop")
    return Request(
        model=request.model,
        source="chat",
        system=system,
        messages=messages,
        tools=_tools(body),
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.get("parallel_tool_calls"),
        max_tokens=_max_tokens(body.get("max_completion_tokens") or body.get("max_tokens")),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        seed=body.get("seed"),
        frequency_penalty=body.get("frequency_penalty"),
        presence_penalty=body.get("presence_penalty"),
        n=body.get("n") or 1,
        logprobs=body.get("logprobs"),
        top_logprobs=body.get("top_logprobs"),
        output=_output(body.get("response_format")),
        verbosity=body.get("verbosity"),
        thinking=_thinking(body),
        metadata=body.get("metadata"),
        user=body.get("user") or body.get("safety_identifier"),
        safety_identifier=body.get("safety_identifier"),
        cache_key=body.get("prompt_cache_key"),
        service_tier=body.get("service_tier"),
        stream=request.stream,
        include_usage=request.include_usage,
        extras={
            **(_unknown_fields(body, _BODY_FIELDS) or {}),
            **_unknown_reasoning(body),
            **_second_user(body),
        }
        or None,
    )


def _max_tokens(value: int | None) -> int | None:
    return None if value == UNLIMITED else value


def _split_system(messages: list[Message]) -> tuple[tuple[Text, ...], tuple[Message, ...]]:
    """Split off the leading system messages; later ones stay in place."""
    at = 0
    system: list[Text] = []
    while at < len(messages) and messages[at].role == "system":
        system.extend(_system(messages[at]))
        at += 1
    return tuple(system), tuple(messages[at:])


def _system(message: Message) -> list[Text]:
    """Return the texts of a system message, with the extras needed to rebuild the message."""
    texts = [part for part in message.parts if isinstance(part, Text) and part.text]
    if len(texts) < 2 and not message.name and not message.extras:
        return texts
    head = {**({"name": message.name} if message.name else {}), **(message.extras or {})}
    if texts and head:
        texts[0] = _with_message_extras(texts[0], head)
    return [*texts[:1], *(_with_message_extras(text, None) for text in texts[1:])]


def _with_message_extras(text: Text, head: Json) -> Text:
    return replace(text, extras={**(text.extras or {}), MESSAGE_EXTRAS: head})


def _message(item: dict[str, Any], at: int) -> Message:
    role = item["role"]
    extras = _unknown_fields(item, _MESSAGE_FIELDS)
    if role in ("tool", "function"):
        # The role `function` and `function_call` (OpenAI, before `tool_calls`) have no ids.
        call_id = item.get("tool_call_id") or f"call_{item.get('name', at)}"
        inner = tuple(
            part for part in _content(item.get("content")) if isinstance(part, Text | Media | Opaque)
        )
        return Message("tool", (ToolResult(call_id, inner, name=item.get("name")),), extras=extras)
    if role == "assistant":
        return Message("assistant", _assistant(item, at), name=item.get("name"), extras=extras)
    return Message(
        "user" if role == "user" else "system",
        tuple(_content(item.get("content"))),
        name=item.get("name"),
        extras=extras,
    )


def _assistant(item: dict[str, Any], at: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    reasoning = item.get("reasoning_content") or item.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        parts.append(Reasoning(reasoning))
    parts.extend(_content(item.get("content")))
    if item.get("refusal"):
        parts.append(Refusal(item["refusal"]))
    parts.extend(_call(call) for call in item.get("tool_calls") or ())
    legacy = item.get("function_call")
    if legacy:
        parts.append(ToolCall(f"call_{legacy['name']}", legacy["name"], _arguments(legacy.get("arguments"))))
    return tuple(parts)


def _call(call: dict[str, Any]) -> ToolCall:
    if call.get("custom"):
        return ToolCall(call["id"], call["custom"]["name"], call["custom"].get("input", ""), custom=True)
    function = call["function"]
    return ToolCall(
        call["id"],
        function["name"],
        _arguments(function.get("arguments")),
        extras=_unknown_fields(call, frozenset({"id", "type", "function", "index"})),
    )


def _arguments(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.encode(value).decode()


def _content(content: Json) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content else []
    return [_part(item) for item in content]


def _part(item: dict[str, Any]) -> Part:
    kind = item["type"]
    if kind == "text" and item.get("text") is not None:
        return Text(
            item["text"],
            cache=item.get("cache_control"),
            extras=_unknown_fields(item, frozenset({"type", "text", "cache_control"})),
        )
    if kind == "refusal" and item.get("refusal"):
        return Refusal(item["refusal"])
    decode_media = _MEDIA_DECODERS.get(kind)
    if decode_media is None or item.get(kind) is None:
        return Opaque("chat", item)
    return decode_media(item)


def _image(item: dict[str, Any]) -> Media:
    source = item["image_url"]
    url = source if isinstance(source, str) else source["url"]
    detail = None if isinstance(source, str) else source.get("detail")
    return _media_from_url("image", url, detail=detail, cache=item.get("cache_control"))


def _video(item: dict[str, Any]) -> Media:
    source = item["video_url"]
    return _media_from_url("video", source if isinstance(source, str) else source["url"])


def _audio(item: dict[str, Any]) -> Media:
    audio = item["input_audio"]
    return Media("audio", media_type=f"audio/{audio.get('format') or 'wav'}", data=audio["data"])


def _file(item: dict[str, Any]) -> Media:
    file = item["file"]
    name = file.get("filename")
    if file.get("file_data"):
        # OpenRouter accepts a URL here (OpenRouter docs, PDF inputs), and pydantic-ai sends one.
        if file["file_data"].startswith(("https://", "http://")):
            return Media("file", url=file["file_data"], name=name, cache=item.get("cache_control"))
        media = _media_from_url("file", file["file_data"], cache=item.get("cache_control"))
        return Media(
            "file",
            media_type=media.media_type or "application/pdf",
            data=media.data or file["file_data"],
            name=name,
            cache=media.cache,
        )
    return Media("file", file_id=file.get("file_id"), name=name, cache=item.get("cache_control"))


_MEDIA_DECODERS = {"image_url": _image, "video_url": _video, "input_audio": _audio, "file": _file}


def _media_from_url(kind: Any, url: str, *, detail: str | None = None, cache: Json = None) -> Media:
    """Return media by URL; a `data:` URL becomes inline data."""
    if url.startswith("data:"):
        head, comma, data = url.partition(",")
        media_type = head[5:].split(";", 1)[0] or None
        if comma and head.endswith(";base64"):
            return Media(kind, media_type=media_type, data=data, detail=detail, cache=cache)
    return Media(kind, url=url, detail=detail, cache=cache)


def _tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    tools = [_tool(item) for item in body.get("tools") or ()]
    tools.extend(_function(item, {}) for item in body.get("functions") or ())
    return tuple(tools)


def _tool(item: dict[str, Any]) -> Tool:
    kind = item.get("type", "function")
    if kind == "function":
        return _function(item["function"], item)
    if kind == "custom":
        custom = item["custom"]
        beside = _unknown_fields(item, frozenset({"type", "custom"}))
        return Tool(
            custom["name"],
            "custom",
            description=custom.get("description"),
            format=custom.get("format"),
            extras={TOOL_EXTRAS: beside} if beside else None,
        )
    return Tool(kind, "hosted", hosted=item)


def _function(function: dict[str, Any], outer: dict[str, Any]) -> Tool:
    beside = _unknown_fields(outer, _TOOL_FIELDS) if len(outer) > 2 or "type" not in outer else None
    own = _unknown_fields(function, _FUNCTION_FIELDS)
    return Tool(
        function["name"],
        description=function.get("description"),
        parameters=function.get("parameters"),
        strict=function.get("strict"),
        cache=outer.get("cache_control"),
        extras={**(own or {}), TOOL_EXTRAS: beside} if beside else own,
    )


def _tool_choice(body: dict[str, Any]) -> ToolChoice | None:
    choice = body.get("tool_choice", body.get("function_call"))
    if choice is None:
        return None
    if isinstance(choice, str):
        return _CHOICES.get(choice, _CHOICES["auto"])
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        names = tuple(name for tool in allowed.get("tools", ()) if (name := _tool_name(tool)))
        return ToolChoice("required" if allowed.get("mode") == "required" else "auto", names)
    name = _tool_name(choice)
    return ToolChoice("tool", (name,)) if name else ToolChoice("auto")


def _tool_name(choice: dict[str, Any]) -> str | None:
    inner = choice.get("function") or choice.get("custom") or choice
    return inner.get("name") if isinstance(inner, dict) else None


def _output(value: dict[str, Any] | None) -> Output | None:
    if value is None or value["type"] == "text":
        return None
    if value["type"] != "json_schema":
        return Output("json_object")
    schema = value.get("json_schema") or {}
    return Output(
        "json_schema",
        name=schema.get("name"),
        schema=schema.get("schema"),
        strict=schema.get("strict"),
        description=schema.get("description"),
    )


def _thinking(body: dict[str, Any]) -> Thinking | None:
    """Return the thinking settings from the fields of several vendors.

    `reasoning_effort` is OpenAI's, `reasoning` OpenRouter's, `thinking` that of Z.ai, DeepSeek and Kimi,
    `enable_thinking` with `thinking_budget` Qwen's.
    """
    reasoning, thinking = _object(body, "reasoning"), _object(body, "thinking")
    effort = body.get("reasoning_effort") or reasoning.get("effort")
    if _is_effort(effort):
        return Thinking(enabled=effort != "none", effort=cast(Effort, effort))
    budget = _budget(reasoning, "max_tokens")
    if budget:
        return Thinking(budget=budget)
    if isinstance(reasoning.get("enabled"), bool):
        return Thinking(enabled=reasoning["enabled"])
    if thinking:
        return Thinking(enabled=thinking.get("type") != "disabled", budget=_budget(thinking, "budget_tokens"))
    if isinstance(body.get("enable_thinking"), bool):
        return Thinking(enabled=body["enable_thinking"], budget=_budget(body, "thinking_budget"))
    return None


def _unknown_reasoning(body: dict[str, Any]) -> dict[str, Json]:
    """Return thinking settings without a place in the canonical request, such as an unknown effort."""
    unknown: dict[str, Json] = {}
    reasoning, effort = _object(body, "reasoning"), body.get("reasoning_effort")
    if not reasoning and effort is None:
        return unknown
    more = _unknown_fields(reasoning, _REASONING_KEYS) or {}
    if isinstance(reasoning.get("effort"), str) and not _is_effort(reasoning["effort"]):
        more["effort"] = reasoning["effort"]
    if more:
        unknown["reasoning"] = more
    if effort is not None and not _is_effort(effort):
        unknown["reasoning_effort"] = effort
    return unknown


def _is_effort(value: Json) -> bool:
    return isinstance(value, str) and value in _EFFORTS


def _second_user(body: dict[str, Any]) -> dict[str, Json]:
    """Return `safety_identifier` where `user` takes its place in the canonical request."""
    both = body.get("user") and body.get("safety_identifier")
    return {"safety_identifier": body["safety_identifier"]} if both else {}


def _object(body: dict[str, Any], field: str) -> dict[str, Any]:
    value = body.get(field)
    return value if isinstance(value, dict) else {}


def _budget(value: dict[str, Any], field: str) -> int | None:
    found = value.get(field)
    return found if type(found) is int else None


def _unknown_fields(value: dict[str, Any], known: frozenset[str]) -> dict[str, Json] | None:
    """Return the fields without a place in the canonical request."""
    return {key: item for key, item in value.items() if key not in known} or None
