"""A messages stream to a messages client: frames are scanned, not rebuilt.

A run of plain deltas passes as it is. A frame that opens or ends something is looked at, and mended only
where the upstream broke the protocol: no event line, no usage, a stop reason that denies the calls, an end
that never came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.protocols import upstream_errors
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.messages import encode_stream, errors
from routecodex.protocols.messages.content import NAME
from routecodex.protocols.messages.decode_stream import UsageCounter, block_type, read_chunk, usage_object
from routecodex.protocols.messages.encode_stream import MESSAGE_STOP, end_frame, stop_frame
from routecodex.protocols.messages.schema import StreamChunk
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge

_MARKS = (b"_start", b"_stop", b"message_delta", b"signature_delta", b"error")
_HELD_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", ""})

_FRAMING_BYTES = 100
"""About what surrounds the text of one delta; for estimates only."""


class Relay:
    """A Pipe for messages → messages."""

    def __init__(self, reply: ReplyContext) -> None:
        self.started = False
        self.ended = False
        self.outcome = AnswerOutcome()
        self._reply = reply
        self._frames = Frames()
        self._held: list[bytes] = []
        self._headed = False
        self._open: dict[int, str] = {}
        self._calls = 0
        self._last_call: list[bytes] = []
        self._signatures: dict[int, str] = {}
        self._counter = UsageCounter()
        self._said: str | None = None
        self._passed = 0

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return self._broken(errors.unparsable("an oversized stream frame"))
        if not run:
            return b""
        if self.started and self._is_plain(run):
            return self._pass(run)
        return self._frame_by_frame(run)

    def close(self) -> bytes:
        if self.ended:
            return b""
        out = b"".join(map(self._frame, self._frames.close()))
        if self.ended:
            return out
        return out + self._broken(upstream_errors.stream_truncated())

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        self.ended = True
        self.outcome.error = error
        return errors.error_frame(error)

    def _broken(self, error: GatewayError) -> bytes:
        """The end of a stream that broke; after the stop reason nothing was left to break."""
        if self._said is not None:
            return self._end()
        if not self.started:
            raise error
        return self.fail(error)

    def _is_plain(self, run: bytes) -> bool:
        """Whether the run holds nothing but named deltas (and pings) inside a block."""
        if self._said is not None or any(mark in run for mark in _MARKS):
            return False
        return run.startswith(b"event:") and run.count(b"\nevent:") + 1 == run.count(b"\n\n")

    def _pass(self, raw: bytes) -> bytes:
        self._passed += len(raw) - _FRAMING_BYTES * raw.count(b"\n\n")
        if self._calls:
            self._last_call.append(raw)
        return raw

    def _frame_by_frame(self, run: bytes) -> bytes:
        out: list[bytes] = []
        for block in run.split(b"\n\n"):
            if self.ended:
                break
            frame = sse.parse(block.strip(b"\n")) if block else None
            if frame is not None:
                out.append(self._frame(frame))
        return b"".join(out)

    def _frame(self, frame: Frame) -> bytes:
        if self.ended:
            return b""
        chunk = read_chunk(frame)
        if chunk is None or not chunk.type:
            # Not for us to read, but perhaps for the client: some split a character over two deltas.
            return frame.raw if self.started and frame.event == b"content_block_delta" else b""
        out = _STEPS.get(chunk.type, Relay._on_other)(self, frame, chunk)
        if not self.started:
            self._held.append(out)
            return b""
        if self._held:
            out, self._held = b"".join([*self._held, out]), []
        return out

    def _on_error(self, _frame: Frame, chunk: StreamChunk) -> bytes:
        return self._broken(errors.typed_error(chunk.error, provider=self._reply.provider))

    def _on_other(self, frame: Frame, chunk: StreamChunk) -> bytes:
        """A ping, or an event nobody knows yet; nothing but the end may follow the stop reason."""
        return b"" if self._said is not None else _named(frame, chunk)

    def _on_start(self, frame: Frame, chunk: StreamChunk) -> bytes:
        head = chunk.message
        if self._headed or head is None:
            return b""
        self._headed = True
        self.outcome.model = head.model or ""
        self.outcome.response_id = head.id or ""
        self._counter.add(head.usage)
        usage = head.usage
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            return _named(frame, chunk)
        value = json.decode(frame.data)
        told = usage_object(Usage(input=self._reply.input_tokens, output=1))
        value["message"]["usage"] = told
        return _made(value, chunk)

    def _on_block(self, frame: Frame, chunk: StreamChunk) -> bytes:
        # One block at a time: an upstream that opens the next has done with the last.
        out = self._ensure_head() + self._close_all()
        block = chunk.content_block or {"type": "text", "text": ""}
        kind = block_type(block)
        self._open[chunk.index] = kind
        if kind == "tool_use":
            self._calls += 1
            self._last_call = []
        if kind == "redacted_thinking" and isinstance(block.get("data"), str):
            self._signatures[chunk.index] = block["data"]
        if kind not in _HELD_BLOCKS or block.get("text") or block.get("thinking"):
            self.started = True
        return out + _named(frame, chunk)

    def _on_delta(self, frame: Frame, chunk: StreamChunk) -> bytes:
        delta = chunk.delta
        if delta is None:
            return b""
        out = self._ensure_head()
        if chunk.index not in self._open:
            out += self._announce(chunk.index, delta.type)
        if delta.text or delta.thinking or delta.partial_json:
            self.started = True
        if delta.signature:
            self._signatures[chunk.index] = self._signatures.get(chunk.index, "") + delta.signature
        return out + self._pass(_named(frame, chunk))

    def _announce(self, index: int, delta: str) -> bytes:
        """Opens a block that the upstream began without saying so."""
        blocks: dict[str, dict[str, Any]] = {
            "text_delta": {"type": "text", "text": ""},
            "thinking_delta": {"type": "thinking", "thinking": "", "signature": ""},
        }
        block = blocks.get(delta)
        if block is None:
            return b""
        self._open[index] = block["type"]
        value = {"type": "content_block_start", "index": index, "content_block": block}
        return sse.frame(json.encode(value), b"content_block_start")

    def _on_stop(self, frame: Frame, chunk: StreamChunk) -> bytes:
        if chunk.index not in self._open:
            return b""
        self._close_block(chunk.index)
        return _named(frame, chunk)

    def _close_block(self, index: int) -> bytes:
        del self._open[index]
        signature = self._signatures.pop(index, None)
        if signature:
            self.outcome.signatures.append(signature)
        return stop_frame(index)

    def _on_message_delta(self, frame: Frame, chunk: StreamChunk) -> bytes:
        self._counter.add(chunk.usage)
        if self._said is not None:
            return self._recounted(frame, chunk)
        said = chunk.delta.stop_reason if chunk.delta is not None else None
        if said is None or chunk.delta is None:
            return b""
        self._begin_end()
        closing = self._ensure_head() + self._close_all()
        word = self._settle(said, sequence=chunk.delta.stop_sequence)
        counted = chunk.usage is not None and chunk.usage.output_tokens is not None
        if word == said and counted:
            out = closing + _named(frame, chunk)
        else:
            out = closing + self._mended(frame, chunk, word)
        assert self.outcome.finish is not None
        if not encode_stream.sends_message_stop(self._reply, self.outcome.finish):
            self.ended = True
        return out

    def _recounted(self, frame: Frame, chunk: StreamChunk) -> bytes:
        """Usage that comes after the stop reason, told with that reason again: clients take the last."""
        usage, ending = self._counter.usage(), self.outcome.finish
        if usage is None or usage == self.outcome.usage or ending is None:
            return b""
        self.outcome.usage = usage
        word = self.outcome.sent_finish
        sequence = ending.sequence if word == "stop_sequence" else None
        value = json.decode(frame.data)
        value["delta"] = {"stop_reason": word, "stop_sequence": sequence}
        value["usage"] = {**value["usage"], **usage_object(usage)}
        return _made(value, chunk)

    def _begin_end(self) -> None:
        """The answer ends; one of which nothing came is told all the same."""
        self.outcome.empty = not self.started
        self.started = True

    def _settle(self, said: str | None, *, sequence: str | None = None) -> str:
        """Notes why the answer ended; the word for it that the client gets."""
        self._said = said or ""
        ending = finish.infer(
            NAME,
            said,
            has_calls=self._calls > 0,
            calls_whole=self._last_call_is_whole(said),
            sequence=sequence,
        )
        word = encode_stream.relayed_stop_reason(self._reply, ending)
        usage = self._counter.usage()
        self.outcome.finish = ending
        self.outcome.sent_finish = word
        self.outcome.usage = usage or estimated_usage(self._reply.input_tokens, max(self._passed, 0))
        return word

    def _last_call_is_whole(self, said: str | None) -> bool:
        """Looked at only when it matters: the deltas of the last call passed unread."""
        if not self._calls or said in (None, "tool_use", "end_turn"):
            return True
        pieces = []
        for raw in self._last_call:
            for frame in Frames().feed(raw):
                chunk = read_chunk(frame)
                if chunk is not None and chunk.delta is not None:
                    pieces.append(chunk.delta.partial_json)
        arguments = "".join(pieces)
        return not arguments or json.is_whole(arguments)

    def _mended(self, frame: Frame, chunk: StreamChunk, word: str) -> bytes:
        value = json.decode(frame.data)
        delta = value["delta"]
        if delta.get("stop_reason") != word:
            delta["stop_reason"], delta["stop_sequence"] = word, None
        assert self.outcome.usage is not None
        counts = value.get("usage") if isinstance(value.get("usage"), dict) else {}
        if chunk.usage is None or chunk.usage.output_tokens is None:
            value["usage"] = {**counts, **usage_object(self.outcome.usage)}
        return _made(value, chunk)

    def _on_message_stop(self, frame: Frame, chunk: StreamChunk) -> bytes:
        if self._said is None:
            if not self._headed:
                return self._broken(upstream_errors.stream_truncated())
            self._begin_end()
            return self._conclude()
        return self._end(_named(frame, chunk))

    def _conclude(self) -> bytes:
        """The end of an answer whose upstream never said why it stopped."""
        out = self._close_all()
        word = self._settle(None)
        assert self.outcome.usage is not None
        return out + end_frame({"stop_reason": word, "stop_sequence": None}, self.outcome.usage) + self._end()

    def _end(self, raw: bytes = MESSAGE_STOP) -> bytes:
        self.ended = True
        assert self.outcome.finish is not None
        return raw if encode_stream.sends_message_stop(self._reply, self.outcome.finish) else b""

    def _close_all(self) -> bytes:
        return b"".join([self._close_block(index) for index in list(self._open)])

    def _ensure_head(self) -> bytes:
        if self._headed:
            return b""
        self._headed = True
        usage = Usage(input=self._reply.input_tokens, output=1)
        message = encode_stream.message_head(self._reply, model="", usage=usage)
        return sse.frame(json.encode({"type": "message_start", "message": message}), b"message_start")


def _named(frame: Frame, chunk: StreamChunk) -> bytes:
    """The frame as it came, with its event line if that was missing: clients skip events without a name."""
    kind = chunk.type.encode()
    return frame.raw if frame.event == kind else sse.frame(frame.data.replace(b"\n", b" "), kind)


def _made(value: dict[str, Any], chunk: StreamChunk) -> bytes:
    return sse.frame(json.encode(value), chunk.type.encode())


_STEPS: dict[str, Callable[[Relay, Frame, StreamChunk], bytes]] = {
    "message_start": Relay._on_start,
    "content_block_start": Relay._on_block,
    "content_block_delta": Relay._on_delta,
    "content_block_stop": Relay._on_stop,
    "message_delta": Relay._on_message_delta,
    "message_stop": Relay._on_message_stop,
    "error": Relay._on_error,
}
