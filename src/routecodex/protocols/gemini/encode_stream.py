"""Encodes events as a Gemini stream; PartEncoder also serves non-streaming answers.

Text is sent as it arrives, a call only when it is complete. The last frame has `finishReason` and
`usageMetadata`. There is no `[DONE]`, no comment and no event name.

A failure in mid-stream is a frame `{"error": …}`. Google's Python SDK raises APIError for it, if the frame
starts with `error`. Its JavaScript SDK looks for errors only outside frames and takes this one for an empty
chunk, so the connection is aborted after it; then that SDK throws too.
"""

from __future__ import annotations

from collections import deque

from msgspec import Raw, Struct
from msgspec.structs import replace

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
from routecodex.protocols import codec
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.gemini.content import list_field
from routecodex.protocols.gemini.errors import encode_error
from routecodex.protocols.gemini.thinking import REDACTED, seal_signature
from routecodex.protocols.tool_mapping import ToolNames
from routecodex.protocols.translation import cited_page, estimated_usage
from routecodex.wire import json, sse

_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "finishMessage")
_PartEvent = TextDelta | ReasoningDelta | SignatureDelta | ArgumentsDelta | AnnotationDelta | PartFinished


class _OpenPart(Struct):
    """A part in progress, and the deltas that are written at its end."""

    part: AnswerPart
    arguments: list[str]
    signature: list[str]
    waiting: list[_PartEvent]


