"""Citations and log probabilities in the shapes Responses has for them.

Events as the Responses stream: every event of the published set, in order, numbered.

Items are written one at a time: events of a later part wait until the earlier one is finished. Texts that
follow each other are content parts of one message item. A part that never says anything is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.errors import GatewayError, UpstreamFailed
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
from routecodex.canon.finish import Finish, encode
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.content import ITEM, seal_call_signature, seal_reasoning
from routecodex.protocols.responses.encode_items import (
    CallItemEncoder,
    FrameSink,
    ItemPosition,
    MessageItemEncoder,
    ReasoningItemEncoder,
    ResponseObject,
)
from routecodex.protocols.responses.schema import NAME
from routecodex.protocols.tool_mapping import ToolNames
from routecodex.protocols.translation import estimated_usage

_OWN = frozenset({"file_citation", "url_citation", "container_file_citation", "file_path"})


def encode_annotation(value: Json, at: int) -> Json | None:
    """An annotation as Responses says it, or None; one that names no place stands `at` that character."""
    if not isinstance(value, dict):
        return None
    nested = value.get("url_citation")
    if isinstance(nested, dict):
        value = {"type": "url_citation", **nested}
    kind = str(value.get("type"))
    if kind == "url_citation" or (kind not in _OWN and "url" in value):
        return {
            "type": "url_citation",
            "url": value.get("url") or "",
            "title": value.get("title") or "",
            "start_index": value.get("start_index", at),
            "end_index": value.get("end_index", at),
        }
    return value if kind in _OWN else None


def encode_logprobs(entries: Iterable[Json]) -> list[Json]:
    """Chat's entries with every field that Responses demands."""
    return [
        _entry(entry) | {"top_logprobs": [_entry(top) for top in _dicts(entry.get("top_logprobs"))]}
        for entry in entries
        if isinstance(entry, dict)
    ]


