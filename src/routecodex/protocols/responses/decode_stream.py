"""Decodes a Responses stream into events.

Providers that imitate the protocol differ in the events they send: all of them, only `output_item.done`, only
deltas, or only the final object. Each item decoder knows how much it has emitted, so an event that repeats
content (`…done`, `output_item.done`, the final `output`) adds only the missing rest.

They also differ in how an event refers to its item: by `output_index`, by `item_id`, or both. Some send the
same index for every item, some a new id with every event, some neither. An event belongs to the open item
that fits best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event, Failed, Finished, Started, UsageReported
from routecodex.protocols import codec
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
    finish_reason,
    objects,
    read_chunk,
)
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge


class ItemIndex:
    """The items of one answer, found by index, by id, or as the last open item of a kind."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._all: list[ItemDecoder] = []
        self._by_index: dict[int, ItemDecoder] = {}
        self._by_id: dict[str, ItemDecoder] = {}

    def __iter__(self) -> Iterator[ItemDecoder]:
        return iter(self._all)

    def for_delta(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        """Return the decoder of the item that a delta or its `done` belongs to."""
        found = self._find(_ITEM_DECODERS[kind], index=index, ident=ident)
        return found or self._new(kind, index=index, ident=ident)

    def for_item(self, item: dict[str, Any], *, index: int | None, added: bool) -> ItemDecoder:
        """Return the decoder of the item in `output_item.added` or `.done`."""
        kind, ident = str(item.get("type")), _ident(item)
        form = _ITEM_DECODERS.get(kind, OpaqueItemDecoder)
        known = self._by_id.get(ident) if ident is not None else None
        if isinstance(known, form):
            return known
        if not added or index is None or self._lacks_item(index):
            found = self._find(form, index=index, ident=None)
            if found is not None:
                return found
        return self._new(kind, index=index, ident=ident)

    def match_output(self, items: list[dict[str, Any]]) -> Iterator[tuple[ItemDecoder, dict[str, Any]]]:
        """Yield the items of the final output, each with its decoder."""
        free = list(self._all)
        for index, item in enumerate(items):
            decoder = self._match(index, item, free)
            if decoder is None:
                decoder = self._new(str(item.get("type")), index=None, ident=_ident(item))
            else:
                free.remove(decoder)
            yield decoder, item

    def _match(self, index: int, item: dict[str, Any], free: list[ItemDecoder]) -> ItemDecoder | None:
        form = _ITEM_DECODERS.get(str(item.get("type")), OpaqueItemDecoder)
        named = self._by_id.get(_ident(item) or "")
        if named in free:
            return named
        alike = [decoder for decoder in free if type(decoder) is form]
        for decoder in alike:
            if (
                isinstance(decoder, CallItemDecoder)
                and decoder.call_id
                and decoder.call_id == item.get("call_id")
            ):
                return decoder
        placed = self._by_index.get(index)
        if placed in alike:
            return placed
        return alike[0] if alike and form is not CallItemDecoder else None

    def _lacks_item(self, index: int) -> bool:
        """Return whether the item at this index is known from deltas only; its `added` may still come."""
        known = self._by_index.get(index)
        return known is not None and not known.finished and not known.has_item

    def _find(self, form: type[ItemDecoder], *, index: int | None, ident: str | None) -> ItemDecoder | None:
        placed = self._by_index.get(index) if index is not None else None
        if type(placed) is form and not placed.finished:
            return placed
        named = self._by_id.get(ident) if ident is not None else None
        if type(named) is form:
            return named
        if index is not None or ident is not None:
            return None
        still_open = (
            decoder for decoder in reversed(self._all) if type(decoder) is form and not decoder.finished
        )
        return next(still_open, None)

    def _new(self, kind: str, *, index: int | None, ident: str | None) -> ItemDecoder:
        decoder = _ITEM_DECODERS.get(kind, OpaqueItemDecoder)(self._queue)
        self._all.append(decoder)
        if index is not None:
            self._by_index[index] = decoder
        if ident is not None:
            self._by_id[ident] = decoder
        return decoder


def _ident(item: dict[str, Any]) -> str | None:
    value = item.get("id")
    return value if isinstance(value, str) and value else None


_ITEM_DECODERS: dict[str, type[ItemDecoder]] = {
    "message": MessageItemDecoder,
    "reasoning": ReasoningItemDecoder,
    "function_call": CallItemDecoder,
    "custom_tool_call": CallItemDecoder,
}
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

_DELTA_EVENTS: dict[str, tuple[str, Callable[[Any, StreamChunk], None]]] = {
    "response.output_text.delta": ("message", MessageItemDecoder.text_delta),
    "response.output_text.done": ("message", MessageItemDecoder.text_done),
    "response.output_text.annotation.added": ("message", MessageItemDecoder.annotation_added),
    "response.refusal.delta": ("message", MessageItemDecoder.refusal_delta),
    "response.refusal.done": ("message", MessageItemDecoder.refusal_done),
    "response.reasoning_summary_text.delta": ("reasoning", ReasoningItemDecoder.summary_delta),
    "response.reasoning_text.delta": ("reasoning", ReasoningItemDecoder.content_delta),
    "response.function_call_arguments.delta": ("function_call", CallItemDecoder.delta),
    "response.function_call_arguments.done": ("function_call", CallItemDecoder.done),
    "response.custom_tool_call_input.delta": ("custom_tool_call", CallItemDecoder.delta),
    "response.custom_tool_call_input.done": ("custom_tool_call", CallItemDecoder.done),
}
"""Events of content, each with the type of its item and the decoder's method for it."""


class StreamDecoder(codec.StreamDecoder):
    """Decodes one answer; see codec.StreamDecoder."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._queue = EventQueue()
        self._items = ItemIndex(self._queue)
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

    def fail(self, error: GatewayError) -> Sequence[Event]:
        if self._ended:
            return []
        self._ended = True
        return [Failed(error)]

    def whole(self, response: dict[str, Any]) -> Sequence[Event]:
        """Return the events of a non-streaming answer."""
        self._start(response)
        self._finish(response, "")
        return self._queue.take()

    def _take(self, frames: Sequence[Frame]) -> Sequence[Event]:
        for frame in frames:
            if self._ended:
                break
            event = read_chunk(frame)
            if event is not None:
                self._decode(event)
        return self._queue.take()

    def _decode(self, event: StreamChunk) -> None:
        kind = event.type
        delta = _DELTA_EVENTS.get(kind)
        if delta is not None:
            self._start({})
            item, apply = delta
            apply(self._items.for_delta(item, index=event.output_index, ident=event.item_id), event)
        elif kind in LIFECYCLE:
            self._start(_response(event))
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
        self._queue.add(
            Started(
                ident if isinstance(ident, str) else "",
                model if isinstance(model, str) else "",
                int(created) if isinstance(created, int | float) else None,
                {"service_tier": tier} if isinstance(tier, str) else None,
            )
        )

    def _item(self, event: StreamChunk, *, added: bool) -> None:
        item = json.decode_answer(event.item)
        if not isinstance(item, dict):
            return
        self._start({})
        decoder = self._items.for_item(item, index=event.output_index, added=added)
        decoder.update(item)
        if not added:
            decoder.finish()

    def _end(self, event: StreamChunk) -> None:
        response = _response(event)
        self._ended = True
        if event.type in ("response.completed", "response.incomplete"):
            self._start(response)
            self._finish(response, event.type)
            return
        error = response.get("error") or json.decode_answer(event.error)
        if not error and event.message is not None:
            error = {"code": event.code, "message": event.message, "param": event.param}
        self._queue.add(Failed(answer_error(error)))

    def _finish(self, response: dict[str, Any], kind: str) -> None:
        for decoder, item in self._items.match_output(objects(response.get("output"))):
            decoder.update(item)
            decoder.finish()
        for decoder in self._items:
            decoder.finish()
        usage = decode_usage(response.get("usage"), response.get("service_tier"))
        if usage is not None:
            self._queue.add(UsageReported(usage))
        calls = [item for item in self._items if isinstance(item, CallItemDecoder) and item.started]
        whole = not calls or calls[-1].whole
        has_calls = bool(calls) or any(
            item.calls_client for item in self._items if isinstance(item, OpaqueItemDecoder)
        )
        ended = finish.infer(NAME, finish_reason(response, kind), has_calls=has_calls, calls_whole=whole)
        self._queue.add(Finished(ended))


def _response(event: StreamChunk) -> dict[str, Any]:
    value = json.decode_answer(event.response)
    return value if isinstance(value, dict) else {}