class PartEncoder:
    """Encodes parts and the candidate of one answer: the client's tool names, sealed signatures, ids."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._names = ToolNames(reply.request.tools if reply.request else ())

    def sign(self, part: dict[str, Json], signature: str | None) -> dict[str, Json]:
        """Return the part with its signature, if any."""
        if signature:
            part["thoughtSignature"] = seal_signature(self._reply.provider, signature)
        return part

    def call(self, call: ToolCall) -> dict[str, Json] | None:
        """Return a call as a part, or None if its arguments are truncated: such a call must not run."""
        name = self._names.resolve(call.name)[0]
        arguments = {"input": call.arguments} if call.custom else _arguments(call.arguments)
        if arguments is None:
            return None
        return self.sign({"functionCall": {"id": call.id, "name": name, "args": arguments}}, call.signature)

    def part(self, part: AnswerPart) -> dict[str, Json] | None:
        """Return a complete part, or None if it has no content."""
        match part:
            case Text():
                if not part.text and not part.signature:
                    return None
                return self.sign({"text": part.text}, part.signature)
            case Reasoning():
                if not part.text and not part.signature:
                    return None
                mark = REDACTED if part.redacted and part.signature and self._reply.provider else ""
                return self.sign({"text": part.text, "thought": True}, f"{mark}{part.signature or ''}")
            case Refusal():
                return {"text": part.text} if part.text else None
            case ToolCall():
                return self.call(part)
            case Opaque():
                return part.value if part.protocol == "gemini" else None

    def answer(self, candidate: dict[str, Json]) -> dict[str, Json]:
        """Return a GenerateContentResponse without usage."""
        return {
            "candidates": [{**candidate, "index": 0}],
            "modelVersion": self._reply.model,
            "responseId": self._reply.id,
        }

    def finish_fields(
        self, finish: Finish, extras: dict[str, Json] | None, *, citations: tuple[Json, ...]
    ) -> dict[str, Json]:
        """Return the finish reason, the metadata and the citations of the candidate."""
        fields: dict[str, Json] = {"finishReason": encode("gemini", finish)}
        fields.update({name: extras[name] for name in _METADATA if name in extras} if extras else {})
        sources = [_citation_source(citation) for citation in citations if takes_citation(citation)]
        if sources and "groundingMetadata" not in fields:
            fields.setdefault("citationMetadata", {"citationSources": sources})
        return fields


def _arguments(arguments: str) -> Json:
    text = arguments.strip()
    if not text:
        return {}
    if not json.is_whole(text):
        return None
    # A frame may not contain the line ends of arguments that a model has indented.
    written = json.encode(json.decode(text)) if "\n" in text or "\r" in text else text.encode()
    return Raw(written) if text[0] == "{" else {"input": Raw(written)}


def _citation_source(citation: dict[str, Json]) -> dict[str, Json]:
    nested = citation.get("url_citation")  # The shape of chat (OpenAI API reference, annotations).
    fields = nested if isinstance(nested, dict) else citation
    page = cited_page(citation)
    return {
        "startIndex": fields.get("start_index") or 0,
        "endIndex": fields.get("end_index") or 0,
        "uri": page[0] if page is not None else "",
    }


def takes_citation(annotation: Json) -> bool:
    """Return whether a Gemini answer can have this citation."""
    return cited_page(annotation) is not None


class StreamEncoder(codec.StreamEncoder):
    """Encodes one stream; overlapping parts are written one after the other, in order of their start."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._encoder = PartEncoder(reply)
        self._open_parts: dict[int, _OpenPart] = {}
        self._order: deque[int] = deque()
        """Indexes of the open parts in order of their start: the first is written, the others wait."""
        self._usage: Usage | None = None
        self.written = 0
        self._citations: list[Json] = []
        tail = json.encode({"modelVersion": reply.model, "responseId": reply.id})[1:]
        self._frame_end = b'}],"role":"model"},"index":0}],' + tail + b"\n\n"
        self._text_start = b'data: {"candidates":[{"content":{"parts":[{"text":'
        self._thought_start = b'data: {"candidates":[{"content":{"parts":[{"thought":true,"text":'

    @property
    def keep_alive(self) -> bytes:
        """A frame with empty text: Google's Python SDK fails on comments, gemini-cli on blank lines too."""
        return self._text_start + b'""' + self._frame_end

    def encode(self, event: Event) -> bytes:
        """Return the frames for this event, if any."""
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                self.written += len(event.text)
                return self._part_event(event)
            case SignatureDelta() | AnnotationDelta() | PartFinished():
                return self._part_event(event)
            case PartStarted():
                return self._start(event)
            case UsageReported():
                self._usage = event.usage
                return b""
            case Finished():
                return self._finish(event)
            case Failed():
                return sse.frame(json.encode(encode_error(event.error)[1]))
            case Started():
                return b""

    def _start(self, event: PartStarted) -> bytes:
        if event.index not in self._open_parts:
            self._order.append(event.index)
        self._open_parts[event.index] = _OpenPart(event.part, [], [], [])
        part = event.part
        if not isinstance(part, Text | Refusal | Reasoning) or not part.text:
            return b""
        added = ReasoningDelta if isinstance(part, Reasoning) else TextDelta
        return self._part_event(added(event.index, part.text))

    def _part_event(self, event: _PartEvent) -> bytes:
        part = self._open_parts.get(event.index)
        if part is None:
            return b""
        if event.index != self._order[0]:
            part.waiting.append(event)
            return b""
        out = self._write(event, part)
        return out if event.index in self._open_parts else out + self._release()

    def _release(self) -> bytes:
        """Return the frames of parts that waited for the current part to end."""
        out: list[bytes] = []
        while self._order:
            index = self._order[0]
            part = self._open_parts[index]
            waiting, part.waiting = part.waiting, []
            out += [self._write(event, part) for event in waiting]
            if index in self._open_parts:
                break
        return b"".join(out)

    def _write(self, event: _PartEvent, part: _OpenPart) -> bytes:
        match event:
            case TextDelta():
                if event.logprobs:
                    return self._text_with_logprobs(event)
                return self._text_start + json.encode(event.text) + self._frame_end if event.text else b""
            case ReasoningDelta():
                return self._thought_start + json.encode(event.text) + self._frame_end if event.text else b""
            case ArgumentsDelta():
                part.arguments.append(event.text)
            case SignatureDelta():
                part.signature.append(event.signature)
            case AnnotationDelta():
                self._citations.append(event.annotation)
            case PartFinished():
                del self._open_parts[event.index]
                self._order.popleft()
                return self._end_part(part)
        return b""

    def _text_with_logprobs(self, event: TextDelta) -> bytes:
        content = {"parts": [{"text": event.text}], "role": "model"}
        candidate = {"content": content, "logprobsResult": encode_logprobs(event.logprobs)}
        return sse.frame(json.encode(self._encoder.answer(candidate)))

    def _end_part(self, ended: _OpenPart) -> bytes:
        """Return the rest of a part at its end: a call, an opaque part, or the signature of sent text."""
        signature = "".join(ended.signature) or None
        part: AnswerPart = ended.part
        match part:
            case Text():
                part = Text("", signature=signature or part.signature)
            case Reasoning():
                part = Reasoning("", signature=signature or part.signature, redacted=part.redacted)
            case ToolCall():
                arguments = part.arguments + "".join(ended.arguments)
                part = replace(part, arguments=arguments, signature=signature or part.signature)
            case Refusal():
                part = Refusal("")
            case Opaque():
                pass
        wire = self._encoder.part(part)
        if wire is None:
            return b""
        content = {"content": {"parts": [wire], "role": "model"}}
        return sse.frame(json.encode(self._encoder.answer(content)))

    def _finish(self, event: Finished) -> bytes:
        fields = self._encoder.finish_fields(event.finish, event.extras, citations=tuple(self._citations))
        usage = self._usage or estimated_usage(self._reply.input_tokens, self.written)
        answer = self._encoder.answer({"content": {"parts": [{"text": ""}], "role": "model"}, **fields})
        return sse.frame(json.encode({**answer, "usageMetadata": encode_usage(usage)}))


def encode_usage(usage: Usage) -> dict[str, Json]:
    """Return the counts in Google's fields."""
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counts["thoughtsTokenCount"] = usage.reasoning
    if usage.cache_read:
        counts["cachedContentTokenCount"] = usage.cache_read
    return counts


def encode_logprobs(entries: tuple[Json, ...]) -> dict[str, Json]:
    """Return chat's entries as Google's logprobs."""
    return {
        "chosenCandidates": [_logprob(entry) for entry in entries],
        "topCandidates": [
            {"candidates": [_logprob(other) for other in list_field(entry, "top_logprobs")]}
            for entry in entries
        ],
    }


def _logprob(entry: Json) -> dict[str, Json]:
    fields = entry if isinstance(entry, dict) else {}
    return {"token": fields.get("token", ""), "logProbability": fields.get("logprob", 0.0)}
