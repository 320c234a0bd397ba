"""Decodes a messages stream into events; also the usage of whole answers.

The `input_tokens` of messages exclude cached tokens (Anthropic docs, "Prompt caching"); the canonical `input`
is the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.json import Decoder

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError
from routecodex.canon.events import (
    AnnotationDelta,
    AnswerPart,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.parts import Json, Opaque, Reasoning, Text, ToolCall
from routecodex.protocols import codec, upstream_errors
from routecodex.protocols.messages import errors
from routecodex.protocols.messages.content import NAME, citations_of, extras_of
from routecodex.protocols.messages.schema import (
    CacheCreation,
    StreamChunk,
    WireDelta,
    WireMessageStart,
    WireUsage,
)
from routecodex.protocols.text_batches import FrameTemplate, StreamItem, TextBatch, frame_at, unbatched
from routecodex.protocols.usage import billed_cost, counted, loose_tokens, mode_of
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge

_chunk: Decoder[StreamChunk] = Decoder(StreamChunk)
_shapes: dict[type[Any], Decoder[Any]] = {
    shape: Decoder(shape) for shape in (WireDelta, WireMessageStart, WireUsage)
}

_TEXT_KEY = (b'"text":"', b'"text": "')

AFTER_STOP = frozenset({"message_delta", "message_stop", "error"})
"""Events that may follow the stop reason; content is not part of the answer any more."""

_BLOCK_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking"}
"""Block type by its first delta, for providers that send no `content_block_start`."""
_TEXT_BLOCKS = frozenset(_BLOCK_OF_DELTA.values())


class _OpenBlock:
    """A block while it arrives; `number` is the index of its part, None if it is emitted whole."""

    __slots__ = ("block", "kind", "number", "pieces")

    def __init__(self, kind: str, block: dict[str, Any], *, number: int | None) -> None:
        self.kind = kind
        self.block = block
        self.number = number
        self.pieces: list[str] = []


class StreamDecoder(codec.StreamDecoder):
    """Decodes the bytes of a messages stream into events."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._template = FrameTemplate()
        self._text: _OpenBlock | None = None
        """The open text block, if the last frame only added to it."""
        self._events: list[StreamItem] = []
        self._started = False
        self._ended = False
        self._open: dict[int, _OpenBlock] = {}
        self._parts = 0
        self._callers: set[str] = set()
        self._last_call = ""
        self._usage = UsageCounter()
        self._stop_reason: str | None = None
        self._sequence: str | None = None
        self._details: Any = None

    def feed(self, data: bytes) -> list[Event]:
        return unbatched(self.decode_batches(data))

    def decode_batches(self, data: bytes) -> list[StreamItem]:
        """Decode like `feed`, with consecutive texts as one TextBatch."""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            self._fail(errors.unparsable("an oversized stream frame"))
            run = b""
        at, size = 0, len(run)
        while at < size and not self._ended:
            size_of_texts = self._texts(run, at)
            at = at + size_of_texts if size_of_texts else self._frame(run, at)
        return self._drain()

    def _texts(self, run: bytes, at: int) -> int:
        """Decode frames that only add to the open text, many at once; return their size."""
        if self._text is None or self._text.number is None:
            return 0
        texts, span = self._template.take(run, at)
        nonempty = list(filter(None, texts))
        if nonempty:
            self._events.append(TextBatch(self._text.number, nonempty))
        return span

    def _frame(self, run: bytes, at: int) -> int:
        """Decode the frame that begins there; return the start of the next."""
        frame, following = frame_at(run, at)
        if frame is not None:
            self._text = None
            self._take(frame)
            self._learn(frame)
        return following

    def _learn(self, frame: Frame) -> None:
        """Use a frame with only text as the template of later frames.

        A method of its own: inline, mypyc would assume that `_text` is still None after `_take`.
        """
        if self._text is not None:
            self._template.learn(frame.raw, _TEXT_KEY)

    def fail(self, error: GatewayError) -> list[Event]:
        self._fail(error)
        return unbatched(self._drain())

    def reported(self) -> Usage | None:
        return self._usage.usage()

    def close(self) -> list[Event]:
        for frame in self._frames.close():
            self._take(frame)
        self._fail(upstream_errors.stream_truncated())
        return unbatched(self._drain())

    def _drain(self) -> list[StreamItem]:
        events, self._events = self._events, []
        return events

    def _take(self, frame: Frame) -> None:
        if self._ended:
            return
        chunk = read_chunk(frame)
        if chunk is None or (self._stop_reason is not None and chunk.type not in AFTER_STOP):
            return
        handler = _HANDLERS.get(chunk.type)
        if handler is not None:
            handler(self, chunk)

    def _emit(self, event: Event) -> None:
        if not self._started:
            self._started = True
            self._events.append(Started())
        self._events.append(event)

    def _fail(self, error: GatewayError) -> None:
        """End a broken stream; after the stop reason the answer is complete."""
        if self._ended:
            return
        if self._stop_reason is not None:
            self._finish()
            return
        self._emit(Failed(error))
        self._ended = True

    def _on_error(self, chunk: StreamChunk) -> None:
        self._fail(errors.typed_error(chunk.error, provider=""))

    def _on_start(self, chunk: StreamChunk) -> None:
        head = chunk.message
        if head is not None:
            self._usage.add(head.usage)
        if self._started:
            return
        self._started = True
        self._events.append(Started(head.id or "", head.model or "") if head is not None else Started())

    def _on_block(self, chunk: StreamChunk) -> None:
        block = chunk.content_block or {"type": "text"}
        if chunk.index in self._open:
            self._close_block(chunk.index)
        self._open_block(chunk.index, block)

    def _open_block(self, index: int, block: dict[str, Any]) -> _OpenBlock:
        kind = block_type(block)
        note_calls(self._callers, block)
        begin = _PART_STARTS.get(kind)
        if begin is None:
            opened = self._open[index] = _OpenBlock(kind, block, number=None)
            return opened
        opened = self._open[index] = _OpenBlock(kind, block, number=self._next())
        assert opened.number is not None
        self._emit(PartStarted(opened.number, begin(block)))
        first = WireDelta(text=_string(block, "text"), thinking=_string(block, "thinking"))
        self._grow(opened, first)
        return opened

    def _next(self) -> int:
        self._parts += 1
        return self._parts - 1

    def _on_delta(self, chunk: StreamChunk) -> None:
        delta = chunk.delta
        if delta is None:
            return
        opened = self._open.get(chunk.index)
        kind = _BLOCK_OF_DELTA.get(delta.type)
        if opened is not None and kind is not None and opened.kind != kind and opened.kind in _TEXT_BLOCKS:
            self._close_block(chunk.index)
            opened = None
        if opened is None:
            if kind is None:
                return
            opened = self._open_block(chunk.index, {"type": kind})
        self._grow(opened, delta)

    def _grow(self, opened: _OpenBlock, delta: WireDelta) -> None:
        number = opened.number
        if delta.partial_json:
            opened.pieces.append(delta.partial_json)
        if number is None:
            if delta.signature:
                opened.block["signature"] = delta.signature
            return
        if delta.text and opened.kind == "text":
            self._emit(TextDelta(number, delta.text))
            self._text = opened
        if delta.thinking and opened.kind == "thinking":
            self._emit(ReasoningDelta(number, delta.thinking))
        if delta.partial_json and opened.kind == "tool_use":
            self._emit(ArgumentsDelta(number, delta.partial_json))
        if delta.signature:
            self._emit(SignatureDelta(number, delta.signature))
        if delta.citation is not None and opened.kind == "text":
            self._emit(AnnotationDelta(number, delta.citation))

    def _on_stop(self, chunk: StreamChunk) -> None:
        if chunk.index in self._open:
            self._close_block(chunk.index)

    def _close_block(self, index: int) -> None:
        opened = self._open.pop(index)
        if opened.number is None:
            self._emit_whole(opened)
            return
        if opened.kind == "tool_use":
            self._end_call(opened)
        elif opened.kind == "thinking" and _string(opened.block, "signature"):
            self._emit(SignatureDelta(opened.number, opened.block["signature"]))
        elif opened.kind == "text":
            for citation in citations_of(opened.block):
                self._emit(AnnotationDelta(opened.number, citation))
        self._emit(PartFinished(opened.number))

    def _end_call(self, opened: _OpenBlock) -> None:
        assert opened.number is not None
        arguments = "".join(opened.pieces)
        if not arguments and opened.block.get("input"):
            # The whole input in content_block_start, where Anthropic sends {}: some compatible endpoints.
            arguments = json.encode(opened.block["input"]).decode()
            self._emit(ArgumentsDelta(opened.number, arguments))
        self._last_call = arguments

    def _emit_whole(self, opened: _OpenBlock) -> None:
        """Emit a block that only messages has, or redacted thinking, as one part."""
        block = opened.block
        grown = "".join(opened.pieces)
        if grown:
            try:
                block["input"] = json.decode(grown)
            except ValueError:
                block["input"] = {}
        number = self._next()
        part: AnswerPart = Opaque(NAME, block)
        if opened.kind == "redacted_thinking":
            part = Reasoning(redacted=True, extras=extras_of(block))
        self._emit(PartStarted(number, part))
        if opened.kind == "redacted_thinking" and _string(block, "data"):
            self._emit(SignatureDelta(number, block["data"]))
        self._emit(PartFinished(number))

    def _on_message_delta(self, chunk: StreamChunk) -> None:
        self._usage.add(chunk.usage)
        delta = chunk.delta
        if delta is not None and delta.stop_reason is not None:
            self._stop_reason = delta.stop_reason
            self._sequence = delta.stop_sequence
            self._details = delta.stop_details

    def _on_message_stop(self, _chunk: StreamChunk) -> None:
        if not self._started and self._stop_reason is None:
            self._fail(upstream_errors.stream_truncated())
            return
        self._finish()

    def _finish(self) -> None:
        for index in list(self._open):
            self._close_block(index)
        usage = self._usage.usage()
        if usage is not None:
            self._emit(UsageReported(usage))
        end = finish.infer(
            NAME,
            self._stop_reason,
            has_calls=bool(self._callers),
            calls_whole=not self._last_call or json.is_whole(self._last_call),
            sequence=self._sequence,
        )
        extras = {"stop_details": self._details} if self._details is not None else None
        self._emit(Finished(end, extras))
        self._ended = True


