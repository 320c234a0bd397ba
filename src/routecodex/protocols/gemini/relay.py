"""Relays a Gemini stream to a Gemini client.

After the first content frames pass as they came unless `plain_frames` finds a key that must be read. A finish
reason that denies the calls is corrected. Compatible servers report no usage: their last frame gets an
estimate.
"""

from __future__ import annotations

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.canon.finish import encode, infer
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.gemini.decode_stream import (
    blocked_finish_reason,
    decode_usage,
    finishes,
    has_content,
    read_chunk,
    unparsable,
)
from routecodex.protocols.gemini.encode_stream import encode_usage
from routecodex.protocols.gemini.errors import encode_error, error_object, typed_error
from routecodex.protocols.gemini.framing import FrameReader, compact
from routecodex.protocols.gemini.schema import StreamChunk
from routecodex.protocols.gemini.thinking import standard_alphabet
from routecodex.protocols.relay import FrameRelay
from routecodex.protocols.translation import estimated_usage, output_estimate
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame

_USAGE = b'"usageMetadata"'
_DATA = b"data: "


class OutcomeReader:
    """Fills an AnswerOutcome from chunks."""

    def __init__(self) -> None:
        self.outcome = AnswerOutcome()
        self.finish_reason: str | None = None
        self.repeats_finish = False
        """Content came with a finish reason again: none of them proves the end."""
        self.has_calls = False

    def note(self, chunk: StreamChunk) -> None:
        """Note model, usage, signatures and finish of a chunk; raise the error in it."""
        if chunk.error is not None:
            raise typed_error(error_object({"error": chunk.error}) or {})
        if self.finish_reason is not None and has_content(chunk):
            self.repeats_finish = True
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
        value = json.decode_lossy(data)
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
        self._passes = False
        """Whether frames may pass undecoded: between the first content and the finish."""
        self._unread_usage = b""
        """The last run that passed undecoded and had usage."""
        self._last = b""
        """A frame with a finish reason that is held because no usage has arrived yet."""
        self._size = OutputSize()

    def _is_finished(self) -> bool:
        return self._outcome_reader.finish_reason is not None and not self._outcome_reader.repeats_finish

    def _finish(self) -> bytes:
        if self._outcome_reader.finish_reason is None:
            return self._break(stream_truncated())
        self.ended = True
        self._read_usage()
        self._outcome_reader.conclude()
        return self._last_with_usage() if self._last else b""

    def _last_with_usage(self) -> bytes:
        self.outcome.usage = estimated_usage(self._reply.input_tokens, self._size.chars())
        return sse.frame(add_usage(self._last[len(_DATA) :], self.outcome.usage))

    def _reported(self) -> Usage | None:
        self._read_usage()
        return self.outcome.usage

    def _output_tokens(self) -> int:
        meter = self._meter
        seen = output_estimate(self._size.chars())
        return seen + meter.tokens(_envelope_of(self._unread_usage or meter.last)) if meter.frames else seen

    def _error_frame(self, error: GatewayError) -> bytes:
        self._read_usage()
        return self._take_last() + sse.frame(json.encode(encode_error(error)[1]))

    def _take_last(self) -> bytes:
        last, self._last = self._last, b""
        return last

    def _unparsable(self) -> GatewayError:
        return unparsable("stream")

    def _relay(self, run: bytes) -> bytes:
        frames = plain_frames(run) if self._passes else 0
        if frames:
            return self._pass(run, frames)
        out: list[bytes] = []
        for block in run.split(b"\n\n"):
            if self.ended:
                break
            if block:
                out.append(self._block(block))
        return b"".join(out)

    def _pass(self, run: bytes, frames: int) -> bytes:
        if run.find(_USAGE) >= 0:
            self._unread_usage = run
            meter = self._meter
            meter.bytes += len(run)
            meter.frames += frames
        else:
            self._size.add_run(run, frames)
        return run

    def _block(self, block: bytes) -> bytes:
        """Return the client's frame for one frame without its blank line."""
        if self._passes and plain_frames(raw := block + b"\n\n"):
            return self._pass(raw, 1)
        frame = sse.parse(block)
        # OpenAI's end of a stream, which some compatible upstreams send.
        return b"" if frame is None or frame.data == b"[DONE]" else self._frame(frame)

    def _frame(self, frame: Frame) -> bytes:
        chunk = read_chunk(frame.data)
        if chunk is None:
            return self._break(self._unparsable())
        reader = self._outcome_reader
        if reader.finish_reason is not None and has_content(chunk) and not finishes(chunk):
            # Text after the finish is not part of the answer.
            return b""
        try:
            reader.note(chunk)
        except GatewayError as error:
            return self._break(error)
        last = self._take_last() if self._last else b""
        if chunk.usage_metadata is not None:
            self._unread_usage = b""
        if not self.started and _ends_hold(chunk):
            self.started = self._passes = True
            if not has_content(chunk):
                reader.conclude()
                self.outcome.empty = True
        if reader.finish_reason is not None:
            self._passes = False
        corrects = reader.needs_correction and finishes(chunk)
        sent = sse.frame(reader.corrected(frame.data) if corrects else compact(frame.data))
        if self.outcome.usage is None and not self._unread_usage:
            self._size.add(frame, chunk)
            if finishes(chunk):
                self._last, sent = sent, b""
        else:
            self._meter.bytes += len(frame.raw)
            self._meter.frames += 1
            self._meter.last = frame.raw
        return last + sent if last else sent

    def _read_usage(self) -> None:
        """Read the last usage that passed undecoded."""
        for block in reversed(self._unread_usage.split(b"\n\n")):
            if _USAGE in block and (frame := sse.parse(block)) is not None:
                chunk = read_chunk(frame.data)
                if chunk is not None and chunk.usage_metadata is not None:
                    self.outcome.usage = decode_usage(chunk.usage_metadata)
                    return


