"""What a provider sends: whole answers and pieces of them, read tolerantly; usage and logprobs, both ways.

A provider's answer as events: whole or in pieces, by one mapping.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError, UpstreamFailed
from routecodex.canon.events import (
    AnnotationDelta,
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
from routecodex.canon.finish import infer
from routecodex.canon.parts import Json, Media, Opaque, Reasoning, Text, ToolCall
from routecodex.protocols.gemini.content import citations, placeholder
from routecodex.protocols.gemini.errors import error_object, typed_error
from routecodex.protocols.gemini.framing import FrameReader
from routecodex.protocols.gemini.schema import (
    CalledFunction,
    Candidate,
    StreamChunk,
    WireAnswerPart,
    WireUsage,
)
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse

_chunk = Decoder(StreamChunk)


def read_chunk(data: bytes) -> StreamChunk | None:
    """The chunk, its oddly typed fields bent right (`"12"` for 12); None when it is none."""
    chunk = json.try_read(data, _chunk)
    if chunk is not None:
        return chunk
    try:
        return msgspec.convert(json.decode(data), StreamChunk, strict=False)
    except (ValueError, msgspec.ValidationError):
        return None


def raw_parts(data: bytes) -> list[dict[str, Json]]:
    """The parts of the first candidate as they came."""
    for candidate in json.decode(data).get("candidates") or ():
        if not candidate.get("index"):
            return (candidate.get("content") or {}).get("parts") or []
    return []


def decode_usage(counted: WireUsage) -> Usage:
    """The counts in canon: tool-use prompts are input, thoughts are output."""
    thoughts = counted.thoughts_token_count or 0
    prompt = (counted.prompt_token_count or 0) + (counted.tool_use_prompt_token_count or 0)
    written = counted.candidates_token_count
    if written is None:
        written = max(0, (counted.total_token_count or 0) - prompt - thoughts)
    return Usage(
        input=prompt,
        output=written + thoughts,
        cache_read=counted.cached_content_token_count or 0,
        reasoning=thoughts,
    )


def encode_usage(usage: Usage) -> dict[str, Json]:
    """The counts as Google gives them."""
    counted = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counted["thoughtsTokenCount"] = usage.reasoning
    if usage.cache_read:
        counted["cachedContentTokenCount"] = usage.cache_read
    return counted


def decode_logprobs(result: Json) -> tuple[Json, ...]:
    """Google's logprobs as chat's entries, one per token."""
    tops = _listed(result, "topCandidates")
    entries = []
    for at, token in enumerate(_listed(result, "chosenCandidates")):
        others = _listed(tops[at], "candidates") if at < len(tops) else []
        entries.append({**_entry(token), "top_logprobs": [_entry(other) for other in others]})
    return tuple(entries)


def _listed(value: Json, field: str) -> list[Json]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _entry(token: Json) -> dict[str, Json]:
    told = token if isinstance(token, dict) else {}
    text, logprob = told.get("token"), told.get("logProbability")
    text = text if isinstance(text, str) else ""
    spelled = list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob if isinstance(logprob, int | float) else 0.0, "bytes": spelled}


def encode_logprobs(entries: tuple[Json, ...]) -> dict[str, Json]:
    """Chat's entries as Google's logprobs."""
    return {
        "chosenCandidates": [_token(entry) for entry in entries],
        "topCandidates": [
            {"candidates": [_token(other) for other in _listed(entry, "top_logprobs")]} for entry in entries
        ],
    }


def _token(entry: Json) -> dict[str, Json]:
    told = entry if isinstance(entry, dict) else {}
    return {"token": told.get("token", ""), "logProbability": told.get("logprob", 0.0)}


_FILTERS = frozenset({"SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY"})
_KEPT = {
    "grounding_metadata": "groundingMetadata",
    "citation_metadata": "citationMetadata",
    "url_context_metadata": "urlContextMetadata",
    "finish_message": "finishMessage",
}
_ID_LENGTH = 40


def unparsable(what: str) -> UpstreamFailed:
    """The upstream sent something that is not this protocol."""
    return UpstreamFailed(f"the upstream's {what} is not a Gemini answer", code="upstream_unparsable")


def blocked_finish_reason(reason: str) -> str:
    """The finish word for a prompt that was blocked: a filter's, whatever the reason is called."""
    return reason if reason in _FILTERS else "SAFETY"


