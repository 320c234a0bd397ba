"""Events as a Gemini client reads them: frames of a stream, or one whole answer.

Pieces of text go out as they come; a call only when it is whole; the last frame bears `finishReason` and
`usageMetadata`. There is no `[DONE]`, no comment, no event name.

A failure in the middle is a frame `{"error": …}`. Google's Python SDK raises APIError for it (the frame must
begin with `error`); its JavaScript SDK looks for errors only outside frames and takes this one for an empty
piece, so the connection must be aborted after it: then that SDK throws too.
"""

from __future__ import annotations

from msgspec import Raw, Struct

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
from routecodex.protocols.gemini.decode_stream import encode_logprobs, encode_usage
from routecodex.protocols.gemini.errors import encode_error
from routecodex.protocols.gemini.thinking import seal_signature
from routecodex.protocols.tool_mapping import ToolNames
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json, sse

_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "finishMessage")
_PartEvent = TextDelta | ReasoningDelta | SignatureDelta | ArgumentsDelta | AnnotationDelta | PartFinished


class _Growing(Struct):
    """A part under way: what it is, and what of it can only be written at its end."""

    part: AnswerPart
    arguments: list[str]
    signature: list[str]
    waiting: list[_PartEvent]


class PartEncoder:
    """How this answer speaks: the client's names for tools, sealed signatures, the answer's own ids."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._names = ToolNames(reply.request.tools if reply.request else ())

    def sign(self, part: dict[str, Json], signature: str | None) -> dict[str, Json]:
        """The part with its signature, if any."""
        if signature:
            part["thoughtSignature"] = seal_signature(self._reply.provider, signature)
        return part

    def call(self, call: ToolCall) -> dict[str, Json] | None:
        """A call as a part; None when its arguments were cut off: half a call must not be run."""
        name = self._names.resolve(call.name)[0]
        arguments = {"input": call.arguments} if call.custom else _object(call.arguments)
        if arguments is None:
            return None
        return self.sign({"functionCall": {"id": call.id, "name": name, "args": arguments}}, call.signature)

    def part(self, part: AnswerPart) -> dict[str, Json] | None:
        """A whole part, or None when there is nothing to say."""
        match part:
            case Text():
                if not part.text and not part.signature:
                    return None
                return self.sign({"text": part.text}, part.signature)
            case Reasoning():
                if not part.text and not part.signature:
                    return None
                return self.sign({"text": part.text, "thought": True}, part.signature)
            case Refusal():
                return {"text": part.text} if part.text else None
            case ToolCall():
                return self.call(part)
            case Opaque():
                return part.value if part.protocol == "gemini" else None

    def answer(self, candidate: dict[str, Json]) -> dict[str, Json]:
        """A GenerateContentResponse without usage."""
        return {
            "candidates": [{**candidate, "index": 0}],
            "modelVersion": self._reply.model,
            "responseId": self._reply.id,
        }

    def ending(
        self, finish: Finish, extras: dict[str, Json] | None, *, cited: tuple[Json, ...]
    ) -> dict[str, Json]:
        """The fields of the candidate that say how it ended."""
        word = encode("gemini", finish)
        fields: dict[str, Json] = {"finishReason": word}
        fields.update({name: extras[name] for name in _METADATA if name in extras} if extras else {})
        sources = [_source(citation) for citation in cited if isinstance(citation, dict)]
        sources = [source for source in sources if source["uri"]]
        if sources and "groundingMetadata" not in fields:
            fields.setdefault("citationMetadata", {"citationSources": sources})
        return fields


def _object(arguments: str) -> Json:
    text = arguments.strip()
    if not text:
        return {}
    if not json.is_whole(text):
        return None
    return Raw(text.encode()) if text[0] == "{" else {"input": Raw(text.encode())}


def _source(citation: dict[str, Json]) -> dict[str, Json]:
    where = citation.get("url_citation") if isinstance(citation.get("url_citation"), dict) else citation
    assert isinstance(where, dict)
    return {
        "startIndex": where.get("start_index") or 0,
        "endIndex": where.get("end_index") or 0,
        "uri": where.get("url") or "",
    }


class StreamEncoder:
    """Writes one stream; parts that overlap are written one after the other, in order of their start."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._speech = PartEncoder(reply)
        self._growing: dict[int, _Growing] = {}
        self._usage: Usage | None = None
        self._written = 0
        self._cited: list[Json] = []
        tail = json.encode({"modelVersion": reply.model, "responseId": reply.id})[1:]
        self._close = b'}],"role":"model"},"index":0}],' + tail + b"\n\n"
        self._text = b'data: {"candidates":[{"content":{"parts":[{"text":'
        self._thought = b'data: {"candidates":[{"content":{"parts":[{"thought":true,"text":'
        self.keep_alive = self._text + b'""' + self._close
        """A piece without a word: Google's SDKs choke on comments, and gemini-cli on blank lines too."""

    def encode(self, event: Event) -> bytes:
        """The frames this event gives, if any."""
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                self._written += len(event.text)
                return self._of_part(event)
            case SignatureDelta() | AnnotationDelta() | PartFinished():
                return self._of_part(event)
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
        self._growing[event.index] = _Growing(event.part, [], [], [])
        part = event.part
        if not isinstance(part, Text | Refusal | Reasoning) or not part.text:
            return b""
        added = ReasoningDelta if isinstance(part, Reasoning) else TextDelta
        return self._of_part(added(event.index, part.text))

    def _of_part(self, event: _PartEvent) -> bytes:
        growing = self._growing.get(event.index)
        if growing is None:
            return b""
        if event.index != next(iter(self._growing)):
            growing.waiting.append(event)
            return b""
        out = self._write(event, growing)
        return out if event.index in self._growing else out + self._next()

    def _next(self) -> bytes:
        """The part before is done: what waited behind it comes out."""
        out = b""
        while self._growing:
            index, growing = next(iter(self._growing.items()))
            waiting, growing.waiting = growing.waiting, []
            out += b"".join([self._write(event, growing) for event in waiting])
            if index in self._growing:
                break
        return out

    def _write(self, event: _PartEvent, growing: _Growing) -> bytes:
        match event:
            case TextDelta():
                if event.logprobs:
                    return self._scored(event)
                return self._text + json.encode(event.text) + self._close if event.text else b""
            case ReasoningDelta():
                return self._thought + json.encode(event.text) + self._close if event.text else b""
            case ArgumentsDelta():
                growing.arguments.append(event.text)
            case SignatureDelta():
                growing.signature.append(event.signature)
            case AnnotationDelta():
                self._cited.append(event.annotation)
            case PartFinished():
                del self._growing[event.index]
                return self._end_part(growing)
        return b""

    def _scored(self, event: TextDelta) -> bytes:
        content = {"parts": [{"text": event.text}], "role": "model"}
        candidate = {"content": content, "logprobsResult": encode_logprobs(event.logprobs)}
        return sse.frame(json.encode(self._speech.answer(candidate)))

    def _end_part(self, growing: _Growing) -> bytes:
        """What is left to say of a part: a call, an opaque part, or the signature of words already said."""
        signature = "".join(growing.signature) or None
        part: AnswerPart = growing.part
        match part:
            case Text():
                part = Text("", signature=signature or part.signature)
            case Reasoning():
                part = Reasoning("", signature=signature or part.signature)
            case ToolCall():
                part = _grown(part, "".join(growing.arguments), signature=signature)
            case Refusal():
                part = Refusal("")
            case Opaque():
                pass
        wire = self._speech.part(part)
        if wire is None:
            return b""
        content = {"content": {"parts": [wire], "role": "model"}}
        return sse.frame(json.encode(self._speech.answer(content)))

    def _finish(self, event: Finished) -> bytes:
        ending = self._speech.ending(event.finish, event.extras, cited=tuple(self._cited))
        usage = self._usage or estimated_usage(self._reply.input_tokens, self._written)
        answer = self._speech.answer({"content": {"parts": [{"text": ""}], "role": "model"}, **ending})
        return sse.frame(json.encode({**answer, "usageMetadata": encode_usage(usage)}))


def _grown(call: ToolCall, arguments: str, *, signature: str | None) -> ToolCall:
    return ToolCall(
        call.id,
        call.name,
        call.arguments + arguments,
        custom=call.custom,
        namespace=call.namespace,
        signature=signature or call.signature,
    )


def stream_encoder(reply: ReplyContext) -> StreamEncoder:
    """An encoder for one stream."""
    return StreamEncoder(reply)
