"""Decodes the output items of a stream; each decoder knows how much of its item it has emitted as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.canon.events import (
    AnnotationDelta,
    AnswerPart,
    ArgumentsDelta,
    Event,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    TextDelta,
)
from routecodex.canon.parts import Media, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols.responses.content import ITEM
from routecodex.protocols.responses.schema import NAME, StreamChunk, objects
from routecodex.wire import json


class EventQueue:
    """Events to be returned by the decoder, with part numbers in order of appearance."""

    __slots__ = ("_events", "_next", "has_text")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._next = 0
        self.has_text = False
        """Whether a text of a message has begun."""

    def add(self, event: Event) -> None:
        self._events.append(event)

    def start(self, part: AnswerPart) -> int:
        number, self._next = self._next, self._next + 1
        self._events.append(PartStarted(number, part))
        return number

    def finish(self, number: int) -> None:
        self._events.append(PartFinished(number))

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class ItemDecoder:
    """One item; `update` emits the part of an item object that is new, `finish` ends the item.

    Upstreams repeat an item: in deltas, in `…done` events, in `output_item.done` and in the final output.
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.has_item = False
        """Whether an item object has arrived, not only deltas."""
        self.finished = False

    def update(self, item: dict[str, Any]) -> None:
        """Emit the content of this item object that is not emitted yet; ignored after `finish`."""
        self.has_item = True
        if not self.finished:
            self._add_missing(item)

    def finish(self) -> None:
        """End the item, once."""
        if not self.finished:
            self._end()
            self.finished = True

    def _add_missing(self, item: dict[str, Any]) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class OpaqueItemDecoder(ItemDecoder):
    """An item that only this protocol has, emitted as a whole when it is complete."""

    _item: dict[str, Any] | None = None

    @property
    def calls_client(self) -> bool:
        """Whether the client has to answer it: a search for tools that Codex runs itself."""
        item = self._item or {}
        return item.get("type") == "tool_search_call" and isinstance(item.get("call_id"), str)

    def _add_missing(self, item: dict[str, Any]) -> None:
        self._item = item

    def _end(self) -> None:
        if self._item is not None:
            self._queue.finish(self._queue.start(Opaque(NAME, self._item, _generated_image(self._item))))


def _generated_image(item: dict[str, Any]) -> Media | None:
    """Return the image that OpenAI's image generation tool made, for clients of other protocols."""
    data, form = item.get("result"), item.get("output_format")
    if item.get("type") != "image_generation_call" or not isinstance(data, str) or not data:
        return None
    return Media("image", media_type=f"image/{form if isinstance(form, str) else 'png'}", data=data)


class _Part:
    """A content part of a message: its number, and how much of it is emitted."""

    __slots__ = ("annotations", "kind", "length", "number")

    def __init__(self, number: int, kind: type[Text] | type[Refusal]) -> None:
        self.number = number
        self.kind = kind
        self.length = 0
        self.annotations = 0


class MessageItemDecoder(ItemDecoder):
    """A message; each content part is a text or a refusal."""

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(queue)
        self._parts: dict[int, _Part] = {}
        """Parts by `content_index`, in the order of their start."""
        self._head: dict[str, Any] | None = None

    def _part(self, index: int, kind: type[Text] | type[Refusal]) -> _Part:
        part = self._parts.get(index)
        if part is None or part.kind is not kind:
            if part is not None:
                self._queue.finish(part.number)
            started = Refusal("") if kind is Refusal else self._start_text()
            self._head = None
            part = self._parts[index] = _Part(self._queue.start(started), kind)
        return part

    def _start_text(self) -> Text:
        """Return an empty text; the first text of a second message is marked `apart`."""
        apart = self._queue.has_text and not self._parts
        self._queue.has_text = True
        return Text("", extras=self._head and {ITEM: self._head}, apart=apart)

    def _add(self, index: int, kind: type[Text] | type[Refusal], text: str, logprobs: Any = None) -> None:
        if self.finished or not (text or logprobs):
            return
        part = self._part(index, kind)
        part.length += len(text)
        self._queue.add(TextDelta(part.number, text, tuple(logprobs or ())))

    def _complete(
        self, index: int, kind: type[Text] | type[Refusal], whole: str | None, logprobs: Any = None
    ) -> None:
        part = self._parts.get(index)
        emitted = part.length if part is not None and part.kind is kind else 0
        if whole is not None and len(whole) > emitted:
            self._add(index, kind, whole[emitted:], logprobs if not emitted else None)

    def text_delta(self, event: StreamChunk) -> None:
        logprobs = json.decode_answer(event.logprobs) if len(memoryview(event.logprobs)) > 2 else None
        self._add(event.content_index, Text, event.delta, objects(logprobs))

    def text_done(self, event: StreamChunk) -> None:
        self._complete(event.content_index, Text, event.text)

    def refusal_delta(self, event: StreamChunk) -> None:
        self._add(event.content_index, Refusal, event.delta)

    def refusal_done(self, event: StreamChunk) -> None:
        self._complete(event.content_index, Refusal, event.refusal)

    def annotation_added(self, event: StreamChunk) -> None:
        self._annotate(event.content_index, json.decode_answer(event.annotation))

    def _annotate(self, index: int, annotation: Any) -> None:
        if isinstance(annotation, dict) and not self.finished:
            part = self._part(index, Text)
            part.annotations += 1
            self._queue.add(AnnotationDelta(part.number, annotation))

    def _add_missing(self, item: dict[str, Any]) -> None:
        # Codex sends `phase` back with the item: `commentary` or `final_answer`.
        if isinstance(item.get("phase"), str) and not self._parts:
            self._head = {"phase": item["phase"]}
        content = item.get("content")
        if isinstance(content, str):
            self._complete(0, Text, content)
            return
        values = objects(content)
        for index, value in zip(self._indexes(len(values)), values, strict=False):
            if value.get("type") == "refusal":
                self._complete(index, Refusal, _text(value.get("refusal")))
            else:
                self._complete(index, Text, _text(value.get("text")), objects(value.get("logprobs")))
                self._add_missing_annotations(index, value.get("annotations"))

    def _indexes(self, count: int) -> Sequence[int]:
        """Return the `content_index` of each of the `count` parts of an item's content.

        Bedrock Mantle and vLLM count the parts of the reasoning before a message, so that the events of its
        first part have the index 1.
        """
        known = list(self._parts)
        if not known or max(known) < count:
            return range(count)
        return [*known, *range(max(known) + 1, max(known) + 1 + count)]

    def _add_missing_annotations(self, index: int, annotations: Any) -> None:
        if not isinstance(annotations, list):
            return
        part = self._parts.get(index)
        for annotation in annotations[part.annotations if part is not None else 0 :]:
            self._annotate(index, annotation)

    def _end(self) -> None:
        for part in self._parts.values():
            self._queue.finish(part.number)


