"""Reads the features of a Gemini request that routing uses."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.request import CalledTool, RequestFeatures, RequestOpenings
from routecodex.protocols.codec import OpeningHeads, WireRequest
from routecodex.protocols.gemini.schema import (
    RequestBody,
    RequestView,
    WireFunctionCall,
    WireMessage,
    WirePart,
    WireTool,
    contents_of,
    functions_of,
    parts_of,
    tools_of,
)
from routecodex.protocols.message_features import (
    ARGUMENTS_KEPT,
    ASSISTANT,
    SHORT_CONVERSATION,
    MessageFeatures,
    conversation_fingerprint,
    first_user_texts,
    is_search_tool,
    last_index,
    newest_message,
    opening_starts,
    system_opening,
    user_excerpt,
    user_message,
)
from routecodex.wire import json

_VISUAL_TYPES = ("image/", "video/")
_VIDEO_SITES = ("youtube.com/", "youtu.be/")


def features(request: WireRequest) -> RequestFeatures:
    """Return the features of a request; only its newest contents are read."""
    view: RequestView = request.view
    contents, tools = contents_of(view.body), tools_of(view.body)
    newest, message = newest_message(contents, _message_features)
    last = last_index(contents, _is_answer)
    names = [function.name for tool in tools for function in functions_of(tool)]
    hosted = any(map(_is_hosted_search, tools))
    offers = hosted or any(map(is_search_tool, names))
    return RequestFeatures(
        newest=newest,
        has_media=message.media,
        text=user_excerpt(message, fully=offers),
        calls=_calls(contents, last) if last >= 0 else (),
        offers_search=offers,
        asks_search=hosted and not names and not _forbids_tools(view.body),
        has_tools=bool(tools),
        has_answer=last >= 0,
        opening=_opening(view.body) if not tools or len(contents) <= SHORT_CONVERSATION else "",
    )


def openings(request: WireRequest, heads: OpeningHeads) -> RequestOpenings:
    """Return the system texts and the texts of the newest user message."""
    body: RequestBody = request.view.body
    contents = contents_of(body)
    last = last_index(contents, _is_user)
    user = _texts(parts_of(contents[last])) if last >= 0 else ()
    return opening_starts(_system(body), heads), opening_starts(user, heads)


def fingerprint(request: WireRequest) -> bytes:
    """Return bytes that stay the same for a whole conversation: its system text and first user texts."""
    body: RequestBody = request.view.body
    return conversation_fingerprint(_system(body), first_user_texts(contents_of(body), _message_features))


def _is_hosted_search(tool: WireTool) -> bool:
    kinds = (tool.google_search, tool.google_search_retrieval, tool.enterprise_web_search)
    return any(map(json.is_present, kinds))


def _forbids_tools(body: RequestBody) -> bool:
    calling = body.tool_config.function_calling_config if body.tool_config else None
    return calling is not None and (calling.mode or "").upper() == "NONE"


def _texts(parts: Sequence[WirePart]) -> list[str]:
    return [part.text for part in parts if part.text is not None and not part.thought]


def _message_features(content: WireMessage) -> MessageFeatures:
    if content.role == "model":
        return ASSISTANT
    parts = parts_of(content)
    return user_message(
        _texts(parts),
        results=any(part.function_response is not None for part in parts),
        attachments=any(part.inline_data is not None or part.file_data is not None for part in parts),
        media=any(map(_is_visual, parts)),
    )


def _is_visual(part: WirePart) -> bool:
    """Return whether a part is an image or a video; Google takes YouTube URLs without a media type."""
    if part.inline_data is not None:
        return (part.inline_data.mime_type or "").startswith(_VISUAL_TYPES)
    if part.file_data is None:
        return False
    kind, uri = part.file_data.mime_type, part.file_data.file_uri or ""
    return kind.startswith(_VISUAL_TYPES) if kind else any(site in uri[:64] for site in _VIDEO_SITES)


def _is_answer(message: WireMessage) -> bool:
    return message.role == "model"


def _is_user(message: WireMessage) -> bool:
    return message.role != "model"


def _calls(contents: Sequence[WireMessage], last: int) -> tuple[CalledTool, ...]:
    """Return the calls of the model's consecutive contents that end at `last`."""
    calls: list[CalledTool] = []
    while last >= 0 and _is_answer(contents[last]):
        functions = (part.function_call for part in parts_of(contents[last]))
        calls[:0] = [_call(call) for call in functions if call is not None]
        last -= 1
    return tuple(calls)


def _call(call: WireFunctionCall) -> CalledTool:
    """Return a call with its short arguments: a long one is content, not a command or a path."""
    arguments = (call.args or {}).items()
    short = {name: value for name, value in arguments if len(memoryview(value)) <= ARGUMENTS_KEPT}
    text = json.encode(short).decode("utf-8", "replace") if short else ""
    return CalledTool(call.name or "", text[:ARGUMENTS_KEPT])


def _system(body: RequestBody) -> list[str]:
    instruction = body.system_instruction
    if isinstance(instruction, str):
        return [instruction]
    if instruction is None:
        return []
    return _texts(instruction if isinstance(instruction, list) else parts_of(instruction))


def _opening(body: RequestBody) -> str:
    return system_opening(_system(body) or _texts(parts_of(contents_of(body)[0])))
