"""What routing sees of a messages request."""

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


def features(inbound: WireRequest) -> RequestFeatures:
    """The features of a request; only its newest messages are looked at."""
    wire: RequestBody = inbound.wire
    turns, tools = wire.messages, wire.tools or ()
    newest, seen = newest_message(turns, _feature_reader(inbound))
    last = _last_answer(turns)
    hosted = any(map(_is_hosted, tools))
    offers = hosted or any(map(_is_search, tools))
    return RequestFeatures(
        newest=newest,
        has_media=seen.media,
        text=user_excerpt(seen, fully=offers),
        calls=_calls(turns, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and _forces_search(wire, tools),
        has_tools=bool(tools),
        has_answer=last >= 0,
        opening=_opening(inbound) if not tools or len(turns) <= SHORT_CONVERSATION else "",
    )


def fingerprint(inbound: WireRequest) -> bytes:
    """What a conversation begins with, without the marks for caches, which move."""
    wire: RequestBody = inbound.wire
    return conversation_fingerprint(
        _system(inbound), first_user_texts(wire.messages, _feature_reader(inbound))
    )


def _blocks(turn: WireMessage) -> Sequence[WirePart]:
    return () if isinstance(turn.content, str) else turn.content


def _texts(turn: WireMessage, uncut: bytes) -> Sequence[TextValue]:
    if isinstance(turn.content, str):
        return (large_body.restore_text(turn.content, uncut),)
    return [large_body.restore_text(block.text, uncut) for block in turn.content if block.type == "text"]


def _feature_reader(inbound: WireRequest) -> Callable[[WireMessage], MessageFeatures]:
    return partial(_message_features, uncut=inbound.uncut) if inbound.uncut else _message_features


def _message_features(turn: WireMessage, uncut: bytes = b"") -> MessageFeatures:
    if turn.role == "assistant":
        return ASSISTANT
    if turn.role == "system":
        return SYSTEM
    if isinstance(turn.content, str):
        return text_message(large_body.restore_text(turn.content, uncut))
    types = {block.type for block in turn.content}
    return user_message(
        _texts(turn, uncut),
        results="tool_result" in types,
        shown=not _ATTACHMENTS.isdisjoint(types),
        media=not _MEDIA.isdisjoint(types),
    )


def _last_answer(turns: Sequence[WireMessage]) -> int:
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role == "assistant":
            return at
    return -1


def _calls(turns: Sequence[WireMessage], last: int) -> tuple[CalledTool, ...]:
    """The calls of the assistant's messages in a row that end there."""
    calls: list[CalledTool] = []
    while last >= 0 and turns[last].role == "assistant":
        calls[:0] = [_call(block) for block in _blocks(turns[last]) if block.type in _CALLS]
        last -= 1
    return tuple(calls)


def _call(block: WirePart) -> CalledTool:
    return CalledTool(block.name or "", str(memoryview(block.input)[:ARGUMENTS_KEPT], "utf-8", "ignore"))


def _is_hosted(tool: WireTool) -> bool:
    return tool.type is not None and is_hosted_search(tool.type)


def _is_search(tool: WireTool) -> bool:
    return is_search_tool(tool.name)


def _forces_search(wire: RequestBody, tools: Sequence[WireTool]) -> bool:
    """Whether the hosted search is all there is, or the one tool that must be used."""
    choice = wire.tool_choice
    if choice is not None and choice.type == "none":
        return False
    if len(tools) == 1:
        return True
    named = choice.name if choice is not None and choice.type == "tool" else None
    return named is not None and any(tool.name == named and _is_hosted(tool) for tool in tools)


def _system(inbound: WireRequest) -> Sequence[TextValue]:
    told = inbound.wire.system
    if isinstance(told, list):
        return [large_body.restore_text(block.text, inbound.uncut) for block in told if block.type == "text"]
    return (told,) if told else ()


def _opening(inbound: WireRequest) -> str:
    return system_opening(_system(inbound) or _texts(inbound.wire.messages[0], inbound.uncut))
