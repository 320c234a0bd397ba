"""Decodes a provider's answer, streamed or whole, into events."""

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
from routecodex.protocols import codec
from routecodex.protocols.gemini.content import GroundedText, citations, list_field, placeholder
from routecodex.protocols.gemini.errors import error_object, typed_error
from routecodex.protocols.gemini.framing import FrameReader
from routecodex.protocols.gemini.partial_arguments import PartialArguments
from routecodex.protocols.gemini.schema import (
    CalledFunction,
    Candidate,
    StreamChunk,
    WireAnswerPart,
    WireUsage,
)
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.protocols.usage import counted, loose_tokens
from routecodex.wire import json, sse

_chunk = Decoder(StreamChunk)
_fields = Decoder(dict[str, msgspec.Raw])
_USAGE = "usageMetadata"
_FILTERS = frozenset({"SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY"})
_CANDIDATE_EXTRAS = {
    "grounding_metadata": "groundingMetadata",
    "citation_metadata": "citationMetadata",
    "url_context_metadata": "urlContextMetadata",
    "finish_message": "finishMessage",
}
_ID_LENGTH = 40


class StreamDecoder(codec.StreamDecoder):
    """Decodes the bytes of one stream; see codec.StreamDecoder.

    The end is reported at `close`, because some Gemini versions send `finishReason` in every chunk.
    """

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._decoder = ChunkDecoder()

    def feed(self, data: bytes) -> Sequence[Event]:
        try:
            run = self._reader.cut(data)
        except sse.FrameTooLarge:
            return self._decoder.fail(unparsable("stream"))
        return self._decode(run) if run else []

    def fail(self, error: GatewayError) -> Sequence[Event]:
        return self._decoder.fail(error)

    def reported(self) -> Usage | None:
        return self._decoder.reported()

    def close(self) -> Sequence[Event]:
        events = self._decode(b"".join([frame.raw for frame in self._reader.close()]))
        if self._decoder.finish_reason is None:
            return events + self._decoder.fail(stream_truncated())
        return events + self._decoder.finish()

    def _decode(self, run: bytes) -> list[Event]:
        events: list[Event] = []
        for block in run.split(b"\n\n"):
            frame = sse.parse(block)
            if frame is None or frame.data == b"[DONE]":
                continue
            chunk = read_chunk(frame.data)
            if chunk is None:
                return events + self._decoder.fail(unparsable("stream"))
            events += self._decoder.decode(chunk, frame.data)
        return events


def unparsable(subject: str) -> UpstreamFailed:
    """Return the error for an answer or a stream that is not of this protocol."""
    return UpstreamFailed(f"the upstream's {subject} is not a Gemini answer", code="upstream_unparsable")


def read_chunk(data: bytes) -> StreamChunk | None:
    """Return the chunk, or None if the data is not one; numbers may be strings (protobuf JSON of int64)."""
    chunk = json.try_read(data, _chunk)
    if chunk is not None:
        return chunk
    try:
        return msgspec.convert(json.decode(data), StreamChunk, strict=False)
    except (ValueError, msgspec.ValidationError):
        return _read_loosely(data)


def _read_loosely(data: bytes) -> StreamChunk | None:
    """Return a chunk without the counts that make no sense: an answer must not fail by them."""
    fields = json.try_read(data, _fields)
    if fields is None or _USAGE not in fields:
        return None
    usage = json.decode_answer(fields[_USAGE])
    counts = usage.items() if isinstance(usage, dict) else ()
    found = {name: loose_tokens(count) for name, count in counts if name.endswith("TokenCount")}
    return json.try_read(json.encode({**fields, _USAGE: found}), _chunk)


def read_answer(body: bytes) -> StreamChunk:
    """Return a whole answer: an error, a blocked prompt or a candidate; raise for anything else."""
    chunk = read_chunk(body)
    if chunk is None or not (chunk.candidate or chunk.block_reason or chunk.error):
        raise unparsable("answer")
    return chunk


def finishes(chunk: StreamChunk) -> bool:
    """Return whether a chunk has a finish reason."""
    return chunk.candidate is not None and bool(chunk.candidate.finish_reason)


def has_content(chunk: StreamChunk) -> bool:
    """Return whether a chunk has text, a call or an unknown part."""
    parts = chunk.candidate.parts if chunk.candidate else ()
    return not all(map(is_empty_part, parts))


def is_empty_part(part: WireAnswerPart) -> bool:
    """Return whether a part has neither text nor a call; unknown parts count as content."""
    return not (part.text or part.function_call) and part.is_known


