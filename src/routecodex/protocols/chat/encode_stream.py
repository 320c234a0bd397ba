"""Encodes events as a chat stream; also the ids, usage and citations of whole completions.

OpenAI API reference, "Chat completion chunk": the first delta has the role; with `include_usage` every chunk
has a `usage`, null but in the last, whose `choices` are empty; `[DONE]` ends the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.events import (
    AnnotationDelta,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols import codec
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.encode_messages import TEXT_SEPARATOR
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.text_batches import escape_texts
from routecodex.protocols.tool_mapping import InputUnwrapper, ToolNames
from routecodex.protocols.translation import cited_page, estimated_usage, used_tier
from routecodex.wire import json

DONE = b"data: [DONE]\n\n"
_CONTENT, _REFUSAL, _REASONING = b'{"content":', b'{"refusal":', b'{"reasoning_content":'
_TEXT_FIELDS: dict[type, bytes] = {Text: _CONTENT, Refusal: _REFUSAL, Reasoning: _REASONING}


class _Call:
    """A tool call while it is encoded."""

    __slots__ = ("custom", "has_arguments", "number", "unwrapper")

    def __init__(self, number: int, *, custom: bool, unwrapper: InputUnwrapper | None) -> None:
        self.number = number
        self.custom = custom
        self.unwrapper = unwrapper
        self.has_arguments = False


class StreamEncoder(codec.StreamEncoder):
    """Encodes events as a chat stream; the constant part of a chunk is encoded once."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._model = reply.model
        self._calls: dict[int, _Call] = {}
        self._refusals: set[int] = set()
        self._names = ToolNames(reply.request.tools if reply.request is not None else ())
        self._usage: Usage | None = None
        self.written = 0
        self._non_text = 0
        self._text_start = 0
        self._collected: dict[str, list[Json]] = {}
        """Annotations and images until the next part that is not text, or the end."""
        self._sent_entries: dict[str, int] = {}
        self._envelope = b""
        self._head = b""
        self._tail = b',"logprobs":null,"finish_reason":null}]'
        self._tail += b',"usage":null}\n\n' if reply.include_usage else b"}\n\n"

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                if event.logprobs:
                    return self._with_logprobs(event.text, event.logprobs)
                return self._text(_REFUSAL if event.index in self._refusals else _CONTENT, event.text)
            case ReasoningDelta():
                self._non_text += len(event.text)
                return self._text(_REASONING, event.text)
            case ArgumentsDelta():
                return self._arguments(event.index, event.text)
            case PartStarted():
                return self._part(event)
            case PartFinished():
                return self._close_call(event.index)
            case AnnotationDelta():
                self._annotation(event.annotation)
            case UsageReported():
                self._usage = event.usage
            case Started():
                return self._start(event)
            case Finished():
                return self._finish(event)
            case Failed():
                failure = errors.error_frame(event.error)
                return self._collected_delta() + failure
            case _:
                pass
        return b""

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Encode many deltas of one text at once."""
        self.written += sum(map(len, texts))
        head = self._head + (_REFUSAL if index in self._refusals else _CONTENT)
        return b"".join([b'%b"%b"}%b' % (head, text, self._tail) for text in escape_texts(texts)])

    def _start(self, event: Started) -> bytes:
        self._model = event.model or self._reply.model
        head = {
            "id": answer_id(self._reply),
            "object": "chat.completion.chunk",
            "created": self._reply.created,
            "model": self._model,
        }
        self._envelope = json.encode(head)[:-1]
        self._tier(event.extras)
        self._head = b"data: " + self._envelope + b',"choices":[{"index":0,"delta":'
        return self._delta(b'{"role":"assistant","content":""}')

    def _tier(self, extras: dict[str, Json] | None) -> None:
        """Add the provider's service tier to all further chunks."""
        tier = used_tier(extras)
        if tier is not None and b',"service_tier":' not in self._envelope:
            self._envelope += b',"service_tier":' + json.encode(tier)

    def _delta(self, delta: bytes) -> bytes:
        return self._head + delta + self._tail

    def _text(self, field: bytes, text: str) -> bytes:
        self.written += len(text)
        return self._head + field + json.encode(text) + b"}" + self._tail

    def _with_logprobs(self, text: str, logprobs: tuple[Json, ...]) -> bytes:
        self.written += len(text)
        choice = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": {"content": list(logprobs), "refusal": None},
            "finish_reason": None,
        }
        return b"data: " + self._envelope + b',"choices":[' + json.encode(choice) + b"]" + self._close_chunk()

    def _annotation(self, annotation: Json) -> None:
        encoded = annotation_of(annotation, start=self._text_start, end=self.written - self._non_text)
        if encoded is not None:
            self._collected.setdefault("annotations", []).append(encoded)

    def _collected_delta(self) -> bytes:
        """Return the annotations and images since the last such delta, mostly all of the answer in one.

        OpenAI's Python SDK (`chat.completions.stream`) fails at a list in a second delta, if its entries have
        no `index`; its JavaScript SDK keeps only the last list.
        """
        if not self._collected:
            return b""
        delta = {name: self._with_index(name, entries) for name, entries in self._collected.items()}
        self._collected = {}
        return self._delta(json.encode(delta))

    def _with_index(self, name: str, entries: list[Json]) -> list[Json]:
        sent = self._sent_entries.get(name, 0)
        self._sent_entries[name] = sent + len(entries)
        return [
            {**entry, "index": sent + at} if isinstance(entry, dict) and (sent or "index" in entry) else entry
            for at, entry in enumerate(entries)
        ]

    def _close_chunk(self) -> bytes:
        return b',"usage":null}\n\n' if self._reply.include_usage else b"}\n\n"

    def _part(self, event: PartStarted) -> bytes:
        part = event.part
        # Chat decoders, ours too, add annotations to the text that came last.
        collected = b"" if isinstance(part, Text | Opaque) else self._collected_delta()
        if isinstance(part, ToolCall):
            return collected + self._begin_call(event.index, part)
        if isinstance(part, Opaque):
            if part.protocol == "chat":
                self._collected.setdefault("images", []).append(part.value)
            return b""
        if isinstance(part, Refusal):
            self._refusals.add(event.index)
        field = _TEXT_FIELDS.get(type(part))
        text = getattr(part, "text", "")
        if isinstance(part, Text):
            between = TEXT_SEPARATOR if part.apart else ""
            self._text_start = self.written - self._non_text + len(between)
            text = between + text
        else:
            self._non_text += len(text)
        return collected + self._text(field, text) if field is not None and text else collected

    def _begin_call(self, index: int, part: ToolCall) -> bytes:
        name, _, custom = self._names.resolve(part.name)
        unwrapper = InputUnwrapper() if custom and not part.custom else None
        call = _Call(len(self._calls), custom=custom or part.custom, unwrapper=unwrapper)
        self._calls[index] = call
        body = {"name": name, "input": ""} if call.custom else {"name": name, "arguments": ""}
        kind = "custom" if call.custom else "function"
        entry = {"index": call.number, "id": part.id, "type": kind, kind: body}
        return self._delta(json.encode({"tool_calls": [entry]})) + self._arguments(index, part.arguments)

    def _arguments(self, index: int, text: str) -> bytes:
        call = self._calls[index]
        return self._write_arguments(call, text if call.unwrapper is None else call.unwrapper.feed(text))

    def _close_call(self, index: int) -> bytes:
        call = self._calls.get(index)
        return (
            b""
            if call is None or call.unwrapper is None
            else self._write_arguments(call, call.unwrapper.close())
        )

    def _write_arguments(self, call: _Call, text: str) -> bytes:
        if not text:
            return b""
        call.has_arguments = True
        self.written += len(text)
        self._non_text += len(text)
        kind, field = ("custom", "input") if call.custom else ("function", "arguments")
        return self._delta(
            b'{"tool_calls":[{"index":%d,"%s":{"%s":%s}}]}'
            % (call.number, kind.encode(), field.encode(), json.encode(text))
        )

    def _finish(self, event: Finished) -> bytes:
        reason = finish.encode("chat", event.finish)
        self._tier(event.extras)
        out = self._empty_arguments() if event.finish.reason == "tool_calls" else b""
        out += self._collected_delta()
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        out += b"data: " + self._envelope + b',"choices":[' + json.encode(choice) + b"]" + self._close_chunk()
        if self._reply.include_usage:
            usage = self._usage or estimated_usage(self._reply.input_tokens, self.written)
            counted = json.encode(usage_object(usage))
            out += b"data: " + self._envelope + b',"choices":[],"usage":' + counted + b"}\n\n"
        return out + DONE

    def _empty_arguments(self) -> bytes:
        """Complete calls without arguments by `{}`: clients parse the arguments as JSON."""
        calls = [call for call in self._calls.values() if not (call.has_arguments or call.custom)]
        return b"".join(self._write_arguments(call, "{}") for call in calls)


