"""Encodes a conversation as messages, in the order that the API requires.

Anthropic docs, "Tool use": roles alternate, each call has exactly one result, and the results of a turn come
first in the user message right after it. Conversations of other protocols need not look like that.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from typing import Any

from msgspec.structs import replace

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.messages.content import (
    NAME,
    CallIds,
    holds_block,
    original_block,
    returnable_citations,
)
from routecodex.protocols.messages.thinking import reasoning_obstacle
from routecodex.protocols.tool_mapping import flat_call
from routecodex.wire import json

Fields = dict[str, Any]

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_MAGIC = (("/9j/", "image/jpeg"), ("iVBOR", "image/png"), ("R0lG", "image/gif"), ("UklGR", "image/webp"))
_TYPE_ALIASES = {"image/jpg": "image/jpeg"}
_PDF = "application/pdf"
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})

# Sent in place of content that the API requires and the conversation lacks.
_NO_RESULT = "(the tool gave no result)"
_EMPTY_TURN = "(continue)"


def encode_messages(request: Request, options: EncodeOptions, *, notices: Notices) -> list[Fields]:
    """Encode the conversation."""
    builder = _ConversationBuilder(request.source, options, notices)
    skipped = 0 if request.source == NAME else len(_leading_system(request))
    for message in request.messages[skipped:]:
        builder.add(message)
    return builder.finish()


def _leading_system(request: Request) -> list[Message]:
    opening: list[Message] = []
    for message in request.messages:
        if message.role != "system":
            break
        opening.append(message)
    return opening


def system_blocks(request: Request) -> list[Fields]:
    """Return the system texts as blocks, with the leading system messages of other protocols."""
    texts = list(request.system)
    if request.source != NAME:
        for message in _leading_system(request):
            texts.extend(part for part in message.parts if isinstance(part, Text))
    return [_text_block(text, source=request.source) for text in texts if text.text.strip()]


def cache_control_of(cache: Json, *, source: str) -> Json:
    """Return the `cache_control` for a part; None if its cache hint is not one of messages."""
    if source == NAME:
        return cache
    return cache if isinstance(cache, dict) and cache.get("type") == "ephemeral" else None


def input_of(call: ToolCall) -> Fields:
    """Return a call's arguments as an object, the only form that messages has."""
    if call.custom:
        return {"input": call.arguments}
    try:
        value = json.decode(call.arguments or "{}")
    except ValueError:
        value = call.arguments
    return value if isinstance(value, dict) else {"input": value}


class _TurnBuilder:
    """One message while it is built; `calls` are the sent ids, `results` are by sent id."""

    __slots__ = ("blocks", "calls", "extras", "results", "role")

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[Fields] = []
        self.calls: list[str] = []
        self.results: dict[str, Fields] = {}
        self.extras: Fields = {}