class OutputSize:
    """Counts the characters of an answer, for the estimate of its usage.

    Frames that pass undecoded count by their size, without that of the smallest frame around a text.
    """

    __slots__ = ("_chars", "_envelope", "_frames", "_passed")

    def __init__(self) -> None:
        self._chars = 0
        self._passed = 0
        self._frames = 0
        self._envelope = 0

    def add_run(self, run: bytes, frames: int) -> None:
        """Count frames that pass undecoded."""
        self._passed += len(run)
        self._frames += frames

    def add(self, frame: Frame, chunk: StreamChunk) -> None:
        """Count a decoded frame."""
        written = written_chars(chunk)
        self._chars += written
        if written:
            envelope = len(frame.raw) - written
            self._envelope = min(self._envelope or envelope, envelope)

    def chars(self) -> int:
        """Return the count, rounded up."""
        return self._chars + max(0, self._passed - self._frames * self._envelope)


def _envelope_of(run: bytes) -> int:
    """Return the bytes around the text of the last frame with text; 0 if there is none."""
    for frame in reversed(sse.Frames().feed(run)):
        chunk = read_chunk(frame.data)
        written = written_chars(chunk) if chunk is not None else 0
        if written:
            return len(frame.raw) - written
    return 0


def written_chars(chunk: StreamChunk) -> int:
    """Return the number of characters that the model wrote in a chunk."""
    parts = chunk.candidate.parts if chunk.candidate else ()
    texts = sum(len(part.text or "") for part in parts)
    return texts + sum(len(bytes(part.function_call.args)) for part in parts if part.function_call)


def add_usage(data: bytes, usage: Usage) -> bytes:
    """Return an answer or chunk with this usage."""
    return json.encode({**json.answer_fields(data), "usageMetadata": encode_usage(usage)})


def plain_frames(run: bytes) -> int:
    """Return the number of frames if all are well-formed, without calls, signatures, errors or a finish."""
    frames = run.count(b"\n\n")
    # Spelled out, with `find`: a loop costs more than the searches, and `in` raises and catches a TypeError
    # inside CPython before it searches bytes.
    is_plain = (
        run.startswith(b"data: {")
        and run.count(b"\ndata: {") == frames - 1
        and run.count(b"\n") == 2 * frames
        and run.find(b'Reason"') < 0
        and run.find(b'"error"') < 0
        and run.find(b'"functionCall"') < 0
        and run.find(b'"thoughtSignature"') < 0
    )
    return frames if is_plain else 0


def _ends_hold(chunk: StreamChunk) -> bool:
    """Whether frames may be sent from this chunk on: it has content or ends the answer."""
    candidate = chunk.candidate
    if chunk.block_reason or (candidate is not None and candidate.finish_reason):
        return True
    return has_content(chunk)