def answer_id(reply: ReplyContext) -> str:
    """Return the id of an answer, the same in all its chunks."""
    return f"chatcmpl-{reply.id}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage as a chat object."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def annotation_of(value: Json, *, start: int, end: int) -> Json | None:
    """Return the annotation in chat's form, or None.

    Its text is at `start` to `end` of the whole answer.
    """
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    # Chat's own form: the details are under the name of the type.
    if isinstance(kind, str) and isinstance(value.get(kind), dict):
        return value
    page = cited_page(value)
    if page is None:
        return None
    first, last = value.get("start_index"), value.get("end_index")
    if not isinstance(first, int) or not isinstance(last, int):
        first, last = 0, end - start
    citation = {
        "url": page[0],
        "title": page[1],
        "start_index": start + first,
        "end_index": start + last,
    }
    return {"type": "url_citation", "url_citation": citation}


def takes_citation(annotation: Json) -> bool:
    """Return whether a chat answer can have this citation."""
    return annotation_of(annotation, start=0, end=0) is not None


def annotations_of(texts: Iterable[Text]) -> list[Json]:
    """Return the annotations of texts that a client gets as one text."""
    encoded = []
    start = 0
    for text in texts:
        start += len(TEXT_SEPARATOR) if text.apart else 0
        end = start + len(text.text)
        encoded += [annotation_of(value, start=start, end=end) for value in text.annotations]
        start = end
    return [annotation for annotation in encoded if annotation is not None]
