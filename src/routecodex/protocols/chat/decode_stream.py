"""Decodes a chat stream into events."""

from __future__ import annotations

import secrets
from typing import Final

from msgspec import Raw

from routecodex.canon import finish
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
    UsageReported,
)
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols import codec, upstream_errors
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.chunks import (
    CONTENT_KEY,
    ToolCallIndex,
    adds_text,
    has_error,
    images_of,
    is_empty,
    is_plain_text,
    read_chunk,
    reasoning_details_of,
    transcript_of,
    usage_of,
)
from routecodex.protocols.chat.encode_messages import TEXT_SEPARATOR
from routecodex.protocols.chat.reasoning_details import DetailsCollector
from routecodex.protocols.chat.schema import StreamChunk, WireChoice, WireDelta, WireToolCallDelta
from routecodex.protocols.chat.sources import cited_sources
from routecodex.protocols.text_batches import FrameTemplate, StreamItem, TextBatch, frame_at, unbatched
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.json import ABSENT, decode_raw
from routecodex.wire.sse import Frames, FrameTooLarge

_MOST_READINGS: Final = 8
"""Times that the arguments of a call are read while they grow."""

_EMPTY_PARTS: dict[str, AnswerPart] = {"text": Text(""), "refusal": Refusal(""), "reasoning": Reasoning()}


