"""Reads the features of a messages request that routing uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols import large_body
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.message_features import (
    ARGUMENTS_KEPT,
    ASSISTANT,
    SHORT_CONVERSATION,
    SYSTEM,
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
from routecodex.protocols.messages.schema import RequestBody, WireMessage, WirePart, WireTool

_MEDIA = frozenset({"image", "video"})
_ATTACHMENTS = _MEDIA | {"document", "audio"}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def features(request: WireRequest) -> RequestFeatures:
    """Return the features of a request; only its newest messages are read."""
    wire: RequestBody = request.view
    messages, tools = wire.messages, wire.tools or ()
    newest, message = newest_message(messages, _feature_reader(request))
    last = last_index(messages, _is_answer)
    hosted = any(map(_is_hosted, tools))
    offers = hosted or any(map(_is_search, tools))
    return RequestFeatures(
        newest=newest,
        has_media=message.media,
        text=user_excerpt(message, fully=offers),
        calls=_calls(messages, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and _forces_search(wire, tools),
        has_tools=bool(tools),
        has_answer=last >= 0,
        opening=_opening(request) if not tools or len(messages) <= SHORT_CONVERSATION else "",
    )


def fingerprint(request: WireRequest) -> bytes:
    """Return the bytes that identify a conversation: its system text and first user texts.

    `cache_control` is not included: clients move it from turn to turn.
    """
    wire: RequestBody = request.view
    return conversation_fingerprint(
        _system(request), first_user_texts(wire.messages, _feature_reader(request))
    )


def _blocks(message: WireMessage) -> Sequence[WirePart]:
    return () if isinstance(message.content, str) else message.content


def _texts(message: WireMessage, original: bytes) -> Sequence[TextValue]:
    if isinstance(message.content, str):
        return (large_body.restore_text(message.content, original),)
    return [
        large_body.restore_text(block.text, original) for block in message.content if block.type == "text"
    ]


def _feature_reader(request: WireRequest) -> Callable[[WireMessage], MessageFeatures]:
    return partial(_message_features, original=request.original) if request.original else _message_features


def _message_features(message: WireMessage, original: bytes = b"") -> MessageFeatures:
    if message.role == "assistant":
        return ASSISTANT
    if message.role == "system":
        return SYSTEM
    if isinstance(message.content, str):
        return text_message(large_body.restore_text(message.content, original))
    types = {block.type for block in message.content}
    return user_message(
        _texts(message, original),
        results="tool_result" in types,
        attachments=not _ATTACHMENTS.isdisjoint(types),
        media=not _MEDIA.isdisjoint(types),
    )


def _is_answer(message: WireMessage) -> bool:
    return message.role == "assistant"


def _calls(messages: Sequence[WireMessage], last: int) -> tuple[CalledTool, ...]:
    """Return the calls of the consecutive assistant messages that end at `last`."""
    calls: list[CalledTool] = []
    while last >= 0 and _is_answer(messages[last]):
        calls[:0] = [_call(block) for block in _blocks(messages[last]) if block.type in _CALLS]
        last -= 1
    return tuple(calls)


def _call(block: WirePart) -> CalledTool:
    return CalledTool(block.name or "", str(memoryview(block.input)[:ARGUMENTS_KEPT], "utf-8", "ignore"))


def _is_hosted(tool: WireTool) -> bool:
    return tool.type is not None and is_hosted_search(tool.type)


def _is_search(tool: WireTool) -> bool:
    return is_search_tool(tool.name)


def _forces_search(wire: RequestBody, tools: Sequence[WireTool]) -> bool:
    """Whether the hosted search is the only tool, or the one that must be called."""
    choice = wire.tool_choice
    if choice is not None and choice.type == "none":
        return False
    if len(tools) == 1:
        return True
    named = choice.name if choice is not None and choice.type == "tool" else None
    return named is not None and any(tool.name == named and _is_hosted(tool) for tool in tools)


def _system(request: WireRequest) -> Sequence[TextValue]:
    system = request.view.system
    if isinstance(system, list):
        return [
            large_body.restore_text(block.text, request.original) for block in system if block.type == "text"
        ]
    return (system,) if system else ()


def _opening(request: WireRequest) -> str:
    return system_opening(_system(request) or _texts(request.view.messages[0], request.original))
