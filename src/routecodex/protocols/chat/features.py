"""Reads the features of a chat request that routing uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols import large_body
from routecodex.protocols.chat.schema import (
    RequestBody,
    WireFunctionCall,
    WireMessage,
    WireTool,
    WireToolCall,
    WireToolChoice,
)
from routecodex.protocols.chat.validate import SYSTEM_ROLES, RequestView, read_content
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.message_features import (
    ARGUMENTS_KEPT,
    ASSISTANT,
    SHORT_CONVERSATION,
    SYSTEM,
    TOOL,
    MessageFeatures,
    TextValue,
    conversation_fingerprint,
    first_user_texts,
    is_hosted_search,
    is_search_tool,
    last_index,
    newest_message,
    system_opening,
    text_message,
    user_excerpt,
    user_message,
)
from routecodex.wire import json
from routecodex.wire.json import ABSENT

# Beside chat's own types: those of the Responses API, which some clients send to both.
_MEDIA = frozenset({"image_url", "video_url", "image", "video", "input_image", "input_video"})
_ATTACHMENTS = _MEDIA | {"file", "input_audio", "audio"}


def features(request: WireRequest) -> RequestFeatures:
    """Return the features of a request; only its newest messages are read."""
    view: RequestView = request.view
    wire, messages, tools = view.fields, view.messages(), view.tools()
    newest, message = newest_message(messages, _feature_reader(request))
    last = last_index(messages, _is_answer)
    native = wire.web_search_options is not ABSENT and json.is_present(wire.web_search_options)
    has_tools = bool(tools or wire.functions)
    hosted = has_tools and any(map(_is_hosted, tools))
    offers = native or hosted or (has_tools and any(map(is_search_tool, _names(view))))
    return RequestFeatures(
        newest=newest,
        has_media=message.media,
        text=user_excerpt(message, fully=offers),
        calls=_calls(messages, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=native or (hosted and _forces_search(wire, tools)),
        has_tools=has_tools,
        has_answer=last >= 0,
        opening=_opening(request) if not has_tools or len(messages) <= SHORT_CONVERSATION else "",
    )


def fingerprint(request: WireRequest) -> bytes:
    """Return the bytes that identify a conversation: its system text and first user texts."""
    view: RequestView = request.view
    return conversation_fingerprint(
        _system(request), first_user_texts(view.messages(), _feature_reader(request))
    )


def _feature_reader(request: WireRequest) -> Callable[[WireMessage], MessageFeatures]:
    return partial(_message_features, original=request.original) if request.original else _message_features


def _message_features(message: WireMessage, original: bytes = b"") -> MessageFeatures:
    role = message.role
    if role == "user":
        if json.starts_with(message.content, b'"'):
            return text_message(large_body.restore_text(message.content, original))
        texts, types = read_content(message, original)
        return user_message(
            texts, attachments=not _ATTACHMENTS.isdisjoint(types), media=not _MEDIA.isdisjoint(types)
        )
    if role == "assistant":
        return ASSISTANT
    return SYSTEM if role in SYSTEM_ROLES else TOOL


def _is_answer(message: WireMessage) -> bool:
    return message.role == "assistant"


def _calls(messages: Sequence[WireMessage], last: int) -> tuple[CalledTool, ...]:
    """Return the calls of the consecutive assistant messages that end at `last`."""
    calls: list[CalledTool] = []
    while last >= 0 and _is_answer(messages[last]):
        legacy = messages[last].function_call
        if legacy is not None:
            calls.insert(0, _function(legacy))
        calls[:0] = map(_call, messages[last].tool_calls or ())
        last -= 1
    return tuple(calls)


def _call(call: WireToolCall) -> CalledTool:
    if call.function is not None:
        return _function(call.function)
    custom = call.custom
    return CalledTool(
        "" if custom is None else custom.name,
        "" if custom is None else custom.input[:ARGUMENTS_KEPT],
    )


def _function(function: WireFunctionCall) -> CalledTool:
    arguments = function.arguments
    text = arguments if isinstance(arguments, str) else json.encode(arguments).decode("utf-8", "replace")
    return CalledTool(function.name, text[:ARGUMENTS_KEPT])


def _names(view: RequestView) -> Iterator[str]:
    for tool in view.tools():
        if tool.function is not None:
            yield tool.function.name
        elif tool.custom is not None:
            yield tool.custom.name
    for function in view.fields.functions or ():
        yield function.name


def _is_hosted(tool: WireTool) -> bool:
    kind = tool.type
    if kind in ("function", "custom"):
        return False
    return is_hosted_search(kind) or (tool.function is not None and is_search_tool(tool.function.name))


def _forces_search(wire: RequestBody, tools: Sequence[WireTool]) -> bool:
    """Whether the hosted search is the only tool, or the one that must be called."""
    choice = wire.tool_choice
    if choice == "none":
        return False
    return len(tools) == 1 or (isinstance(choice, WireToolChoice) and is_hosted_search(choice.type or ""))


def _system(request: WireRequest) -> list[TextValue]:
    view: RequestView = request.view
    texts: list[TextValue] = []
    for message in view.messages():
        if message.role not in SYSTEM_ROLES:
            break
        texts.extend(read_content(message, request.original)[0])
    return texts


def _opening(request: WireRequest) -> str:
    view: RequestView = request.view
    return system_opening(_system(request) or read_content(view.messages()[0], request.original)[0])