class ChunkDecoder:
    """Decodes chunks into events; at most one text or reasoning part is open at a time.

    A part with its signature is `sealed`: it gets no more text, but citations may still follow.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._repeats_finish = False
        """Content came with a finish reason again: none of them proves the end."""
        self._started = False
        self._ended = False
        self._index = -1
        self._open: type[Text] | type[Reasoning] | None = None
        self._sealed = False
        self._texts: list[str] = []
        self._grounded: GroundedText | None = None
        """The text of the open part, once there is grounding for it; `_texts` is what came since."""
        self._calls = 0
        self._partial: PartialArguments | None = None
        """The arguments of the open call, if they arrive in several parts."""
        self._calls_whole = True
        self._call_prefix = ""
        self._usage: WireUsage | None = None
        self._extras: dict[str, Json] = {}

    def decode(self, chunk: StreamChunk, data: bytes) -> list[Event]:
        """Return the events of one chunk; `data` is its JSON."""
        if self._ended:
            return []
        if chunk.error is not None:
            error = error_object({"error": chunk.error}) or {}
            return self.fail(typed_error(error))
        if self.finish_reason is not None and has_content(chunk):
            if not finishes(chunk):
                return []
            self._repeats_finish = True
        events = self._begin(chunk)
        if chunk.usage_metadata is not None:
            is_first, self._usage = self._usage is None, chunk.usage_metadata
            if is_first:
                events += self._usage_events()
        candidate = chunk.candidate
        if candidate is not None:
            self._candidate(candidate, data, events)
        if chunk.block_reason and self.finish_reason is None:
            self.finish_reason = blocked_finish_reason(chunk.block_reason)
            self._extras["promptFeedback"] = {"blockReason": chunk.block_reason}
        return events

    def finish(self) -> list[Event]:
        """Return the events that end a complete answer."""
        if self._ended:
            return []
        self._ended = True
        events = self._begin(None)
        self._calls_whole = self._partial is None or self.finish_reason == "STOP"
        self._close(events)
        events += self._usage_events()
        end = infer("gemini", self.finish_reason, has_calls=self._calls > 0, calls_whole=self._calls_whole)
        events.append(Finished(end, self._extras or None))
        return events

    def fail(self, error: GatewayError) -> list[Event]:
        """Return the events that end an answer that broke; after its finish reason it is complete."""
        if self._ended:
            return []
        if self.finish_reason is not None and not self._repeats_finish:
            return self.finish()
        self._ended = True
        return [*self._begin(None), *self._usage_events(), Failed(error)]

    def reported(self) -> Usage | None:
        """Return the counts of the last chunk that had some."""
        return decode_usage(self._usage) if self._usage is not None else None

    def _usage_events(self) -> list[Event]:
        usage = self.reported()
        return [UsageReported(usage)] if usage is not None else []

    def _begin(self, chunk: StreamChunk | None) -> list[Event]:
        if self._started:
            return []
        self._started = True
        id = (chunk.response_id if chunk else None) or ""
        # Call ids must be unique over a session, because clients pair results by them.
        self._call_prefix = f"call_{(id or secrets.token_hex(8))[:_ID_LENGTH]}"
        return [Started(id, (chunk.model_version if chunk else None) or "")]

    def _candidate(self, candidate: Candidate, data: bytes, events: list[Event]) -> None:
        logprobs = decode_logprobs(candidate.logprobs_result) if candidate.logprobs_result else ()
        raw: list[dict[str, Json]] = []
        for at, part in enumerate(candidate.parts):
            if part.function_call is not None:
                self._call(part, part.function_call, events)
            elif part.is_known:
                self._text(part, events)
            else:
                raw = raw or raw_parts(data)
                self._opaque(raw[at], placeholder(part), events)
        if logprobs and self._open is Text:
            events.append(TextDelta(self._index, "", logprobs))
        for field, name in _CANDIDATE_EXTRAS.items():
            value = getattr(candidate, field)
            if value is not None:
                self._extras[name] = value
        if candidate.grounding_metadata is not None and self._open is Text:
            cited = citations(candidate.grounding_metadata, self._grounded_text())
            events += [AnnotationDelta(self._index, citation) for citation in cited]
        if candidate.finish_reason:
            self.finish_reason = candidate.finish_reason

    def _text(self, part: WireAnswerPart, events: list[Event]) -> None:
        kind: type[Text] | type[Reasoning] = Reasoning if part.thought else Text
        if not part.text and part.thought_signature is None:
            return
        if self._open is not kind or self._sealed:
            self._start(kind(""), events)
            self._open = kind
        if part.text:
            added = ReasoningDelta if part.thought else TextDelta
            events.append(added(self._index, part.text))
            self._texts.append(part.text)
        if part.thought_signature is not None:
            events.append(SignatureDelta(self._index, part.thought_signature))
            self._sealed = True

    def _call(self, part: WireAnswerPart, call: CalledFunction, events: list[Event]) -> None:
        if not call.name and (self._partial is not None or not _has_arguments(call)):
            self._continue_call(part, call, events)
            return
        id = call.id or f"{self._call_prefix}_{self._calls}"
        self._calls += 1
        self._start(ToolCall(id, call.name or ""), events)
        if call.will_continue or call.partial_args:
            self._partial = PartialArguments()
            self._continue_call(part, call, events)
            return
        events.append(ArgumentsDelta(self._index, _arguments(call)))
        if part.thought_signature is not None:
            events.append(SignatureDelta(self._index, part.thought_signature))
        events.append(PartFinished(self._index))

    def _continue_call(self, part: WireAnswerPart, call: CalledFunction, events: list[Event]) -> None:
        """Add to the open call; a piece without an open call has nothing to add to and is skipped."""
        if self._partial is None:
            return
        self._partial.merge(json.decode_raw(call.args))
        self._partial.add(call.partial_args)
        if part.thought_signature is not None:
            events.append(SignatureDelta(self._index, part.thought_signature))
        if not call.will_continue:
            self._close(events)

    def _opaque(self, part: dict[str, Json], substitute: Text | Media | None, events: list[Event]) -> None:
        self._start(Opaque("gemini", part, substitute), events)
        events.append(PartFinished(self._index))

    def _start(self, part: Text | Reasoning | ToolCall | Opaque, events: list[Event]) -> None:
        self._close(events)
        self._index += 1
        events.append(PartStarted(self._index, part))

    def _close(self, events: list[Event]) -> None:
        if self._partial is not None:
            text = self._partial.text(complete=self._calls_whole)
            self._partial = None
            events += (ArgumentsDelta(self._index, text), PartFinished(self._index))
        if self._open is not None:
            events.append(PartFinished(self._index))
            self._open = None
            self._sealed = False
            self._texts = []
            self._grounded = None

    def _grounded_text(self) -> GroundedText:
        if self._grounded is None:
            self._grounded = GroundedText()
        self._grounded.add("".join(self._texts))
        self._texts = []
        return self._grounded


def raw_parts(data: bytes) -> list[dict[str, Json]]:
    """Return the parts of the first candidate as plain JSON values."""
    for candidate in json.decode_lossy(data).get("candidates") or ():
        # An index may be a text (protobuf JSON of int64).
        if not int(candidate.get("index") or 0):
            return (candidate.get("content") or {}).get("parts") or []
    return []


def _has_arguments(call: CalledFunction) -> bool:
    return json.is_present(call.args)


def _arguments(call: CalledFunction) -> str:
    if not json.is_present(call.args):
        return "{}"
    text = bytes(call.args).decode("utf-8", "replace")
    return json.encode(json.decode(text)).decode() if "\n" in text else text


def blocked_finish_reason(reason: str) -> str:
    """Return the finish reason for a blocked prompt: one of a filter, whatever the block reason."""
    return reason if reason in _FILTERS else "SAFETY"


def decode_usage(usage: WireUsage) -> Usage | None:
    """Return the canonical counts: prompts of tools are input, thoughts are output; None without a count."""
    thoughts = usage.thoughts_token_count or 0
    prompt = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    output = usage.candidates_token_count
    if output is None:
        output = max(0, (usage.total_token_count or 0) - prompt - thoughts)
    return counted(
        Usage(
            input=prompt,
            output=output + thoughts,
            cache_read=usage.cached_content_token_count or 0,
            reasoning=thoughts,
        )
    )


def decode_logprobs(result: Json) -> tuple[Json, ...]:
    """Return Google's logprobs as chat's entries, one per token."""
    tops = list_field(result, "topCandidates")
    entries = []
    for at, token in enumerate(list_field(result, "chosenCandidates")):
        others = list_field(tops[at], "candidates") if at < len(tops) else []
        entries.append({**_logprob(token), "top_logprobs": [_logprob(other) for other in others]})
    return tuple(entries)


def _logprob(candidate: Json) -> dict[str, Json]:
    fields = candidate if isinstance(candidate, dict) else {}
    token, logprob = fields.get("token"), fields.get("logProbability")
    token = token if isinstance(token, str) else ""
    data = list(token.encode("utf-8", "replace"))
    return {"token": token, "logprob": logprob if isinstance(logprob, int | float) else 0.0, "bytes": data}
