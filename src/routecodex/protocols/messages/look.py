"""What routing sees of a messages request."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.look import Called, Look
from routecodex.protocols import glance, words
from routecodex.protocols.codec import Inbound
from routecodex.protocols.words import Words

from .schema import Block, Body, OfferedTool, Turn

_MEDIA = frozenset({"image", "video"})
_SHOWN = _MEDIA | {"document", "audio"}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def look(inbound: Inbound) -> Look:
    """The features of a request; only its newest messages are looked at."""
    wire: Body = inbound.wire
    turns, tools = wire.messages, wire.tools or ()
    newest, seen = glance.newest_of(turns, _glimpse)
    last = _last_answer(turns)
    hosted = any(map(_is_hosted, tools))
    offers = hosted or any(map(_searches, tools))
    return Look(
        newest=newest,
        has_media=seen.media,
        text=glance.said(seen, fully=offers),
        calls=_calls(turns, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and _asks(wire, tools),
        has_tools=bool(tools),
        has_answer=last >= 0,
        opening=_opening(wire) if not tools or len(turns) <= glance.SHORT else "",
    )


def opening(inbound: Inbound) -> bytes:
    """What a conversation begins with, without the marks for caches, which move."""
    wire: Body = inbound.wire
    return words.fingerprint(_system(wire), glance.first_words(wire.messages, _glimpse))


def _blocks(turn: Turn) -> Sequence[Block]:
    return () if isinstance(turn.content, str) else turn.content


def _texts(turn: Turn) -> Sequence[Words]:
    if isinstance(turn.content, str):
        return (turn.content,)
    return [block.text for block in turn.content if block.type == "text"]


def _glimpse(turn: Turn) -> glance.Glimpse:
    if turn.role == "assistant":
        return glance.ASSISTANT
    if turn.role == "system":
        return glance.SYSTEM
    if isinstance(turn.content, str):
        return glance.one_text(turn.content)
    types = {block.type for block in turn.content}
    return glance.from_user(
        _texts(turn),
        results="tool_result" in types,
        shown=not _SHOWN.isdisjoint(types),
        media=not _MEDIA.isdisjoint(types),
    )


def _last_answer(turns: Sequence[Turn]) -> int:
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role == "assistant":
            return at
    return -1


def _calls(turns: Sequence[Turn], last: int) -> tuple[Called, ...]:
    """The calls of the assistant's messages in a row that end there."""
    calls: list[Called] = []
    while last >= 0 and turns[last].role == "assistant":
        calls[:0] = [_call(block) for block in _blocks(turns[last]) if block.type in _CALLS]
        last -= 1
    return tuple(calls)


def _call(block: Block) -> Called:
    return Called(block.name or "", str(memoryview(block.input)[: glance.ARGUMENTS], "utf-8", "ignore"))


def _is_hosted(tool: OfferedTool) -> bool:
    return tool.type is not None and glance.is_hosted_search(tool.type)


def _searches(tool: OfferedTool) -> bool:
    return glance.searches(tool.name)


def _asks(wire: Body, tools: Sequence[OfferedTool]) -> bool:
    """Whether the hosted search is all there is, or the one tool that must be used."""
    choice = wire.tool_choice
    if choice is not None and choice.type == "none":
        return False
    if len(tools) == 1:
        return True
    named = choice.name if choice is not None and choice.type == "tool" else None
    return named is not None and any(tool.name == named and _is_hosted(tool) for tool in tools)


def _system(wire: Body) -> Sequence[Words]:
    if isinstance(wire.system, list):
        return [block.text for block in wire.system if block.type == "text"]
    return (wire.system,) if wire.system else ()


def _opening(wire: Body) -> str:
    return words.opening(_system(wire) or _texts(wire.messages[0]))
