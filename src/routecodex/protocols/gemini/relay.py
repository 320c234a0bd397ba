"""Gemini to Gemini: the provider's frames as they came, watched for how the answer ends."""

from __future__ import annotations

from routecodex.canon.errors import GatewayError
from routecodex.canon.finish import encode, infer
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.gemini.decode_stream import (
    blocked_finish_reason,
    decode_usage,
    read_chunk,
    unparsable,
)
from routecodex.protocols.gemini.errors import encode_error, error_object, typed_error
from routecodex.protocols.gemini.framing import FrameReader, compact
from routecodex.protocols.gemini.schema import StreamChunk, WireAnswerPart
from routecodex.protocols.gemini.thinking import standard_alphabet
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse

_MARKERS = (b'"finishReason"', b'"error"', b'"blockReason"', b'"functionCall"', b'"thoughtSignature"')
_USAGE = b'"usageMetadata"'


class OutcomeReader:
    """Fills an Outcome from chunks."""

    def __init__(self) -> None:
        self.outcome = AnswerOutcome()
        self.said: str | None = None
        self.has_calls = False

    def note(self, chunk: StreamChunk) -> None:
        """Keeps what logs and signatures need of a chunk; an error in it is raised."""
        if chunk.error is not None:
            raise typed_error(error_object({"error": chunk.error}) or {})
        self.outcome.model = self.outcome.model or chunk.model_version or ""
        self.outcome.response_id = self.outcome.response_id or chunk.response_id or ""
        if chunk.usage_metadata is not None:
            self.outcome.usage = decode_usage(chunk.usage_metadata)
        candidate = chunk.candidate
        for part in candidate.parts if candidate else ():
            self.has_calls = self.has_calls or part.function_call is not None
            if part.thought_signature is not None:
                self.outcome.signatures.append(standard_alphabet(part.thought_signature))
        if candidate is not None and candidate.finish_reason:
            self.said = candidate.finish_reason
        elif chunk.block_reason and self.said is None:
            self.said = blocked_finish_reason(chunk.block_reason)

    @property
    def lied(self) -> bool:
        """Whether calls were made and the upstream's word for the end denies it."""
        return self.has_calls and self.said is not None and self.said != self._right

    @property
    def _right(self) -> str:
        return encode("gemini", infer("gemini", self.said, has_calls=self.has_calls))

    def conclude(self, reply: ReplyContext) -> None:
        """The answer is complete."""
        finish = infer("gemini", self.said, has_calls=self.has_calls)
        self.outcome.finish = finish
        self.outcome.sent_finish = self._right if self.has_calls else self.said or self._right

    def corrected(self, data: bytes) -> bytes:
        """The chunk with the right word for its end."""
        value = json.decode(data)
        for candidate in value["candidates"]:
            if candidate.get("finishReason") and not candidate.get("index"):
                candidate["finishReason"] = self._right
        return json.encode(value)


class Relay:
    """A Pipe that passes frames on; see codec.Pipe."""

    def __init__(self, reply: ReplyContext) -> None:
        self.started = False
        self.ended = False
        self._reply = reply
        self._watch = OutcomeReader()
        self.outcome = self._watch.outcome
        self._intake = FrameReader()
        self._held: list[bytes] = []
        self._counted = b""

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            return self._pass(self._intake.cut(data))
        except sse.FrameTooLarge:
            return self._broken(unparsable("stream"))

    def close(self) -> bytes:
        if self.ended:
            return b""
        out = self._pass(self._intake.close())
        if self.ended:
            return out
        if self._watch.said is None:
            return out + self._broken(stream_truncated())
        self.ended = True
        self._count()
        self._watch.conclude(self._reply)
        return out

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        self.ended = True
        self._count()
        self.outcome.error = error
        return sse.frame(json.encode(encode_error(error)[1]))

    def _broken(self, error: GatewayError) -> bytes:
        """Before any content the next target may be tried; after it the client must be told."""
        if not self.started:
            self.ended = True
            self.outcome.error = error
            raise error
        return self.fail(error)

    def _pass(self, run: bytes) -> bytes:
        if not run:
            return b""
        if self.started and _is_plain(run):
            if _USAGE in run:
                self._counted = run
            return run
        out: list[bytes] = []
        for block in run.split(b"\n\n"):
            frame = sse.parse(block)
            if frame is None or frame.data == b"[DONE]":
                continue
            out.append(self._frame(frame))
            if self.ended:
                break
        return b"".join(out)

    def _frame(self, frame: sse.Frame) -> bytes:
        chunk = read_chunk(frame.data)
        if chunk is None:
            return self._broken(unparsable("stream"))
        try:
            self._watch.note(chunk)
        except GatewayError as error:
            return self._broken(error)
        if chunk.usage_metadata is not None:
            self._counted = b""
        raw = sse.frame(compact(frame.data))
        if self._watch.lied and chunk.candidate is not None and chunk.candidate.finish_reason:
            raw = sse.frame(self._watch.corrected(frame.data))
        if self.started:
            return raw
        self._held.append(raw)
        if not _has_content(chunk):
            return b""
        if not _says_anything(chunk):
            self._watch.conclude(self._reply)
            self.outcome.empty = True
        self.started = True
        held, self._held = self._held, []
        return b"".join(held)

    def _count(self) -> None:
        """Reads the last usage that passed unread."""
        for block in reversed(self._counted.split(b"\n\n")):
            if _USAGE in block and (frame := sse.parse(block)) is not None:
                chunk = read_chunk(frame.data)
                if chunk is not None and chunk.usage_metadata is not None:
                    self.outcome.usage = decode_usage(chunk.usage_metadata)
                    return


def _is_plain(run: bytes) -> bool:
    """Whether the run is nothing but well-formed frames without news about calls, errors or the end."""
    frames = run.count(b"\n\n")
    return (
        run.startswith(b"data: {")
        and run.count(b"\ndata: {") == frames - 1
        and run.count(b"\n") == 2 * frames
        and not any(marker in run for marker in _MARKERS)
    )


def _has_content(chunk: StreamChunk) -> bool:
    candidate = chunk.candidate
    if chunk.block_reason or (candidate is not None and candidate.finish_reason):
        return True
    return _says_anything(chunk)


def _says_anything(chunk: StreamChunk) -> bool:
    parts = chunk.candidate.parts if chunk.candidate else ()
    return not all(map(is_silent, parts))


def is_silent(part: WireAnswerPart) -> bool:
    return not (part.text or part.function_call) and part.is_known