class _Call:
    """A tool call while it arrives; `announced` once its PartStarted was sent."""

    __slots__ = ("_pieces", "_read", "_size", "announced", "custom", "finished", "grown", "id", "index")

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.grown = False
        self.index = -1
        self.announced = False
        self.custom = False
        self.finished = False
        self._pieces: list[str] = []
        self._size = 0
        self._read = 0

    def add(self, text: str) -> None:
        """Add a piece of the arguments."""
        self._pieces.append(text)
        self._size += len(text)

    def arguments(self) -> str:
        """Return the arguments so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def is_whole(self) -> bool:
        """Whether its arguments are complete JSON."""
        return json.is_whole(self.arguments())

    def seems_whole(self) -> bool:
        """Do the same, but do not read the same arguments again and again: the answer is then False."""
        if self._read > _MOST_READINGS * self._size:
            return False
        self._read += self._size
        return self.is_whole()

    def is_half(self) -> bool:
        """Whether its arguments are incomplete JSON; the input of a custom tool is free text."""
        return self._size > 0 and not self.custom and not self.is_whole()


class ChunkDecoder:
    """Decodes chunks into events; shared by streams and whole answers."""

    def __init__(self) -> None:
        self.started = False
        self.finish_reason: str | None = None
        self.ended = False
        self._repeats_finish = False
        """Text came with a finish reason again: none of them proves the end (Gemini 1.x, gcli2api)."""
        self._next = 0
        self._open: tuple[str, int] | None = None
        self._calls: list[_Call] = []
        self._grown: list[_Call] = []
        """Calls that were announced, or whose arguments have grown, since the last call began."""
        self._index = ToolCallIndex()
        self._answer_id: str | None = None
        self._call_prefix = ""
        self._extras: dict[str, Json] = {}
        self._details_index = -1
        self._details: DetailsCollector | None = None
        self._sources: tuple[Raw, Raw] | None = None
        """`citations` and `search_results` of Perplexity."""
        self._cited_text: list[str] = []
        self._cited_part = -1

    def chunk(self, chunk: StreamChunk, out: list[StreamItem]) -> None:
        if has_error(chunk):
            self.fail(errors.typed_error(200, decode_raw(chunk.error), provider=""), out)
            return
        if not self.started:
            self.started = True
            self._answer_id = chunk.id
            out.append(Started(chunk.id or "", chunk.model or "", chunk.created))
        if chunk.service_tier:
            self._extras["service_tier"] = chunk.service_tier
        if chunk.system_fingerprint:
            self._extras["system_fingerprint"] = chunk.system_fingerprint
        if chunk.citations is not ABSENT:
            self._sources = chunk.citations.copy(), chunk.search_results.copy()
        for choice in chunk.choices or ():
            if choice.index == 0:
                self._choice(choice, out)
        usage = chunk.usage if chunk.x_groq is None else chunk.counts
        found = usage_of(usage, chunk.service_tier) if usage is not None else None
        if found is not None:
            out.append(UsageReported(found))

    def texts(self, texts: list[str], out: list[StreamItem]) -> None:
        """Add text deltas that were found without decoding their chunks."""
        index = self._block("text", out)
        nonempty = list(filter(None, texts))
        if nonempty:
            out.append(TextBatch(index, nonempty))

    @property
    def has_output(self) -> bool:
        """Whether the answer has content or a finish reason yet."""
        return self._next > 0 or self.finish_reason is not None or bool(self._calls)

    def finish(self, out: list[StreamItem]) -> None:
        """Close all open parts and end the answer."""
        self.ended = True
        self._cite_sources(out)
        self._close_block(out)
        self._add_encrypted(out)
        for call in self._calls:
            self._finish_call(call, out)
        whole = all(call.is_whole() for call in self._calls)
        end = finish.infer("chat", self.finish_reason, has_calls=bool(self._calls), calls_whole=whole)
        if end.reason == "error":
            out.append(Failed(upstream_errors.stream_broken(end.upstream_reason)))
        elif self.finish_reason is None and any(call.is_half() for call in self._calls):
            out.append(Failed(upstream_errors.stream_truncated()))
        else:
            out.append(Finished(end, self._extras or None))

    def fail(self, error: GatewayError, out: list[StreamItem]) -> None:
        """End an answer that broke; after its finish reason it is complete."""
        if self.ended:
            return
        if self.finish_reason is not None and not self._repeats_finish:
            self.finish(out)
        else:
            self.ended = True
            out.append(Failed(error))

    def _choice(self, choice: WireChoice, out: list[StreamItem]) -> None:
        delta, message = choice.delta, choice.message
        # In a stream Perplexity repeats the message so far beside each delta; a whole answer has it alone.
        if message is not None and (delta is None or (not self.has_output and is_empty(delta))):
            delta = message
        if self.finish_reason is not None and delta is not None and adds_text(delta):
            if not choice.finish_reason:
                return
            self._repeats_finish = True
        if delta is not None:
            self._delta(delta, choice, out)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason

    def _delta(self, delta: WireDelta, choice: WireChoice, out: list[StreamItem]) -> None:
        reasoning = delta.reasoning_content or delta.reasoning
        if delta.reasoning_details is not ABSENT:
            self._details = self._details or DetailsCollector()
            self._details.add(decode_raw(delta.reasoning_details))
            reasoning = reasoning or self._detailed_reasoning(delta)
        if reasoning:
            out.append(ReasoningDelta(self._block("reasoning", out), reasoning))
        if delta.content:
            logprobs = tuple(choice.logprobs.content or ()) if choice.logprobs is not None else ()
            out.append(TextDelta(self._block("text", out), delta.content, logprobs))
            if self._sources is not None:
                self._note_cited_text(delta.content)
        if delta.audio is not ABSENT and (text := transcript_of(delta)):
            out.append(TextDelta(self._block("text", out), text))
        for annotation in delta.annotations or ():
            out.append(AnnotationDelta(self._block("text", out), annotation))
        if delta.refusal:
            out.append(TextDelta(self._block("refusal", out), delta.refusal))
        if delta.images is not ABSENT:
            self._images(images_of(delta), out)
        for call in delta.tool_calls or ():
            self._call(call, out)
        if delta.function_call is not None and delta.legacy_call is not None:
            self._call(WireToolCallDelta(index=0, function=delta.function_call), out)

    def _detailed_reasoning(self, delta: WireDelta) -> str:
        """Return the reasoning in `reasoning_details`, with a blank line between entries."""
        opened = self._open is not None and self._open[0] == "reasoning"
        pieces: list[str] = []
        for index, text in reasoning_details_of(delta):
            if index != self._details_index and (opened or pieces):
                pieces.append(TEXT_SEPARATOR)
            self._details_index = index
            pieces.append(text)
        return "".join(pieces)

    def _note_cited_text(self, text: str) -> None:
        part = self._open[1] if self._open is not None else -1
        if part != self._cited_part:
            self._cited_part, self._cited_text = part, []
        self._cited_text.append(text)

    def _cite_sources(self, out: list[StreamItem]) -> None:
        """Annotate the last text with the sources of Perplexity."""
        if self._sources is None or self._open != ("text", self._cited_part):
            return
        citations, results = self._sources
        text = "".join(self._cited_text)
        cited = cited_sources(decode_raw(citations), decode_raw(results), text)
        out += [AnnotationDelta(self._cited_part, citation) for citation in cited]

    def _images(self, images: list[Json], out: list[StreamItem]) -> None:
        if images:
            self._close_block(out)
        for image in images:
            index = self._take_index()
            out.append(PartStarted(index, Opaque("chat", image)))
            out.append(PartFinished(index))

    def _block(self, kind: str, out: list[StreamItem]) -> int:
        """Return the index of the open part of this kind; open one if necessary."""
        if self._open is not None:
            if self._open[0] == kind:
                return self._open[1]
            self._close_block(out)
        if self._details is not None and kind != "reasoning":
            self._add_encrypted(out)
        index = self._take_index()
        self._open = (kind, index)
        out.append(PartStarted(index, _EMPTY_PARTS[kind]))
        return index

    def _close_block(self, out: list[StreamItem]) -> None:
        if self._open is not None:
            if self._details is not None and self._open[0] == "reasoning":
                signature = self._details.take()
                if signature:
                    out.append(SignatureDelta(self._open[1], signature))
            out.append(PartFinished(self._open[1]))
            self._open = None

    def _add_encrypted(self, out: list[StreamItem]) -> None:
        """Add encrypted reasoning without text: GPT's without a summary, Gemini's beside its call."""
        signature = self._details.take() if self._details is not None else ""
        if signature:
            index = self._take_index()
            out.append(PartStarted(index, Reasoning(redacted=True)))
            out.append(SignatureDelta(index, signature))
            out.append(PartFinished(index))

    def _take_index(self) -> int:
        self._next += 1
        return self._next - 1

    def _call(self, delta: WireToolCallDelta, out: list[StreamItem]) -> None:
        position = self._index.locate(delta)
        if position.begins:
            self._close_block(out)
            self._add_encrypted(out)
            self._finish_whole_calls(out)
            self._calls.append(_Call(delta.id))
        call, text = self._calls[position.number], delta.text
        if position.names:
            call.custom = delta.is_custom
            self._open_call(call, delta.name or "", out)
        if text and not call.finished:
            call.add(text)
            self._note_growth(call)
            if call.announced:
                out.append(ArgumentsDelta(call.index, text))

    def _open_call(self, call: _Call, name: str, out: list[StreamItem]) -> None:
        """Announce a call once its name is known, with the arguments received so far."""
        self._close_block(out)
        call.index, call.announced = self._take_index(), True
        self._note_growth(call)
        out.append(
            PartStarted(call.index, ToolCall(call.id or self._new_id(call.index), name, custom=call.custom))
        )
        if arguments := call.arguments():
            out.append(ArgumentsDelta(call.index, arguments))

    def _new_id(self, index: int) -> str:
        """Return an id for a call to which the upstream gave none."""
        if not self._call_prefix:
            self._call_prefix = call_prefix(self._answer_id)
        return f"{self._call_prefix}_{index}"

    def _note_growth(self, call: _Call) -> None:
        if not call.grown:
            call.grown = True
            self._grown.append(call)

    def _finish_whole_calls(self, out: list[StreamItem]) -> None:
        """Close the calls with complete arguments; interleaved ones stay open."""
        grown, self._grown = self._grown, []
        for call in grown:
            call.grown = False
            if call.announced and not call.custom and not call.finished and call.seems_whole():
                self._finish_call(call, out)

    def _finish_call(self, call: _Call, out: list[StreamItem]) -> None:
        if not call.announced:
            self._open_call(call, "", out)
        if not call.finished:
            call.finished = True
            out.append(PartFinished(call.index))


class StreamDecoder(codec.StreamDecoder):
    """Decodes the bytes of a chat stream into events."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._template = FrameTemplate()
        self._decoder = ChunkDecoder()

    def feed(self, data: bytes) -> list[Event]:
        return unbatched(self.decode_batches(data))

    def decode_batches(self, data: bytes) -> list[StreamItem]:
        """Decode like `feed`, with consecutive texts as one TextBatch."""
        if self._decoder.ended:
            return []
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return list(self.fail(unparsable()))
        out: list[StreamItem] = []
        at, size = 0, len(run)
        while at < size and not self._decoder.ended:
            texts, span = self._template.take(run, at)
            if span:
                self._decoder.texts(texts, out)
                at += span
                continue
            frame, at = frame_at(run, at)
            if frame is not None:
                self._read(frame, out)
        return out

    def fail(self, error: GatewayError) -> list[Event]:
        out: list[StreamItem] = []
        self._decoder.fail(error, out)
        return unbatched(out)

    def close(self) -> list[Event]:
        out: list[StreamItem] = []
        for frame in self._frames.close():
            self._read(frame, out)
        if not self._decoder.ended:
            if self._decoder.finish_reason is None:
                out.append(Failed(upstream_errors.stream_truncated()))
            else:
                self._decoder.finish(out)
            self._decoder.ended = True
        return unbatched(out)

    def _read(self, frame: Frame, out: list[StreamItem]) -> None:
        if self._decoder.ended:
            return
        if frame.data.rstrip() == b"[DONE]":
            self._done(out)
            return
        chunk = read_chunk(frame.data)
        if chunk is None:
            self._decoder.fail(unparsable(), out)
            return
        self._decoder.chunk(chunk, out)
        if self._decoder.finish_reason is not None:
            # Text after the finish must not pass undecoded.
            self._template = FrameTemplate()
        elif is_plain_text(chunk):
            self._template.learn(frame.raw, CONTENT_KEY)

    def _done(self, out: list[StreamItem]) -> None:
        if self._decoder.has_output:
            self._decoder.finish(out)
        else:
            self._decoder.ended = True
            out.append(Failed(upstream_errors.stream_truncated()))


def call_prefix(answer_id: str | None) -> str:
    """Return the prefix of call ids that the gateway creates; unique to the answer."""
    legal = "".join(char for char in answer_id or "" if char.isascii() and char.isalnum())
    return f"call_{legal[-24:] or secrets.token_hex(8)}"


def unparsable() -> UpstreamFailed:
    """Return the error for an upstream response that is not a chat completion."""
    return UpstreamFailed("the upstream's response is not a chat completion", code="upstream_unparsable")
