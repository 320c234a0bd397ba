"""What routing sees of a Gemini request."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.gemini.schema import (
    RequestBody,
    RequestView,
    WireFunctionCall,
    WireMessage,
    WirePart,
    WireTool,
    contents_of,
    parts_of,
)
from routecodex.protocols.message_features import (
    ARGUMENTS_KEPT,
    ASSISTANT,
    SHORT_CONVERSATION,
    MessageFeatures,
    conversation_fingerprint,
    first_user_texts,
    is_search_tool,
    newest_message,
    system_opening,
    user_excerpt,
    user_message,
)
from routecodex.wire import json

_SEEN = ("image/", "video/")
_FILM_SITES = ("youtube.com/", "youtu.be/")


def features(inbound: WireRequest) -> RequestFeatures:
    """The features of a request; only its newest contents are looked at."""
    view: RequestView = inbound.wire
    contents, tools = contents_of(view.body), _tools(view.body)
    newest, seen = newest_message(contents, _glimpse)
    last = _last_answer(contents)
    names = [name for tool in tools for name in _names(tool)]
    hosted = any(map(_is_hosted, tools))
    offers = hosted or any(map(is_search_tool, names))
    return RequestFeatures(
        newest=newest,
        has_media=seen.media,
        text=user_excerpt(seen, fully=offers),
        calls=_calls(contents, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and not names and not _forbidden(view.body),
        has_tools=bool(tools),
        has_answer=last >= 0,
        opening=_opening(view.body) if not tools or len(contents) <= SHORT_CONVERSATION else "",
    )


def fingerprint(inbound: WireRequest) -> bytes:
    """What a conversation begins with."""
    body: RequestBody = inbound.wire.body
    return conversation_fingerprint(_system(body), first_user_texts(contents_of(body), _glimpse))


def _tools(body: RequestBody) -> list[WireTool]:
    return body.tools if isinstance(body.tools, list) else [body.tools] if body.tools else []


def _names(tool: WireTool) -> list[str]:
    declared = tool.function_declarations or []
    return [function.name for function in (declared if isinstance(declared, list) else [declared])]


def _is_hosted(tool: WireTool) -> bool:
    kinds = (tool.google_search, tool.google_search_retrieval, tool.enterprise_web_search)
    return any(map(json.is_present, kinds))


def _forbidden(body: RequestBody) -> bool:
    calling = body.tool_config.function_calling_config if body.tool_config else None
    return calling is not None and (calling.mode or "").upper() == "NONE"


def _texts(parts: Sequence[WirePart]) -> list[str]:
    return [part.text for part in parts if part.text is not None and not part.thought]


def _glimpse(content: WireMessage) -> MessageFeatures:
    if content.role == "model":
        return ASSISTANT
    parts = parts_of(content)
    return user_message(
        _texts(parts),
        results=any(part.function_response is not None for part in parts),
        shown=any(part.inline_data is not None or part.file_data is not None for part in parts),
        media=any(map(_is_seen, parts)),
    )


def _is_seen(part: WirePart) -> bool:
    """Whether a part is an image or a film."""
    if part.inline_data is not None:
        return (part.inline_data.mime_type or "").startswith(_SEEN)
    if part.file_data is None:
        return False
    kind, uri = part.file_data.mime_type, part.file_data.file_uri or ""
    return kind.startswith(_SEEN) if kind else any(site in uri[:64] for site in _FILM_SITES)


def _last_answer(contents: Sequence[WireMessage]) -> int:
    for at in range(len(contents) - 1, -1, -1):
        if contents[at].role == "model":
            return at
    return -1


def _calls(contents: Sequence[WireMessage], last: int) -> tuple[CalledTool, ...]:
    """The calls of the model's contents in a row that end there."""
    calls: list[CalledTool] = []
    while last >= 0 and contents[last].role == "model":
        made = (part.function_call for part in parts_of(contents[last]))
        calls[:0] = [_call(call) for call in made if call is not None]
        last -= 1
    return tuple(calls)


def _call(call: WireFunctionCall) -> CalledTool:
    """A call with its short arguments: long ones say what is written, not what is done."""
    given = call.args or {}
    short = {name: value for name, value in given.items() if len(memoryview(value)) <= ARGUMENTS_KEPT}
    text = json.encode(short).decode("utf-8", "replace") if short else ""
    return CalledTool(call.name or "", text[:ARGUMENTS_KEPT])


def _system(body: RequestBody) -> list[str]:
    told = body.system_instruction
    if isinstance(told, str):
        return [told]
    if told is None:
        return []
    return _texts(told if isinstance(told, list) else parts_of(told))


def _opening(body: RequestBody) -> str:
    return system_opening(_system(body) or _texts(parts_of(contents_of(body)[0])))
