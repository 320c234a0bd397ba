"""Relays a Gemini stream to a Gemini client.

After the first content a run of frames passes as it came unless it holds one of `_MARKERS`. Only a finish
reason that denies the calls is corrected.
"""

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
from routecodex.protocols.relay import FrameRelay
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame

_MARKERS = (b'"finishReason"', b'"error"', b'"blockReason"', b'"functionCall"', b'"thoughtSignature"')
_USAGE = b'"usageMetadata"'


class OutcomeReader:
    """Fills an AnswerOutcome from chunks."""

    def __init__(self) -> None:
        self.outcome = AnswerOutcome()
        self.finish_reason: str | None = None
        self.has_calls = False

    def note(self, chunk: StreamChunk) -> None:
        """Note model, usage, signatures and finish of a chunk; raise the error in it."""
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
            self.finish_reason = candidate.finish_reason
        elif chunk.block_reason and self.finish_reason is None:
            self.finish_reason = blocked_finish_reason(chunk.block_reason)

    @property
    def needs_correction(self) -> bool:
        """Whether the answer has calls and the upstream's finish reason denies them."""
        return self.has_calls and self.finish_reason is not None and self.finish_reason != self._expected

    @property
    def _expected(self) -> str:
        return encode("gemini", infer("gemini", self.finish_reason, has_calls=self.has_calls))

    def conclude(self) -> None:
        """Fill in the finish of a complete answer."""
        self.outcome.finish = infer("gemini", self.finish_reason, has_calls=self.has_calls)
        expected = self._expected
        self.outcome.sent_finish = expected if self.has_calls else self.finish_reason or expected

    def corrected(self, data: bytes) -> bytes:
        """Return the chunk with the expected finish reason."""
        value = json.decode(data)
        for candidate in value["candidates"]:
            if candidate.get("finishReason") and not candidate.get("index"):
                candidate["finishReason"] = self._expected
        return json.encode(value)


class Relay(FrameRelay):
    """A Pipe from Gemini to Gemini."""

    def __init__(self, reply: ReplyContext) -> None:
        super().__init__(reply)
        self._frames = FrameReader()
        self._outcome_reader = OutcomeReader()
        self.outcome = self._outcome_reader.outcome
        self._unread_usage = b""
        """The last run that passed undecoded and had usage."""

    def _finish(self) -> bytes:
        if self._outcome_reader.finish_reason is None:
            return self._break(stream_truncated())
        self.ended = True
        self._read_usage()
        self._outcome_reader.conclude()
        return b""

    def _error_frame(self, error: GatewayError) -> bytes:
        self._read_usage()
        return sse.frame(json.encode(encode_error(error)[1]))

    def _unparsable(self) -> GatewayError:
        return unparsable("stream")

    def _relay(self, run: bytes) -> bytes:
        if self.started and _is_plain(run):
            if _USAGE in run:
                self._unread_usage = run
            return run
        out: list[bytes] = []
        for block in run.split(b"\n\n"):
            frame = sse.parse(block)
            # OpenAI's end of a stream, which some compatible upstreams send.
            if frame is None or frame.data == b"[DONE]":
                continue
            out.append(self._frame(frame))
            if self.ended:
                break
        return b"".join(out)

    def _frame(self, frame: Frame) -> bytes:
        chunk = read_chunk(frame.data)
        if chunk is None:
            return self._break(self._unparsable())
        reader = self._outcome_reader
        try:
            reader.note(chunk)
        except GatewayError as error:
            return self._break(error)
        if chunk.usage_metadata is not None:
            self._unread_usage = b""
        if not self.started and _ends_hold(chunk):
            self.started = True
            if not _has_content(chunk):
                reader.conclude()
                self.outcome.empty = True
        corrects = reader.needs_correction and chunk.candidate is not None and chunk.candidate.finish_reason
        return sse.frame(reader.corrected(frame.data) if corrects else compact(frame.data))

    def _read_usage(self) -> None:
        """Read the last usage that passed undecoded."""
        for block in reversed(self._unread_usage.split(b"\n\n")):
            if _USAGE in block and (frame := sse.parse(block)) is not None:
                chunk = read_chunk(frame.data)
                if chunk is not None and chunk.usage_metadata is not None:
                    self.outcome.usage = decode_usage(chunk.usage_metadata)
                    return


def _is_plain(run: bytes) -> bool:
    """Whether the run has only well-formed frames without calls, signatures, errors or a finish."""
    frames = run.count(b"\n\n")
    return (
        run.startswith(b"data: {")
        and run.count(b"\ndata: {") == frames - 1
        and run.count(b"\n") == 2 * frames
        and not any(marker in run for marker in _MARKERS)
    )


def _ends_hold(chunk: StreamChunk) -> bool:
    """Whether frames may be sent from this chunk on: it has content or ends the answer."""
    candidate = chunk.candidate
    if chunk.block_reason or (candidate is not None and candidate.finish_reason):
        return True
    return _has_content(chunk)


def _has_content(chunk: StreamChunk) -> bool:
    parts = chunk.candidate.parts if chunk.candidate else ()
    return not all(map(is_empty_part, parts))


def is_empty_part(part: WireAnswerPart) -> bool:
    """Whether a part has neither text nor a call; unknown parts count as content."""
    return not (part.text or part.function_call) and part.is_known