def _dicts(values: Json) -> list[dict[str, Json]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _entry(entry: dict[str, Json]) -> dict[str, Json]:
    token, spelled = entry.get("token"), entry.get("bytes")
    token = token if isinstance(token, str) else ""
    return {
        "token": token,
        "logprob": entry.get("logprob", 0.0),
        "bytes": spelled if isinstance(spelled, list) else list(token.encode("utf-8", "replace")),
    }


_PartEvent = (
    PartStarted
    | TextDelta
    | ReasoningDelta
    | SignatureDelta
    | ArgumentsDelta
    | AnnotationDelta
    | PartFinished
)


class StreamEncoder:
    """A StreamEncoder; `final` is the response object as JSON once the answer has ended."""

    def __init__(self, reply: ReplyContext) -> None:
        self.final: bytes | None = None
        self._reply = reply
        self._object = ResponseObject(reply)
        self._sink = FrameSink()
        self._names = ToolNames(reply.request.tools if reply.request is not None else ())
        self._created = False
        self._usage: Usage | None = None
        self._output: list[bytes] = []
        self._message: MessageItemEncoder | None = None
        self._part: AnswerPart | None = None
        self._item: MessageItemEncoder | ReasoningItemEncoder | CallItemEncoder | None = None
        self._signature = ""
        self._current: int | None = None
        self._waiting: dict[int, list[_PartEvent]] = {}
        self._chars = 0

    def encode(self, event: Event) -> bytes:
        if self.final is not None:
            return b""
        _EVENTS.get(type(event), StreamEncoder._tell_part)(self, event)
        return self._sink.take()

    def _start(self, event: Started) -> None:
        self._note(event.extras)
        self._create()

    def _count(self, event: UsageReported) -> None:
        self._usage = event.usage

    def _note(self, extras: dict[str, Json] | None) -> None:
        if extras and isinstance(extras.get("service_tier"), str):
            self._object.tier = extras["service_tier"]

    def _end(self, event: Finished) -> None:
        self._note(event.extras)
        self._create()
        self._finish(event.finish)

    def _break(self, event: Failed) -> None:
        self._fail(event.error)

    def _tell_part(self, event: _PartEvent) -> None:
        self._create()
        self._route(event)

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Many pieces of one text at once."""
        if self.final is not None or self._current != index or not isinstance(self._item, MessageItemEncoder):
            return b"".join([self.encode(TextDelta(index, text)) for text in texts])
        self._chars += sum(map(len, texts))
        self._item.add_all(list(filter(None, texts)))
        return self._sink.take()

    def _create(self) -> None:
        if self._created:
            return
        self._created = True
        response = b'"response":' + self._object.render("in_progress", output=[])
        self._sink.say("response.created", response)
        self._sink.say("response.in_progress", response)

    def _route(self, event: _PartEvent) -> None:
        if self._current is None:
            self._current = event.index
        if event.index != self._current:
            self._waiting.setdefault(event.index, []).append(event)
            return
        self._apply(event)
        self._catch_up()

    def _catch_up(self) -> None:
        """Tells what waited for the part before it to end."""
        while self._current is None and self._waiting:
            self._current = next(iter(self._waiting))
            for held in self._waiting.pop(self._current):
                self._apply(held)

    def _apply(self, event: _PartEvent) -> None:
        match event:
            case PartStarted():
                self._begin(event.part)
            case TextDelta():
                self._add_text(event.text, event.logprobs)
            case ReasoningDelta():
                self._add_thought(event.text)
            case ArgumentsDelta():
                self._add_arguments(event.text)
            case SignatureDelta():
                self._signature += event.signature
            case AnnotationDelta():
                self._annotate(event.annotation)
            case PartFinished():
                self._end_part()

    def _place(self, prefix: str, *, item_id: str | None = None) -> ItemPosition:
        """The place of the next item; a message that is still open ends before it."""
        self._close_message("completed")
        index = len(self._output)
        return ItemPosition(self._sink, item_id or f"{prefix}_{self._reply.id}_{index}", index)

    def _begin(self, part: AnswerPart) -> None:
        self._part, self._item, self._signature = part, None, ""
        match part:
            case Text() | Refusal():
                self._add_text(part.text, ())
                for annotation in part.annotations if isinstance(part, Text) else ():
                    self._annotate(annotation)
            case Reasoning():
                self._signature = part.signature or ""
                self._add_thought(part.text)
            case ToolCall():
                self._signature = part.signature or ""
                self._item = self._call(part)
                self._add_arguments(part.arguments)
            case Opaque(protocol="responses", value=value):
                self._output.append(self._opaque(value))
            case Opaque():
                pass

    def _call(self, call: ToolCall) -> CallItemEncoder:
        name, namespace, custom = call.name, call.namespace, call.custom
        if not custom and namespace is None:
            name, namespace, custom = self._names.resolve(name)
        place = self._place("ctc" if custom else "fc")
        head: dict[str, Json] = {"call_id": call.id or f"call_{self._reply.id}_{place.index}", "name": name}
        if namespace is not None:
            head["namespace"] = namespace
        self._part = replace(call, id=head["call_id"])
        return CallItemEncoder(place, head, custom=custom, wrapped=custom and not call.custom)

    def _opaque(self, value: Json) -> bytes:
        item_id = value.get("id")
        place = self._place("item", item_id=item_id if isinstance(item_id, str) else None)
        item = {"id": place.id, **value}
        place.added(item)
        return place.done(item)

    def _text_item(self) -> MessageItemEncoder:
        """The message item, open and with the current part begun in it."""
        if isinstance(self._item, MessageItemEncoder):
            return self._item
        head = self._part.extras.get(ITEM) if isinstance(self._part, Text) and self._part.extras else None
        if self._message is None or head or (isinstance(self._part, Text) and self._part.apart):
            self._message = MessageItemEncoder(self._place("msg"), head or {})
        self._message.start("refusal" if isinstance(self._part, Refusal) else "output_text")
        self._item = self._message
        return self._message

    def _add_text(self, text: str, logprobs: tuple[Json, ...]) -> None:
        if text or logprobs:
            self._chars += len(text)
            self._text_item().add(text, encode_logprobs(logprobs) if logprobs else ())

    def _annotate(self, annotation: Json) -> None:
        item = self._item
        at = item.length if isinstance(item, MessageItemEncoder) else 0
        told = encode_annotation(annotation, at)
        if told is not None:
            self._text_item().annotate(told)

    def _thought_item(self) -> ReasoningItemEncoder:
        if not isinstance(self._item, ReasoningItemEncoder):
            own = self._part.id if isinstance(self._part, Reasoning) else None
            # A Responses upstream checks that a thought comes back under the id it was given.
            self._item = ReasoningItemEncoder(
                self._place("rs", item_id=own if own and own.startswith("rs_") else None)
            )
        return self._item

    def _add_thought(self, text: str) -> None:
        if text:
            self._chars += len(text)
            self._thought_item().add(text)

    def _add_arguments(self, text: str) -> None:
        if isinstance(self._item, CallItemEncoder):
            self._chars += len(text)
            self._item.add(text)

    def _end_part(self) -> None:
        part, item = self._part, self._item
        if isinstance(item, MessageItemEncoder):
            item.end()
        elif isinstance(part, Reasoning) and (item is not None or self._signature):
            sealed = seal_reasoning(self._reply.provider, self._signature, redacted=part.redacted)
            self._output.append(self._thought_item().close(sealed))
        elif isinstance(item, CallItemEncoder) and isinstance(part, ToolCall):
            self._output.append(item.close())
            if self._signature and self._reply.provider:
                carried = seal_call_signature(self._reply.provider, part.id, self._signature)
                self._output.append(ReasoningItemEncoder(self._place("rs")).close(carried))
        self._part, self._item, self._current = None, None, None

    def _close_message(self, status: str) -> None:
        if self._message is not None:
            message, self._message = self._message, None
            self._output.append(message.close(status))

    def _finish(self, finish: Finish) -> None:
        while self._current is not None:
            self._route(PartFinished(self._current))
        word = encode(NAME, finish)
        if word == "failed":
            said = finish.said or "an error"
            self._fail(UpstreamFailed(f"the upstream ended its answer with {said!r}"))
            return
        status = "completed" if word == "completed" else "incomplete"
        self._close_message(status)
        self.final = self._object.render(
            status,
            output=self._output,
            usage=self._usage or estimated_usage(self._reply.input_tokens, self._chars),
            reason=None if status == "completed" else word,
        )
        self._sink.say(f"response.{status}", b'"response":' + self.final)

    def _fail(self, error: GatewayError) -> None:
        """A failed response; a call that was cut off is left out, so that nobody runs it."""
        output = list(self._output)
        usage = self._usage or estimated_usage(self._reply.input_tokens, self._chars)
        self.final = self._object.render("failed", output=output, usage=usage, error=error)
        self._sink.say("response.failed", b'"response":' + self.final)


_EVENTS: dict[type[Event], Callable[[StreamEncoder, Any], None]] = {
    Started: StreamEncoder._start,
    UsageReported: StreamEncoder._count,
    Finished: StreamEncoder._end,
    Failed: StreamEncoder._break,
}
"""What becomes of the events of the whole answer; all others tell of a part."""
