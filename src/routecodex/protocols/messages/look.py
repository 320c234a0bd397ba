"""What routing sees of a messages request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from routecodex.canon.look import Called, Look
from routecodex.protocols import cuts, glance, words
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
    newest, seen = glance.newest_of(turns, _sight(inbound))
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
        opening=_opening(inbound) if not tools or len(turns) <= glance.SHORT else "",
    )


def opening(inbound: Inbound) -> bytes:
    """What a conversation begins with, without the marks for caches, which move."""
    wire: Body = inbound.wire
    return words.fingerprint(_system(inbound), glance.first_words(wire.messages, _sight(inbound)))


def _blocks(turn: Turn) -> Sequence[Block]:
    return () if isinstance(turn.content, str) else turn.content


def _texts(turn: Turn, uncut: bytes) -> Sequence[Words]:
    if isinstance(turn.content, str):
        return (cuts.text(turn.content, uncut),)
    return [cuts.text(block.text, uncut) for block in turn.content if block.type == "text"]


def _sight(inbound: Inbound) -> Callable[[Turn], glance.Glimpse]:
    return partial(_glimpse, uncut=inbound.uncut) if inbound.uncut else _glimpse


def _glimpse(turn: Turn, uncut: bytes = b"") -> glance.Glimpse:
    if turn.role == "assistant":
        return glance.ASSISTANT
    if turn.role == "system":
        return glance.SYSTEM
    if isinstance(turn.content, str):
        return glance.one_text(cuts.text(turn.content, uncut))
    types = {block.type for block in turn.content}
    return glance.from_user(
        _texts(turn, uncut),
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


def _system(inbound: Inbound) -> Sequence[Words]:
    told = inbound.wire.system
    if isinstance(told, list):
        return [cuts.text(block.text, inbound.uncut) for block in told if block.type == "text"]
    return (told,) if told else ()


def _opening(inbound: Inbound) -> str:
    return words.opening(_system(inbound) or _texts(inbound.wire.messages[0], inbound.uncut))