def _string(block: dict[str, Any], name: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) else ""


def _text_part(block: dict[str, Any]) -> AnswerPart:
    return Text("", extras=extras_of(block))


def _reasoning_part(block: dict[str, Any]) -> AnswerPart:
    return Reasoning(extras=extras_of(block))


def _call_part(block: dict[str, Any]) -> AnswerPart:
    return ToolCall(_string(block, "id"), _string(block, "name"), extras=extras_of(block))


_PART_STARTS: dict[str, Callable[[dict[str, Any]], AnswerPart]] = {
    "text": _text_part,
    "thinking": _reasoning_part,
    "tool_use": _call_part,
}

_HANDLERS: dict[str, Callable[[StreamDecoder, StreamChunk], None]] = {
    "message_start": StreamDecoder._on_start,
    "content_block_start": StreamDecoder._on_block,
    "content_block_delta": StreamDecoder._on_delta,
    "content_block_stop": StreamDecoder._on_stop,
    "message_delta": StreamDecoder._on_message_delta,
    "message_stop": StreamDecoder._on_message_stop,
    "error": StreamDecoder._on_error,
}


def block_type(block: dict[str, Any]) -> str:
    """Return the type of a block."""
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def note_calls(callers: set[str], block: dict[str, Any]) -> None:
    """Note in `callers` which calls a client has to answer after this block: the ids of calls that made them.

    With programmatic tool calling (Anthropic, code_execution_20250825) code calls tools of the client; once
    the result of that code is in the answer, its calls are done and the answer may end with `end_turn`.
    """
    kind = block_type(block)
    if kind == "tool_use":
        caller = block.get("caller")
        callers.add(str(caller.get("tool_id") or "") if isinstance(caller, dict) else "")
    elif kind.endswith("_tool_result") and (caller := block.get("tool_use_id")):
        callers.discard(str(caller))