class _OpenCalls:
    """Open calls: a result belongs to the newest turn with its id, and there to the first call."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[_TurnBuilder, deque[str]]]] = {}

    def add(self, call_id: str, turn: _TurnBuilder, *, sent_id: str) -> None:
        turns = self._turns.setdefault(call_id, [])
        if not turns or turns[-1][0] is not turn:
            turns.append((turn, deque()))
        turns[-1][1].append(sent_id)

    def take(self, call_id: str) -> tuple[_TurnBuilder, str] | None:
        """Return the turn and the sent id of the call that a result answers."""
        turns = self._turns.get(call_id)
        if not turns:
            return None
        turn, sent_ids = turns[-1]
        sent_id = sent_ids.popleft()
        if not sent_ids:
            turns.pop()
        return turn, sent_id


class _ConversationBuilder:
    """Builds the list of messages, one canonical message after another."""

    def __init__(self, source: str, options: EncodeOptions, notices: Notices) -> None:
        self._source = source
        self._options = options
        self._notices = notices
        self._ids = CallIds()
        self._open_calls = _OpenCalls()
        self._turns: list[_TurnBuilder] = []

    def add(self, message: Message) -> None:
        role = message.role
        if message.name:
            self._notices.dropped("name", "messages has no names of authors")
        if role == "system" and self._source != NAME:
            self._add_system(message)
            return
        turn = self._turn("user" if role == "tool" else role)
        if self._source == NAME:
            turn.extras.update(message.extras or {})
        for part in message.parts:
            self._add_part(turn, part)

    def finish(self) -> list[Fields]:
        out: list[Fields] = []
        for turn in self._turns:
            results = [turn.results.get(id) or _no_result(id) for id in turn.calls]
            _append(out, turn.role, blocks=turn.blocks, extras=turn.extras)
            _append(out, "user", blocks=results, extras={})
        if not out or out[0]["role"] == "assistant":
            out.insert(0, {"role": "user", "content": [{"type": "text", "text": _EMPTY_TURN}]})
        _trim_prefill(out)
        return out

    def _turn(self, role: str) -> _TurnBuilder:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_TurnBuilder(role))
        return self._turns[-1]

    def _add_system(self, message: Message) -> None:
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
        if text.strip():
            block = {"type": "text", "text": f"<system>\n{text}\n</system>"}
            self._turn("user").blocks.append(block)

    def _add_part(self, turn: _TurnBuilder, part: Part) -> None:
        match part:
            case ToolResult():
                self._add_result(turn, part)
            case ToolCall():
                self._add_call(turn, part)
            case Reasoning():
                self._add_reasoning(turn, part)
            case _:
                block = self._plain(part)
                if block is not None:
                    turn.blocks.append(block)

    def _plain(self, part: Part) -> Fields | None:
        """Return the block for text, media or an opaque part; None for empty text: the API rejects it."""
        match part:
            case Text():
                return _text_block(part, source=self._source) if part.text.strip() else None
            case Refusal():
                return {"type": "text", "text": part.text} if part.text.strip() else None
            case Media() if self._source == NAME and holds_block(part):
                return self._piece(part)
            case Media():
                block = _media_block(part, self._options, source=self._source, notices=self._notices)
                return _with_cache_control(block, part.cache, source=self._source)
            case Opaque() if part.protocol == NAME:
                return dict(part.value)
            case Opaque():
                kind = part.value.get("type", "part") if isinstance(part.value, dict) else "part"
                self._notices.dropped(str(kind), f"only {part.protocol} has it")
        return None

    def _piece(self, part: Media) -> Fields | None:
        """Return the document that this part is a piece of; without vision, the piece itself."""
        if not self._options.vision:
            return self._plain(replace(part, extras=None))
        block = original_block(part)
        return None if block is None else _with_cache_control(block, part.cache, source=NAME)

    def _add_call(self, turn: _TurnBuilder, call: ToolCall) -> None:
        id = self._ids.fresh(call.id)
        turn.calls.append(id)
        self._open_calls.add(call.id, turn, sent_id=id)
        block: Fields = {"type": "tool_use", "id": id, "name": flat_call(call), "input": input_of(call)}
        if self._source == NAME:
            block.update(call.extras or {})
        turn.blocks.append(_with_cache_control(block, call.cache, source=self._source))

    def _add_result(self, turn: _TurnBuilder, result: ToolResult) -> None:
        found = self._open_calls.take(result.call_id)
        blocks = [inner for part in result.parts if (inner := self._plain(part)) is not None]
        if found is None:
            self._notices.dropped("tool result id", "its call is not in the conversation; sent as content")
            turn.blocks.extend(blocks)
            return
        calling, id = found
        block: Fields = {"type": "tool_result", "tool_use_id": id}
        if result.is_error:
            block["is_error"] = True
            blocks = blocks or [{"type": "text", "text": "error"}]
        if blocks:
            block["content"] = blocks[0]["text"] if _is_plain(blocks) else blocks
        if self._source == NAME:
            block.update(result.extras or {})
        calling.results[id] = _with_cache_control(block, result.cache, source=self._source)

    def _add_reasoning(self, turn: _TurnBuilder, part: Reasoning) -> None:
        if turn.role != "assistant":
            return
        obstacle = reasoning_obstacle(part, self._options, source=self._source)
        if obstacle is not None:
            self._notices.dropped("reasoning", obstacle)
            return
        block: Fields
        if part.redacted:
            block = {"type": "redacted_thinking", "data": part.signature or ""}
        else:
            block = {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
        if self._source == NAME:
            block.update(part.extras or {})
        turn.blocks.append(block)


def _no_result(id: str) -> Fields:
    return {"type": "tool_result", "tool_use_id": id, "content": _NO_RESULT, "is_error": True}


def _is_plain(blocks: list[Fields]) -> bool:
    return len(blocks) == 1 and blocks[0].keys() == {"type", "text"}


def _append(out: list[Fields], role: str, *, blocks: list[Fields], extras: Fields) -> None:
    if not blocks:
        return
    if out and out[-1]["role"] == role:
        out[-1]["content"].extend(blocks)
        return
    out.append({"role": role, "content": blocks, **extras})


def _trim_prefill(messages: list[Fields]) -> None:
    """Strip a prefill: the API rejects final assistant content that ends with whitespace."""
    last = messages[-1]
    if last["role"] == "assistant" and last["content"][-1]["type"] == "text":
        last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()


def _text_block(part: Text, *, source: str) -> Fields:
    block: Fields = {"type": "text", "text": part.text}
    if source == NAME:
        if citations := returnable_citations(part.annotations):
            block["citations"] = citations
        block.update(part.extras or {})
        if holds_block(part):
            block = original_block(part) or block
    return _with_cache_control(block, part.cache, source=source)


def _with_cache_control(block: Fields, cache: Json, *, source: str) -> Fields:
    mark = cache_control_of(cache, source=source)
    if mark is not None:
        block["cache_control"] = mark
    return block


def _media_block(media: Media, options: EncodeOptions, *, source: str, notices: Notices) -> Fields:
    """Return the block for an image or document; a text names it if it cannot be sent."""
    media = _inline_data_url(media)
    if media.kind == "image":
        found = _image_source(media, options, source=source, notices=notices)
        block: Fields = {"type": "image", "source": found}
    else:
        found = _document_source(media, source=source, notices=notices)
        block = {"type": "document", "source": found}
        if media.name:
            block["title"] = media.name
    if found is None:
        return {"type": "text", "text": _placeholder(media)}
    if source == NAME:
        block.update(media.extras or {})
    return block


def _placeholder(media: Media) -> str:
    name = media.name or (media.url if media.url and len(media.url) < 2000 else None)
    return f"[{media.kind} not shown: {name}]" if name else f"[{media.kind} not shown]"


def _inline_data_url(media: Media) -> Media:
    """Return media of a base64 `data:` URL as inline data."""
    if media.url is None or not media.url.startswith("data:"):
        return media
    head, _, data = media.url[5:].partition(",")
    media_type, *flags = head.split(";")
    if "base64" not in flags:
        return media
    return Media(media.kind, media_type or media.media_type, data, name=media.name, cache=media.cache)


def _image_source(media: Media, options: EncodeOptions, *, source: str, notices: Notices) -> Fields | None:
    if not options.vision:
        notices.dropped("image", "this model does not accept images")
        return None
    if media.data is not None:
        media_type = _image_type(media)
        if media_type is not None:
            return {"type": "base64", "media_type": media_type, "data": media.data}
        notices.dropped("image", f"{media.media_type} is not supported")
        return None
    if media.url is not None:
        if options.dialect.image_urls:
            return {"type": "url", "url": media.url}
        notices.dropped("image by URL", "this provider accepts only inline images")
        return None
    return _file_source(media, source=source, notices=notices)


def _image_type(media: Media) -> str | None:
    media_type = _normal_type(media)
    media_type = _TYPE_ALIASES.get(media_type, media_type)
    if media_type in _IMAGE_TYPES:
        return media_type
    return next((kind for magic, kind in _MAGIC if (media.data or "").startswith(magic)), None)


def _document_source(media: Media, *, source: str, notices: Notices) -> Fields | None:
    if media.kind != "file":
        notices.dropped(media.kind, "messages has no such content type")
        return None
    if media.text is not None:
        return {"type": "text", "media_type": "text/plain", "data": media.text}
    if media.data is not None:
        return _inline_document(media, notices)
    if media.url is not None:
        return {"type": "url", "url": media.url}
    return _file_source(media, source=source, notices=notices)


def _inline_document(media: Media, notices: Notices) -> Fields | None:
    media_type = _normal_type(media)
    data = media.data or ""
    if (
        media_type == _PDF
        or data.startswith("JVBERi")
        or (not media_type and (media.name or "").endswith(".pdf"))
    ):
        return {"type": "base64", "media_type": _PDF, "data": data}
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:
        try:
            text = base64.b64decode(data).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        if text:
            return {"type": "text", "media_type": "text/plain", "data": text}
    notices.dropped("file", f"{media_type or 'its type'} is not supported")
    return None


def _normal_type(media: Media) -> str:
    return (media.media_type or "").lower().partition(";")[0].strip()


def _file_source(media: Media, *, source: str, notices: Notices) -> Fields | None:
    """Return the source of a stored file: only a messages client can have uploaded it to the provider."""
    if media.file_id is not None and source == NAME:
        return {"type": "file", "file_id": media.file_id}
    notices.dropped(f"{media.kind} by id", "it is stored at another provider")
    return None
