"""Reads the features of a Responses request that routing uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from routecodex.canon.request import COMPACTION_TRIGGER, CalledTool, RequestFeatures, RequestOpenings
from routecodex.protocols.codec import OpeningHeads, WireRequest
from routecodex.protocols.message_features import (
    ARGUMENTS_KEPT,
    ASSISTANT,
    SHORT_CONVERSATION,
    SYSTEM,
    TOOL,
    MessageFeatures,
    conversation_fingerprint,
    first_user_texts,
    is_hosted_search,
    is_search_tool,
    last_index,
    newest_message,
    opening_starts,
    system_opening,
    text_message,
    user_excerpt,
    user_message,
)
from routecodex.protocols.responses.schema import (
    RESULT_SUFFIXES,
    RequestBody,
    RequestView,
    WireItem,
    WirePart,
    WireTool,
    WireToolChoice,
    declared_tools,
)
from routecodex.wire import json

_MEDIA = frozenset({"input_image", "input_video"})
_ATTACHMENTS = _MEDIA | {"input_file", "input_audio"}
_SYSTEM = frozenset({"system", "developer"})


def features(request: WireRequest) -> RequestFeatures:
    """Return the features of a request; only its newest items are read."""
    view: RequestView = request.view
    body = view.typed
    items, tools = _items(body), declared_tools(body)
    newest, message = newest_message(items, _message_features) if items else ("user", SYSTEM)
    last = last_index(items, _is_answer)
    hosted = any(is_hosted_search(tool.type) for tool in tools)
    offers = hosted or any(map(is_search_tool, _names(tools)))
    return RequestFeatures(
        newest=newest,
        has_media=message.media,
        text=user_excerpt(message, fully=offers),
        calls=_calls(items, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and _asks_search(body.tool_choice, tools),
        has_tools=bool(tools),
        has_answer=last >= 0 or view.previous_response_id is not None,
        opening=_opening(body, items) if not tools or len(items) <= SHORT_CONVERSATION else "",
    )


def openings(request: WireRequest, heads: OpeningHeads) -> RequestOpenings:
    """Return the system texts and the texts of the newest user message.

    An item `compaction_trigger` at the end of the input is Codex's request for a compaction.
    """
    body: RequestBody = request.view.typed
    items = _items(body)
    last = last_index(items, _is_user)
    user = opening_starts(_texts(items[last]), heads) if last >= 0 else ()
    if items and items[-1].type == "compaction_trigger":
        user = (*user, COMPACTION_TRIGGER)
    return opening_starts(_system(body, items), heads), user


def fingerprint(request: WireRequest) -> bytes:
    """Return bytes that stay the same for a whole conversation: its system text and first user texts."""
    body: RequestBody = request.view.typed
    items = _items(body)
    return conversation_fingerprint(_system(body, items), first_user_texts(items, _message_features))


def _items(body: RequestBody) -> list[WireItem]:
    if isinstance(body.input, str):
        return [WireItem(role="user", content=body.input)]
    return body.input or []


def _parts(item: WireItem) -> Sequence[WirePart]:
    return item.content if isinstance(item.content, list) else ()


def _texts(item: WireItem) -> list[str]:
    if isinstance(item.content, str):
        return [item.content]
    return [part.text for part in _parts(item) if part.text is not None]


def _message_features(item: WireItem) -> MessageFeatures:
    """Return the features of an item; items that are neither messages nor results come from the model."""
    if item.type == "additional_tools":
        return SYSTEM
    if (item.type or "message") != "message":
        return TOOL if (item.type or "").endswith(RESULT_SUFFIXES) else ASSISTANT
    if item.role in _SYSTEM:
        return SYSTEM
    if item.role == "assistant":
        return ASSISTANT
    if isinstance(item.content, str):
        return text_message(item.content)
    types = [part.type for part in _parts(item)]
    return user_message(
        _texts(item), attachments=not _ATTACHMENTS.isdisjoint(types), media=not _MEDIA.isdisjoint(types)
    )


def _is_answer(item: WireItem) -> bool:
    if (item.type or "message") == "message":
        return item.role == "assistant"
    return item.type != "additional_tools" and not (item.type or "").endswith(RESULT_SUFFIXES)


def _is_user(item: WireItem) -> bool:
    return (item.type or "message") == "message" and item.role == "user"


def _calls(items: Sequence[WireItem], last: int) -> tuple[CalledTool, ...]:
    """Return the calls among the model's consecutive items that end at `last`."""
    calls: list[CalledTool] = []
    while last >= 0 and _is_answer(items[last]):
        if (items[last].type or "").endswith("_call"):
            calls.append(_call(items[last]))
        last -= 1
    return tuple(reversed(calls))


def _call(item: WireItem) -> CalledTool:
    """Return a call; one without a name takes that of its type (`local_shell_call` of Codex)."""
    name = item.name or (item.type or "").removesuffix("_call")
    values: tuple[Any, ...] = (item.arguments, item.input, item.action)
    arguments = next((value for value in values if value is not None), "")
    text = arguments if isinstance(arguments, str) else json.encode(arguments).decode("utf-8", "replace")
    return CalledTool(name, text[:ARGUMENTS_KEPT])


def _names(tools: Sequence[WireTool]) -> Iterator[str | None]:
    for tool in tools:
        yield tool.name
        yield from (inner.name for inner in tool.tools or ())


def _asks_search(choice: str | WireToolChoice | None, tools: Sequence[WireTool]) -> bool:
    """Return whether the hosted search is the only tool, or the one that must be used."""
    if choice == "none":
        return False
    if len(tools) == 1:
        return True
    if not isinstance(choice, WireToolChoice):
        return False
    if choice.type != "allowed_tools":
        return is_hosted_search(choice.type)
    allowed = choice.tools or ()
    return choice.mode == "required" and len(allowed) == 1 and is_hosted_search(_type(allowed[0]))


def _type(allowed: dict[str, Any]) -> str:
    kind = allowed.get("type")
    return kind if isinstance(kind, str) else ""


def _system(body: RequestBody, items: Sequence[WireItem]) -> list[str]:
    texts = [body.instructions] if body.instructions else []
    for item in items:
        if item.role not in _SYSTEM:
            break
        texts.extend(_texts(item))
    return texts


def _opening(body: RequestBody, items: Sequence[WireItem]) -> str:
    return system_opening(_system(body, items) or (_texts(items[0]) if items else ()))
