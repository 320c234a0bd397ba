"""Relays a Responses stream to a Responses client.

Until there is content every frame is decoded. Afterwards deltas pass as they came.

Compatible servers leave out `event:` lines (Bedrock Mantle) or sequence numbers. The first frame with such a
gap makes the relay mend all frames from there on; other streams are not slowed by it. Usage and other fields
that a response object lacks are added to it. OpenAI's servers repeat HTTP headers in events and response
objects (`headers`); they end here as the real headers do, because Codex acts on `openai-model` and others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.relay import FrameRelay
from routecodex.protocols.responses.encode_items import (
    ResponseObject,
    error_object,
    missing_fields,
    usage_object,
)
from routecodex.protocols.responses.errors import answer_error, unparsable
from routecodex.protocols.responses.schema import CALLS, LIFECYCLE, TERMINAL, StreamChunk, read_chunk
from routecodex.protocols.responses.whole import estimate_usage, is_empty_item, read_outcome
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames

_ITEM_DONE = "response.output_item.done"
_TEXT_DONE = "response.output_text.done"
_WITHOUT_CONTENT = LIFECYCLE | {
    "",
    "response.content_part.added",
    "response.content_part.done",
    "response.reasoning_summary_part.added",
    "keepalive",
}
_SEQUENCE = b'"sequence_number"'
_HEADERS = b'"headers"'
_DELTA_TYPE = ".delta"
_DELTA = b".delta\ndata: {"
"""The event line of a delta with the begin of its data; no text contains a line end."""
_fields = Decoder(dict[str, Raw])


class _Delta(Struct):
    """The text of a delta."""

    delta: str = ""


_deltas = Decoder(_Delta)


class Relay(FrameRelay):
    """A Pipe from Responses to Responses."""

    def __init__(self, reply: ReplyContext) -> None:
        super().__init__(reply)
        self._response = Raw(b"")
        self._items: list[Raw] = []
        self._last = b""
        self._mends = False
        self._object: bytes | None = None
        """The response object of the event that is next to pass, if the upstream's is incomplete."""

    def _relay(self, run: bytes) -> bytes:
        if self.started and not self._mends and (frames := _plain_frames(run)):
            self._meter.bytes += len(run)
            self._meter.frames += frames
            self._last = run
            return run
        out: list[bytes] = []
        for block in run.split(b"\n\n"):
            if self.ended:
                break
            if block:
                out.append(self._block(block))
        return b"".join(out)

    def _block(self, block: bytes) -> bytes:
        """Return the client's frame for one frame without its blank line."""
        if self.started and not self._mends and block.count(_DELTA) == 1:
            raw = self._last = block + b"\n\n"
            meter = self._meter
            meter.bytes += len(raw)
            meter.frames += 1
            return raw
        frame = sse.parse(block)
        return b"" if frame is None else self._frame(frame)

    def _output_tokens(self) -> int:
        return self._meter.tokens(_envelope_of(self._last))

    def _unparsable(self) -> GatewayError:
        return unparsable()

    def _error_frame(self, error: GatewayError) -> bytes:
        """Return `response.failed` with the response object that the upstream began."""
        event = {
            "type": "response.failed",
            "sequence_number": self._sequence() + 1,
            "response": self._failed(error),
        }
        return sse.frame(json.encode(event), b"response.failed")

    def _frame(self, frame: Frame) -> bytes:
        event = read_chunk(frame)
        if event is None:
            return b""
        self._note(event)
        if self._mends and event.type.endswith(_DELTA_TYPE):
            self._meter.bytes += len(frame.raw)
            self._meter.frames += 1
        if event.type in TERMINAL and (failure := self._end(event)) is not None:
            if not self.started or event.type == "error":
                return self._break(failure)
            self.ended = True
            self.outcome.error = failure
        if event.type in TERMINAL or not _lacks_content(event):
            self.started = True
        if event.sequence_number is None or not frame.event:
            self._mends = True
        complete = self._object is None and not self._mends and frame.data.find(_HEADERS) < 0
        self._last = frame.raw if complete or not event.type else self._mended(frame, event)
        return self._last

    def _mended(self, frame: Frame, event: StreamChunk) -> bytes:
        """Return the frame with its event line, sequence number and a complete response object."""
        fields = json.try_read(frame.data, _fields)
        if fields is None:
            return frame.raw
        number = self._sequence() + 1 if self._last else 0
        if not self._mends and event.sequence_number is not None:
            number = event.sequence_number
        changes: dict[str, Any] = {"type": event.type, "sequence_number": number}
        if self._object is not None:
            changes["response"] = Raw(self._object)
            self._object = None
        kept = _without(fields, (*changes, "headers"))
        return sse.frame(json.encode({**changes, **kept}), event.type.encode())

    def _note(self, event: StreamChunk) -> None:
        if event.type in LIFECYCLE and json.is_present(event.response):
            self._response = event.response.copy()
            response = json.decode_answer(event.response)
            if isinstance(response, dict):
                self.outcome.response_id = str(response.get("id") or "")
                self.outcome.model = str(response.get("model") or "")
                self._complete(event.response, response, {})
                if self._object is not None:
                    self._response = Raw(self._object)
        elif event.type == _ITEM_DONE and json.is_present(event.item):
            self._items.append(event.item.copy())

    def _end(self, event: StreamChunk) -> GatewayError | None:
        """Fill the outcome from the terminal event; return the error if that reports a failure."""
        response = json.decode_answer(event.response)
        if event.type not in ("response.completed", "response.incomplete"):
            nested = None
            if isinstance(response, dict):
                nested = response.get("error")
                self._complete(event.response, response, {})
            flat = {"code": event.code, "message": event.message, "param": event.param}
            return answer_error(nested or json.decode_answer(event.error) or flat)
        if not isinstance(response, dict):
            return stream_truncated()
        changes: dict[str, Any] = {}
        if not response.get("output") and self._items:
            # Some upstreams leave `output` of the final response empty.
            changes["output"] = self._items
            response["output"] = [json.decode_answer(item) for item in self._items]
        self.outcome = read_outcome(response, bytes(event.response), event.type)
        if self.outcome.usage is None:
            self.outcome.usage = estimate_usage(response, self._reply)
            changes["usage"] = usage_object(self.outcome.usage)
        self._complete(event.response, response, changes)
        if self._object is not None:
            self.outcome.body = self._object
        self.ended = True
        return None

    def _complete(self, raw: Raw, response: dict[str, Any], changes: dict[str, Any]) -> None:
        """Store the response object with the changes and the fields that it lacks, if there are any."""
        missing = missing_fields(response, self._reply)
        if missing or changes or "headers" in response:
            fields = _without(_fields_of(raw), ("headers",))
            self._object = json.encode({**fields, **missing, **changes})

    def _sequence(self) -> int:
        """Return the sequence number of the last frame that was passed on."""
        at = self._last.rfind(_SEQUENCE)
        digits = self._last[at + len(_SEQUENCE) :].lstrip(b" :")[:12] if at >= 0 else b""
        number = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
        return int(number) if number else 0

    def _failed(self, error: GatewayError) -> Any:
        if not json.is_present(self._response):
            return Raw(ResponseObject(self._reply).render("failed", output=[], error=error))
        fields = _fields_of(self._response)
        return {**fields, "status": "failed", "error": error_object(error), "output": self._items}