class ReasoningItemDecoder(ItemDecoder):
    """Reasoning: the text of its summaries, or of its content if it has no summary.

    OpenAI sends summaries; open models (gpt-oss on vLLM and others) send `reasoning_text` content.
    """

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(queue)
        self._number: int | None = None
        self._id: str | None = None
        self._source = ""
        self._section = 0
        self._length = 0
        self._signature: str | None = None

    def _open(self) -> int:
        if self._number is None:
            self._number = self._queue.start(Reasoning(id=self._id))
        return self._number

    def _add(self, text: str) -> None:
        if text and not self.finished:
            self._length += len(text)
            self._queue.add(ReasoningDelta(self._open(), text))

    def summary_delta(self, event: StreamChunk) -> None:
        self._delta("summary", event.summary_index, event)

    def content_delta(self, event: StreamChunk) -> None:
        self._delta("content", event.content_index, event)

    def _delta(self, source: str, section: int, event: StreamChunk) -> None:
        if self._id is None:
            self._id = event.item_id
        if self._source not in ("", source):
            return
        self._source = source
        if section != self._section and self._length:
            self._add("\n\n")
        self._section = section
        self._add(event.delta)

    def _add_missing(self, item: dict[str, Any]) -> None:
        if self._id is None and isinstance(item.get("id"), str):
            self._id = item["id"]
        source = self._source or ("summary" if item.get("summary") else "content")
        values = item.get(source)
        texts = [_text(value.get("text")) or "" for value in objects(values)]
        whole = "\n\n".join(texts)
        if len(whole) > self._length:
            self._source = source
            self._add(whole[self._length :])
        # Emitted at the end: in `output_item.added` it may be a shorter draft (OpenAI sends both).
        signature = item.get("encrypted_content")
        if isinstance(signature, str) and signature:
            self._signature = signature

    def _end(self) -> None:
        if self._signature is not None:
            self._queue.add(SignatureDelta(self._open(), self._signature))
        if self._number is not None:
            self._queue.finish(self._number)


class CallItemDecoder(ItemDecoder):
    """A tool call; arguments that arrive before its name are held until the call can start."""

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(queue)
        self._number: int | None = None
        self._pieces: list[str] = []
        self._length = 0
        self._custom = False
        self.call_id = ""

    @property
    def started(self) -> bool:
        """Whether the call was emitted; one without a name never is."""
        return self._number is not None

    @property
    def whole(self) -> bool:
        """Whether the arguments are complete JSON; those of a custom tool are free text."""
        text = "".join(self._pieces)
        return self._custom or not text.strip() or json.is_whole(text)

    def _add(self, text: str) -> None:
        if not text or self.finished:
            return
        self._pieces.append(text)
        self._length += len(text)
        if self._number is not None:
            self._queue.add(ArgumentsDelta(self._number, text))

    def delta(self, event: StreamChunk) -> None:
        self._add(event.delta)

    def done(self, event: StreamChunk) -> None:
        self._complete(event.arguments if event.arguments is not None else event.input)

    def _complete(self, whole: Any) -> None:
        if isinstance(whole, str) and len(whole) > self._length:
            self._add(whole[self._length :])

    def _add_missing(self, item: dict[str, Any]) -> None:
        self._custom = item.get("type", "custom_tool_call" if self._custom else "") == "custom_tool_call"
        name = item.get("name")
        if self._number is None and isinstance(name, str) and name:
            self._open(item, name)
        arguments = item.get("input" if self._custom else "arguments")
        self._complete(json.encode(arguments).decode() if isinstance(arguments, dict) else arguments)

    def _open(self, item: dict[str, Any], name: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        namespace = item.get("namespace")
        self.call_id = call_id if isinstance(call_id, str) else ""
        self._number = self._queue.start(
            ToolCall(
                self.call_id,
                name,
                custom=self._custom,
                namespace=namespace if isinstance(namespace, str) else None,
            )
        )
        if self._pieces:
            self._queue.add(ArgumentsDelta(self._number, "".join(self._pieces)))

    def _end(self) -> None:
        if self._number is not None:
            self._queue.finish(self._number)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