class ChunkDecoder:
    """Turns chunks into events; at most one text or thought is open at a time.

    A part that is `sealed`, that has its signature, grows no more; but citations may still come for it.
    """

    def __init__(self) -> None:
        self.said: str | None = None
        self._started = False
        self._ended = False
        self._index = -1
        self._open: type[Text] | type[Reasoning] | None = None
        self._sealed = False
        self._words_said: list[str] = []
        self._calls = 0
        self._call_prefix = ""
        self._usage: WireUsage | None = None
        self._extras: dict[str, Json] = {}

    def take(self, chunk: StreamChunk, data: bytes) -> list[Event]:
        """The events of one chunk; `data` is what it was read from."""
        if self._ended:
            return []
        if chunk.error is not None:
            error = error_object({"error": chunk.error}) or {}
            return self.fail(typed_error(error))
        events = self._begin(chunk)
        if chunk.usage_metadata is not None:
            if self._usage is None:
                events.append(UsageReported(decode_usage(chunk.usage_metadata)))
            self._usage = chunk.usage_metadata
        candidate = chunk.candidate
        if candidate is not None:
            self._candidate(candidate, data, events)
        if chunk.block_reason and self.said is None:
            self.said = blocked_finish_reason(chunk.block_reason)
            self._extras["promptFeedback"] = {"blockReason": chunk.block_reason}
        return events

    def finish(self) -> list[Event]:
        """The end of a complete answer."""
        if self._ended:
            return []
        self._ended = True
        events = self._begin(None)
        self._close(events)
        events += self._counted()
        events.append(Finished(infer("gemini", self.said, has_calls=self._calls > 0), self._extras or None))
        return events

    def fail(self, error: GatewayError) -> list[Event]:
        """The end of an answer that broke off."""
        if self._ended:
            return []
        self._ended = True
        return [*self._begin(None), *self._counted(), Failed(error)]

    def _counted(self) -> list[Event]:
        return [UsageReported(decode_usage(self._usage))] if self._usage is not None else []

    def _begin(self, chunk: StreamChunk | None) -> list[Event]:
        if self._started:
            return []
        self._started = True
        id = (chunk.response_id if chunk else None) or ""
        # Ids of calls must differ between answers: clients pair results with them over a whole session.
        self._call_prefix = f"call_{(id or secrets.token_hex(8))[:_ID_LENGTH]}"
        return [Started(id, (chunk.model_version if chunk else None) or "")]

    def _candidate(self, candidate: Candidate, data: bytes, events: list[Event]) -> None:
        logprobs = decode_logprobs(candidate.logprobs_result) if candidate.logprobs_result else ()
        raw: list[dict[str, Json]] = []
        for at, part in enumerate(candidate.parts):
            if part.function_call is not None:
                self._call(part, part.function_call, events)
            elif part.is_known:
                self._words(part, events)
            else:
                raw = raw or raw_parts(data)
                self._opaque(raw[at], placeholder(part), events)
        if logprobs and self._open is Text:
            events.append(TextDelta(self._index, "", logprobs))
        for field, name in _KEPT.items():
            value = getattr(candidate, field)
            if value is not None:
                self._extras[name] = value
        if candidate.grounding_metadata is not None and self._open is Text:
            cited = citations(candidate.grounding_metadata, "".join(self._words_said))
            events += [AnnotationDelta(self._index, citation) for citation in cited]
        if candidate.finish_reason:
            self.said = candidate.finish_reason

    def _words(self, part: WireAnswerPart, events: list[Event]) -> None:
        kind: type[Text] | type[Reasoning] = Reasoning if part.thought else Text
        if not part.text and part.thought_signature is None:
            return
        if self._open is not kind or self._sealed:
            self._start(kind(""), events)
            self._open = kind
        if part.text:
            added = ReasoningDelta if part.thought else TextDelta
            events.append(added(self._index, part.text))
            self._words_said.append(part.text)
        if part.thought_signature is not None:
            events.append(SignatureDelta(self._index, part.thought_signature))
            self._sealed = True

    def _call(self, part: WireAnswerPart, call: CalledFunction, events: list[Event]) -> None:
        id = call.id or f"{self._call_prefix}_{self._calls}"
        self._calls += 1
        self._start(ToolCall(id, call.name or ""), events)
        events.append(ArgumentsDelta(self._index, _arguments(call)))
        if part.thought_signature is not None:
            events.append(SignatureDelta(self._index, part.thought_signature))
        events.append(PartFinished(self._index))

    def _opaque(self, part: dict[str, Json], instead: Text | Media | None, events: list[Event]) -> None:
        self._start(Opaque("gemini", part, instead), events)
        events.append(PartFinished(self._index))

    def _start(self, part: Text | Reasoning | ToolCall | Opaque, events: list[Event]) -> None:
        self._close(events)
        self._index += 1
        events.append(PartStarted(self._index, part))

    def _close(self, events: list[Event]) -> None:
        if self._open is not None:
            events.append(PartFinished(self._index))
            self._open = None
            self._sealed = False
            self._words_said = []


def _arguments(call: CalledFunction) -> str:
    if not json.is_present(call.args):
        return "{}"
    raw = bytes(call.args)
    return (json.encode(json.decode(raw)) if b"\n" in raw else raw).decode()


class StreamDecoder:
    """A stream's bytes as events.

    The end is told at `close`, for some versions of Gemini say `finishReason` in every piece.
    """

    def __init__(self) -> None:
        self._intake = FrameReader()
        self._answering = ChunkDecoder()

    def feed(self, data: bytes) -> Sequence[Event]:
        try:
            run = self._intake.cut(data)
        except sse.FrameTooLarge:
            return self._answering.fail(unparsable("stream"))
        return self._run(run) if run else []

    def close(self) -> Sequence[Event]:
        events = self._run(self._intake.close())
        if self._answering.said is None:
            return events + self._answering.fail(stream_truncated())
        return events + self._answering.finish()

    def _run(self, run: bytes) -> list[Event]:
        events: list[Event] = []
        for block in run.split(b"\n\n"):
            frame = sse.parse(block)
            if frame is None or frame.data == b"[DONE]":
                continue
            chunk = read_chunk(frame.data)
            if chunk is None:
                return events + self._answering.fail(unparsable("stream"))
            events += self._answering.take(chunk, frame.data)
        return events


def stream_decoder() -> StreamDecoder:
    """A decoder for one stream."""
    return StreamDecoder()


def read_answer(body: bytes) -> StreamChunk:
    """A whole answer: an error, a blocked prompt or a candidate; anything else is raised as unparsable."""
    chunk = read_chunk(body)
    if chunk is None or not (chunk.candidate or chunk.block_reason or chunk.error):
        raise unparsable("answer")
    return chunk