def _fields_of(response: Raw) -> dict[str, Raw]:
    return json.try_read(response, _fields) or {}


def _without(fields: dict[str, Raw], names: Iterable[str]) -> dict[str, Raw]:
    return {name: value for name, value in fields.items() if name not in names}


def _lacks_content(event: StreamChunk) -> bool:
    """Whether the event has nothing that a client would show or run."""
    if event.type == "response.output_item.added":
        item = json.decode_answer(event.item)
        return not isinstance(item, dict) or str(item.get("type")) not in CALLS
    if event.type == _ITEM_DONE:
        item = json.decode_answer(event.item)
        return isinstance(item, dict) and item.get("type") == "message" and is_empty_item(item)
    return event.type in _WITHOUT_CONTENT or (event.type == _TEXT_DONE and not event.text)


def _plain_frames(run: bytes) -> int:
    """Return the number of frames if each is a delta with its event line and data: none needs decoding."""
    frames = run.count(b"\n\n")
    return frames if run.count(_DELTA) == frames else 0


def _envelope_of(run: bytes) -> int:
    """Return the bytes around the text of the last delta in these frames; 0 if there is none."""
    for frame in reversed(Frames().feed(run)):
        event = json.try_read(frame.data, _deltas)
        if event is not None and event.delta:
            return len(frame.raw) - len(json.encode(event.delta)) + 2
    return 0
