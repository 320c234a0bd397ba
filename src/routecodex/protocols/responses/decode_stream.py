"""Which item an event is about.

Upstreams number their items, name them, or both; some give every item the same number, some a new name in
every event, some neither. An event belongs to the item that fits it best and is still open.

The Responses stream as events.

Upstreams differ in what they bother to say: some send every event, some only `output_item.done`, some only
deltas, some nothing but the final object. Each item remembers how much of it was told, so that whatever
repeats it (`…done`, `output_item.done`, the final `output`) adds only what was missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.events import Event, Failed, Finished, Started, UsageReported
from routecodex.protocols.responses.decode_items import (
    CallItemDecoder,
    EventQueue,
    ItemDecoder,
    MessageItemDecoder,
    OpaqueItemDecoder,
    ReasoningItemDecoder,
)
from routecodex.protocols.responses.errors import answer_error, unparsable
from routecodex.protocols.responses.schema import (
    LIFECYCLE,
    NAME,
    TERMINAL,
    StreamChunk,
    decode_usage,
    finish_word,
    read_chunk,
)
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge

_ITEM_DECODERS: dict[str, type[ItemDecoder]] = {
    "message": MessageItemDecoder,
    "reasoning": ReasoningItemDecoder,
    "function_call": CallItemDecoder,
    "custom_tool_call": CallItemDecoder,
}


class ItemIndex:
    """The items heard so far, found by number, by name, or as the last of their kind."""

    def __init__(self, telling: EventQueue) -> None:
        self._telling = telling
        self._all: list[ItemDecoder] = []
        self._by_index: dict[int, ItemDecoder] = {}
        self._by_id: dict[str, ItemDecoder] = {}

    def __iter__(self) -> Iterator[ItemDecoder]:
        return iter(self._all)

    def of_event(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        """The item that a delta or its like is about."""
        found = self._found(_ITEM_DECODERS[kind], index=index, ident=ident)
        return found or self._new(kind, index=index, ident=ident)

    def of_item(self, item: dict[str, Any], *, index: int | None, added: bool) -> ItemDecoder:
        """The item that `output_item.added` or `.done` shows."""
        kind, ident = str(item.get("type")), _ident(item)
        form = _ITEM_DECODERS.get(kind, OpaqueItemDecoder)
        known = self._by_id.get(ident) if ident is not None else None
        if isinstance(known, form):
            return known
        if not added or index is None or self._is_nameless(index):
            found = self._found(form, index=index, ident=None)
            if found is not None:
                return found
        return self._new(kind, index=index, ident=ident)

    def matched(self, items: list[dict[str, Any]]) -> Iterator[tuple[ItemDecoder, dict[str, Any]]]:
        """The items of a final answer, each with what was heard of it."""
        free = list(self._all)
        for index, item in enumerate(items):
            heard = self._match(index, item, free)
            if heard is None:
                heard = self._new(str(item.get("type")), index=None, ident=_ident(item))
            else:
                free.remove(heard)
            yield heard, item

    def _match(self, index: int, item: dict[str, Any], free: list[ItemDecoder]) -> ItemDecoder | None:
        form = _ITEM_DECODERS.get(str(item.get("type")), OpaqueItemDecoder)
        named = self._by_id.get(_ident(item) or "")
        if named in free:
            return named
        alike = [heard for heard in free if type(heard) is form]
        for heard in alike:
            if isinstance(heard, CallItemDecoder) and heard.call_id and heard.call_id == item.get("call_id"):
                return heard
        placed = self._by_index.get(index)
        if placed in alike:
            return placed
        return alike[0] if alike and form is not CallItemDecoder else None

    def _is_nameless(self, index: int) -> bool:
        """Whether the item at this number is known from deltas only, so that its head may still come."""
        known = self._by_index.get(index)
        return known is not None and not known.finished and not known.shown

    def _found(self, form: type[ItemDecoder], *, index: int | None, ident: str | None) -> ItemDecoder | None:
        placed = self._by_index.get(index) if index is not None else None
        if type(placed) is form and not placed.finished:
            return placed
        named = self._by_id.get(ident) if ident is not None else None
        if type(named) is form:
            return named
        if index is not None or ident is not None:
            return None
        still_open = (heard for heard in reversed(self._all) if type(heard) is form and not heard.finished)
        return next(still_open, None)

    def _new(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        heard = _ITEM_DECODERS.get(kind, OpaqueItemDecoder)(self._telling)
        self._all.append(heard)
        if index is not None:
            self._by_index[index] = heard
        if ident is not None:
            self._by_id[ident] = heard
        return heard


def _ident(item: dict[str, Any]) -> str | None:
    value = item.get("id")
    return value if isinstance(value, str) and value else None


_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

_DELTA_EVENTS: dict[str, tuple[str, Callable[[Any, StreamChunk], None]]] = {
    "response.output_text.delta": ("message", MessageItemDecoder.text_delta),
    "response.output_text.done": ("message", MessageItemDecoder.text_done),
    "response.output_text.annotation.added": ("message", MessageItemDecoder.annotated),
    "response.refusal.delta": ("message", MessageItemDecoder.refusal_delta),
    "response.refusal.done": ("message", MessageItemDecoder.refusal_done),
    "response.reasoning_summary_text.delta": ("reasoning", ReasoningItemDecoder.summary_delta),
    "response.reasoning_text.delta": ("reasoning", ReasoningItemDecoder.content_delta),
    "response.function_call_arguments.delta": ("function_call", CallItemDecoder.delta),
    "response.function_call_arguments.done": ("function_call", CallItemDecoder.done),
    "response.custom_tool_call_input.delta": ("custom_tool_call", CallItemDecoder.delta),
    "response.custom_tool_call_input.done": ("custom_tool_call", CallItemDecoder.done),
}
"""What an event is about and what it does to it."""


class StreamDecoder:
    """A StreamDecoder for one answer."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._telling = EventQueue()
        self._roster = ItemIndex(self._telling)
        self._started = False
        self._ended = False

    def feed(self, data: bytes) -> Sequence[Event]:
        if self._ended:
            return []
        try:
            frames = self._frames.feed(data)
        except FrameTooLarge:
            self._ended = True
            return [Failed(unparsable())]
        return self._take(frames)

    def close(self) -> Sequence[Event]:
        events = list(self._take(self._frames.close()))
        if not self._ended:
            self._ended = True
            events.append(Failed(stream_truncated()))
        return events

    def whole(self, response: dict[str, Any]) -> Sequence[Event]:
        """The events of an answer that came in one piece."""
        self._start(response)
        self._finish(response, "")
        return self._telling.take()

    def _take(self, frames: Sequence[Frame]) -> Sequence[Event]:
        for frame in frames:
            if self._ended:
                break
            event = read_chunk(frame)
            if event is not None:
                self._hear(event)
        return self._telling.take()

    def _hear(self, event: StreamChunk) -> None:
        kind = event.type
        step = _DELTA_EVENTS.get(kind)
        if step is not None:
            self._start({})
            item, act = step
            act(self._roster.of_event(item, index=event.output_index, ident=event.item_id), event)
        elif kind in LIFECYCLE:
            self._start(_thawed(event))
        elif kind in (_ADDED, _DONE):
            self._item(event, added=kind == _ADDED)
        elif kind in TERMINAL:
            self._end(event)

    def _start(self, response: dict[str, Any]) -> None:
        if self._started:
            return
        self._started = True
        ident, model, created = response.get("id"), response.get("model"), response.get("created_at")
        tier = response.get("service_tier")
        self._telling.say(
            Started(
                ident if isinstance(ident, str) else "",
                model if isinstance(model, str) else "",
                int(created) if isinstance(created, int | float) else None,
                {"service_tier": tier} if isinstance(tier, str) else None,
            )
        )

    def _item(self, event: StreamChunk, *, added: bool) -> None:
        item = json.decode_raw(event.item)
        if not isinstance(item, dict):
            return
        self._start({})
        heard = self._roster.of_item(item, index=event.output_index, added=added)
        heard.show(item)
        if not added:
            heard.finish()

    def _end(self, event: StreamChunk) -> None:
        response = _thawed(event)
        self._ended = True
        if event.type in ("response.completed", "response.incomplete"):
            self._start(response)
            self._finish(response, event.type)
            return
        told = response.get("error") or json.decode_raw(event.error)
        if not told and event.message is not None:
            told = {"code": event.code, "message": event.message, "param": event.param}
        self._telling.say(Failed(answer_error(told)))

    def _finish(self, response: dict[str, Any], kind: str) -> None:
        output = response.get("output")
        items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        for heard, item in self._roster.matched(items):
            heard.show(item)
            heard.finish()
        for heard in self._roster:
            heard.finish()
        usage = decode_usage(response.get("usage"))
        if usage is not None:
            self._telling.say(UsageReported(usage))
        calls = [heard for heard in self._roster if isinstance(heard, CallItemDecoder) and heard.told]
        whole = not calls or calls[-1].whole
        ended = finish.infer(NAME, finish_word(response, kind), has_calls=bool(calls), calls_whole=whole)
        self._telling.say(Finished(ended))


def _thawed(event: StreamChunk) -> dict[str, Any]:
    value = json.decode_raw(event.response)
    return value if isinstance(value, dict) else {}
