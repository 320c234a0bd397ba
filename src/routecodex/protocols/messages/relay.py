"""Relays a messages stream to a messages client.

A run of plain deltas passes as it came. A frame that opens or ends a block or the message is decoded, and
repaired only where the upstream breaks Anthropic's protocol: no `event:` line, no usage, a stop reason that
denies the calls, a missing end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.messages import encode_stream, errors
from routecodex.protocols.messages.content import NAME
from routecodex.protocols.messages.decode_stream import (
    AFTER_STOP,
    UsageCounter,
    block_type,
    note_calls,
    read_chunk,
    usage_object,
)
from routecodex.protocols.messages.encode_stream import MESSAGE_STOP, end_frame, stop_frame
from routecodex.protocols.messages.schema import StreamChunk
from routecodex.protocols.relay import FrameRelay
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames

_MARKS = (b"_start", b"_stop", b"message_delta", b"signature_delta", b"error")
_HELD_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", ""})

_ENVELOPE = 116
"""Bytes around the text of a delta as Anthropic writes it; for estimates only."""


class Relay(FrameRelay):
    """A Pipe from messages to messages."""

    def __init__(self, reply: ReplyContext) -> None:
        super().__init__(reply)
        self._has_head = False
        self._open: dict[int, str] = {}
        self._callers: set[str] = set()
        self._last_call: list[bytes] = []
        self._signatures: dict[int, list[str]] = {}
        self._counter = UsageCounter()
        self._stop_reason: str | None = None

    def _relay(self, run: bytes) -> bytes:
        return self._pass(run) if self.started and self._is_plain(run) else self._frame_by_frame(run)

    def _error_frame(self, error: GatewayError) -> bytes:
        return errors.error_frame(error)

    def _unparsable(self) -> GatewayError:
        return errors.unparsable("an oversized stream frame")

    def _reported(self) -> Usage | None:
        return self._counter.usage()

    def _output_tokens(self) -> int:
        return self._meter.tokens(_envelope_of(self._meter.last))

    def _is_finished(self) -> bool:
        return self._stop_reason is not None

    def _finish(self) -> bytes:
        return self._end() if self._is_finished() else self._break(stream_truncated())

    def _is_plain(self, run: bytes) -> bool:
        """Whether the run has only named deltas and pings inside a block."""
        if self._stop_reason is not None or any(mark in run for mark in _MARKS):
            return False
        return run.startswith(b"event:") and run.count(b"\nevent:") + 1 == run.count(b"\n\n")

    def _pass(self, raw: bytes) -> bytes:
        meter = self._meter
        meter.bytes += len(raw)
        meter.frames += raw.count(b"\n\n")
        meter.last = raw
        if self._callers:
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
        chunk = read_chunk(frame)
        if chunk is None or not chunk.type:
            # Some upstreams split a character over two deltas: not UTF-8 here, but perhaps for the client.
            split = self.started and self._stop_reason is None and frame.event == b"content_block_delta"
            return frame.raw if split else b""
        if self._stop_reason is not None and chunk.type not in AFTER_STOP:
            return b""
        return _STEPS.get(chunk.type, Relay._on_other)(self, frame, chunk)

    def _on_error(self, _frame: Frame, chunk: StreamChunk) -> bytes:
        return self._break(errors.typed_error(chunk.error, provider=self._reply.provider))

    def _on_other(self, frame: Frame, chunk: StreamChunk) -> bytes:
        """Pass a ping or an unknown event."""
        return _named(frame, chunk)

    def _on_start(self, frame: Frame, chunk: StreamChunk) -> bytes:
        head = chunk.message
        if self._has_head or head is None:
            return b""
        self._has_head = True
        self.outcome.model = head.model or ""
        self.outcome.response_id = head.id or ""
        self._counter.add(head.usage)
        usage = head.usage
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            return _named(frame, chunk)
        value = json.decode_lossy(frame.data)
        value["message"]["usage"] = usage_object(Usage(input=self._reply.input_tokens, output=1))
        return _frame_of(value, chunk)

    def _on_block(self, frame: Frame, chunk: StreamChunk) -> bytes:
        # Anthropic sends one block at a time: a new one ends those that are open.
        out = self._ensure_head() + self._close_all()
        block = chunk.content_block or {"type": "text", "text": ""}
        kind = block_type(block)
        self._open[chunk.index] = kind
        if kind == "tool_use":
            self._last_call = []
        note_calls(self._callers, block)
        if kind == "redacted_thinking" and isinstance(block.get("data"), str):
            self._signatures[chunk.index] = [block["data"]]
        if kind not in _HELD_BLOCKS or block.get("text") or block.get("thinking"):
            self.started = True
        return out + _named(frame, chunk)

    def _on_delta(self, frame: Frame, chunk: StreamChunk) -> bytes:
        delta = chunk.delta
        if delta is None:
            return b""
        out = self._ensure_head()
        if chunk.index not in self._open:
            out += self._open_block(chunk.index, delta.type)
        if delta.text or delta.thinking or delta.partial_json:
            self.started = True
        if delta.signature:
            self._signatures.setdefault(chunk.index, []).append(delta.signature)
        return out + self._pass(_named(frame, chunk))

    def _open_block(self, index: int, delta: str) -> bytes:
        """Return the start of a block that the upstream left out."""
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
            self.outcome.signatures.append("".join(signature))
        return stop_frame(index)

    def _on_message_delta(self, frame: Frame, chunk: StreamChunk) -> bytes:
        self._counter.add(chunk.usage)
        if self._stop_reason is not None:
            return self._late_usage(frame, chunk)
        reason = chunk.delta.stop_reason if chunk.delta is not None else None
        if reason is None or chunk.delta is None:
            return b""
        self._begin_end()
        closing = self._ensure_head() + self._close_all()
        sent = self._settle(reason, sequence=chunk.delta.stop_sequence)
        has_usage = chunk.usage is not None and chunk.usage.output_tokens is not None
        if sent == reason and has_usage:
            out = closing + _named(frame, chunk)
        else:
            out = closing + self._repaired(frame, chunk, sent)
        assert self.outcome.finish is not None
        if not encode_stream.sends_message_stop(self._reply, self.outcome.finish):
            self.ended = True
        return out

    def _late_usage(self, frame: Frame, chunk: StreamChunk) -> bytes:
        """Return usage that comes after the stop reason, with that reason again: clients take the last."""
        usage, ending = self._counter.usage(), self.outcome.finish
        if usage is None or usage == self.outcome.usage or ending is None:
            return b""
        self.outcome.usage = usage
        sent = self.outcome.sent_finish
        sequence = ending.sequence if sent == "stop_sequence" else None
        value = json.decode_lossy(frame.data)
        value["delta"] = {"stop_reason": sent, "stop_sequence": sequence}
        value["usage"] = {**value["usage"], **usage_object(usage)}
        return _frame_of(value, chunk)

    def _begin_end(self) -> None:
        """Note the end; an answer without content is sent too."""
        self.outcome.empty = not self.started
        self.started = True

    def _settle(self, reason: str | None, *, sequence: str | None = None) -> str:
        """Note the finish; return the stop reason for the client."""
        self._stop_reason = reason or ""
        ending = finish.infer(
            NAME,
            reason,
            has_calls=bool(self._callers),
            calls_whole=self._last_call_is_whole(reason),
            sequence=sequence,
        )
        sent = encode_stream.relayed_stop_reason(self._reply, ending)
        usage = self._counter.usage()
        self.outcome.finish = ending
        self.outcome.sent_finish = sent
        self.outcome.usage = usage or Usage(self._reply.input_tokens, self._output_tokens(), estimated=True)
        return sent

    def _last_call_is_whole(self, reason: str | None) -> bool:
        """Whether the last call is complete; its deltas are decoded only where the reason leaves it open."""
        if not self._callers or reason in (None, "tool_use", "end_turn"):
            return True
        pieces = []
        for raw in self._last_call:
            for frame in Frames().feed(raw):
                chunk = read_chunk(frame)
                if chunk is not None and chunk.delta is not None:
                    pieces.append(chunk.delta.partial_json)
        arguments = "".join(pieces)
        return not arguments or json.is_whole(arguments)

    def _repaired(self, frame: Frame, chunk: StreamChunk, sent: str) -> bytes:
        value = json.decode_lossy(frame.data)
        delta = value["delta"]
        if delta.get("stop_reason") != sent:
            delta["stop_reason"], delta["stop_sequence"] = sent, None
        assert self.outcome.usage is not None
        counts = value.get("usage") if isinstance(value.get("usage"), dict) else {}
        if chunk.usage is None or chunk.usage.output_tokens is None:
            value["usage"] = {**counts, **usage_object(self.outcome.usage)}
        return _frame_of(value, chunk)

    def _on_message_stop(self, frame: Frame, chunk: StreamChunk) -> bytes:
        if self._stop_reason is None:
            if not self._has_head:
                return self._break(stream_truncated())
            self._begin_end()
            return self._conclude()
        return self._end(_named(frame, chunk))

    def _conclude(self) -> bytes:
        """Return the end of an answer whose upstream sent no stop reason."""
        out = self._close_all()
        sent = self._settle(None)
        assert self.outcome.usage is not None
        return out + end_frame({"stop_reason": sent, "stop_sequence": None}, self.outcome.usage) + self._end()

    def _end(self, raw: bytes = MESSAGE_STOP) -> bytes:
        self.ended = True
        assert self.outcome.finish is not None
        return raw if encode_stream.sends_message_stop(self._reply, self.outcome.finish) else b""

    def _close_all(self) -> bytes:
        return b"".join([self._close_block(index) for index in list(self._open)])

    def _ensure_head(self) -> bytes:
        if self._has_head:
            return b""
        self._has_head = True
        usage = Usage(input=self._reply.input_tokens, output=1)
        message = encode_stream.message_head(self._reply, model="", usage=usage)
        return sse.frame(json.encode({"type": "message_start", "message": message}), b"message_start")


def _envelope_of(run: bytes) -> int:
    """Return the bytes around the text of the last delta in these frames."""
    for frame in reversed(Frames().feed(run)):
        chunk = read_chunk(frame)
        delta = chunk.delta if chunk is not None else None
        text = (delta.text or delta.thinking or delta.partial_json) if delta is not None else ""
        if text:
            return len(frame.raw) - len(json.encode(text)) + 2
    return _ENVELOPE


def _named(frame: Frame, chunk: StreamChunk) -> bytes:
    """Return the frame with its `event:` line; Anthropic's SDKs skip events without one."""
    kind = chunk.type.encode()
    return frame.raw if frame.event == kind else sse.frame(frame.data.replace(b"\n", b" "), kind)


def _frame_of(value: dict[str, Any], chunk: StreamChunk) -> bytes:
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