def read_chunk(frame: Frame) -> StreamChunk | None:
    """Read the event in a frame; None if it is not a JSON object. A missing `type` is in the event line."""
    chunk = json.try_read(frame.data, _chunk)
    if chunk is None:
        chunk = _read_loosely(frame.data)
    if chunk is not None and not chunk.type:
        chunk.type = "error" if chunk.error is not None else frame.event.decode("ascii", "replace")
    return chunk


def _read_loosely(data: bytes) -> StreamChunk | None:
    """Read an event with fields of unexpected types; those that fit are used."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    block = value.get("content_block")
    kind, index = value.get("type"), value.get("index")
    return StreamChunk(
        type=kind if isinstance(kind, str) else "",
        index=index if isinstance(index, int) and not isinstance(index, bool) else 0,
        delta=_fitting_fields(value.get("delta"), WireDelta),
        content_block=block if isinstance(block, dict) else None,
        message=_fitting_fields(value.get("message"), WireMessageStart, usage=WireUsage),
        usage=read_usage_loosely(value.get("usage")),
        error=value.get("error"),
    )


def read_usage_loosely(value: Json) -> WireUsage | None:
    """Return the counts of a usage object that make sense; None if it is not an object."""
    found: WireUsage | None = _fitting_fields(_loose_counts(value), WireUsage)
    return found


def _loose_counts(value: Json) -> Json:
    """Return an object with the counts in it as numbers, or null where they make no sense."""
    if not isinstance(value, dict):
        return value
    return {
        name: loose_tokens(one) if name.endswith("_tokens") else _loose_counts(one)
        for name, one in value.items()
    }


def _fitting_fields(value: Json, shape: type[Any], **nested: type[Any]) -> Any:
    """Return a Struct of the fields of an object that fit it."""
    if not isinstance(value, dict):
        return None
    out = shape()
    for name in shape.__struct_fields__:
        found = (
            _fitting_fields(_loose_counts(value.get(name)), nested[name])
            if name in nested
            else value.get(name)
        )
        fitted = json.try_read(json.encode({name: found}), _shapes[shape])
        if found is not None and fitted is not None:
            setattr(out, name, getattr(fitted, name))
    return out


class UsageCounter:
    """Merges the usage reports of one stream: counts are cumulative, an absent count keeps its value.

    `message_delta` may repeat the input larger than `message_start` had it, because of server tools, and
    without the split by cache duration: what is above the split was written for 5 minutes.
    """

    __slots__ = (
        "_hour",
        "_input",
        "_iterations",
        "_mode",
        "_nanos",
        "_output",
        "_read",
        "_thinking",
        "_write",
    )

    def __init__(self) -> None:
        self._input = self._read = self._write = self._hour = self._thinking = 0
        self._output = -1
        self._nanos: int | None = None
        self._mode = ""
        self._iterations: tuple[Json, ...] = ()

    def add(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        if usage.input_tokens is not None:
            self._input = usage.input_tokens
        if usage.output_tokens is not None:
            self._output = usage.output_tokens
        if usage.cache_read_input_tokens is not None:
            self._read = usage.cache_read_input_tokens
        if usage.cache_creation is not None:
            self._split(usage.cache_creation)
        if usage.cache_creation_input_tokens is not None:
            self._write = usage.cache_creation_input_tokens
        details = usage.output_tokens_details
        if details is not None and details.thinking_tokens is not None:
            self._thinking = details.thinking_tokens
        if usage.speed is not None or usage.service_tier is not None:
            self._mode = mode_of(usage.speed) or mode_of(usage.service_tier)
        if usage.cost is not None or usage.cost_in_usd_ticks is not None:
            self._nanos = billed_cost(usage)
        if isinstance(usage.iterations, list):
            self._iterations = tuple(usage.iterations)

    def _split(self, split: CacheCreation) -> None:
        self._hour = split.ephemeral_1h_input_tokens or 0
        self._write = (split.ephemeral_5m_input_tokens or 0) + self._hour

    def usage(self) -> Usage | None:
        """Return the counts so far; None if the provider has not counted its output, or nothing but zeros."""
        if self._output < 0:
            return None
        return counted(
            Usage(
                input=self._input + self._read + self._write,
                output=self._output,
                cache_read=self._read,
                cache_write=self._write,
                reasoning=self._thinking,
                iterations=self._iterations,
                cache_write_1h=min(self._hour, self._write),
                cost=self._nanos,
                mode=self._mode,
            )
        )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage as a messages object."""
    counts: dict[str, Any] = {
        "input_tokens": max(usage.input - usage.cache_read - usage.cache_write, 0),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.cache_write_1h:
        counts["cache_creation"] = {
            "ephemeral_5m_input_tokens": max(usage.cache_write - usage.cache_write_1h, 0),
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        }
    if usage.reasoning:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    if usage.iterations:
        counts["iterations"] = list(usage.iterations)
    return counts
