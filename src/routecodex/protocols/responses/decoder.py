"""The Responses stream as events.

Upstreams differ in what they bother to say: some send every event, some only `output_item.done`, some only
deltas, some nothing but the final object. Each item remembers how much of it was told, so that whatever
repeats it (`…done`, `output_item.done`, the final `output`) adds only what was missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.events import Event, Failed, Finished, Started, UsageReported
from routecodex.protocols.failures import stream_truncated
from routecodex.protocols.responses.errors import answer_error, unparsable
from routecodex.protocols.responses.heard import (
    CallItemDecoder,
    EventQueue,
    MessageItemDecoder,
    ReasoningItemDecoder,
)
from routecodex.protocols.responses.roster import ItemIndex
from routecodex.protocols.responses.schema import NAME
from routecodex.protocols.responses.stream_schema import (
    LIFECYCLE,
    TERMINAL,
    StreamChunk,
    read_chunk,
    said_of,
    usage_of,
)
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge

_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

_STEPS: dict[str, tuple[str, Callable[[Any, StreamChunk], None]]] = {
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
        step = _STEPS.get(kind)
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
        item = json.thaw(event.item)
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
        told = response.get("error") or json.thaw(event.error)
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
        usage = usage_of(response.get("usage"))
        if usage is not None:
            self._telling.say(UsageReported(usage))
        calls = [heard for heard in self._roster if isinstance(heard, CallItemDecoder) and heard.told]
        whole = not calls or calls[-1].whole
        ended = finish.infer(NAME, said_of(response, kind), has_calls=bool(calls), calls_whole=whole)
        self._telling.say(Finished(ended))


def _thawed(event: StreamChunk) -> dict[str, Any]:
    value = json.thaw(event.response)
    return value if isinstance(value, dict) else {}
