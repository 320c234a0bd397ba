"""The same-protocol stream: frames are looked at, not rebuilt.

Until there is content every frame is read and lifecycle frames are held back. Afterwards a run of frames that
holds none of a few telling words passes in one piece.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.responses.encode_items import ResponseObject, error_object
from routecodex.protocols.responses.errors import answer_error, unparsable
from routecodex.protocols.responses.schema import CALLS, LIFECYCLE, TERMINAL, StreamChunk, read_chunk
from routecodex.protocols.responses.whole import is_empty_item, read_outcome
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire import json, sse
from routecodex.wire.frame import Frame
from routecodex.wire.sse import Frames, FrameTooLarge

_ITEM_DONE = "response.output_item.done"
_TEXT_DONE = "response.output_text.done"
_QUIET = LIFECYCLE | {
    "",
    "response.content_part.added",
    "response.content_part.done",
    "response.reasoning_summary_part.added",
    "keepalive",
}
_SEQUENCE = b'"sequence_number"'
_fields = Decoder(dict[str, Raw])


class Relay:
    """A Pipe that leaves a clean upstream's frames as they are."""

    def __init__(self, reply: ReplyContext) -> None:
        self.started = False
        self.ended = False
        self.outcome = AnswerOutcome()
        self._reply = reply
        self._frames = Frames()
        self._held: list[bytes] = []
        self._response = Raw(b"")
        self._items: list[Raw] = []
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return self._broken(unparsable())
        if not run:
            return b""
        if self.started and _says_nothing_new(run):
            self._last = run
            return run
        return self._each(
            frame for block in run.split(b"\n\n") if block and (frame := sse.parse(block)) is not None
        )

    def close(self) -> bytes:
        out = b"" if self.ended else self._each(self._frames.close())
        return out if self.ended else out + self._broken(stream_truncated())

    def fail(self, error: GatewayError) -> bytes:
        """`response.failed` with the object that the upstream began."""
        if self.ended:
            return b""
        self.ended = True
        self.outcome.error = error
        event = {
            "type": "response.failed",
            "sequence_number": self._sequence() + 1,
            "response": self._failed(error),
        }
        return sse.frame(json.encode(event), b"response.failed")

    def _broken(self, error: GatewayError) -> bytes:
        if not self.started:
            raise error
        return self.fail(error)

    def _each(self, frames: Any) -> bytes:
        out: list[bytes] = []
        for frame in frames:
            if self.ended:
                break
            out.append(self._pass(frame, read_chunk(frame)))
        return b"".join(out)

    def _pass(self, frame: Frame, event: StreamChunk | None) -> bytes:
        if event is None:
            return b""
        self._note(event)
        if event.type in TERMINAL and (failure := self._end(event)) is not None:
            if not self.started or event.type == "error":
                return self._broken(failure)
            self.ended = True
            self.outcome.error = failure
        if event.type in TERMINAL or not self._is_quiet(event):
            self.started = True
        self._held.append(frame.raw)
        if not self.started:
            return b""
        out, self._held = b"".join(self._held), []
        self._last = frame.raw
        return out

    def _is_quiet(self, event: StreamChunk) -> bool:
        """Whether the frame says nothing yet, so that another target could still be asked."""
        if event.type == "response.output_item.added":
            item = json.decode_raw(event.item)
            return not isinstance(item, dict) or str(item.get("type")) not in CALLS
        if event.type == _ITEM_DONE:
            item = json.decode_raw(event.item)
            return isinstance(item, dict) and item.get("type") == "message" and is_empty_item(item)
        return event.type in _QUIET or (event.type == _TEXT_DONE and not event.text)

    def _note(self, event: StreamChunk) -> None:
        if event.type in LIFECYCLE and json.is_present(event.response):
            self._response = event.response.copy()
            response = json.decode_raw(event.response)
            if isinstance(response, dict):
                self.outcome.response_id = str(response.get("id") or "")
                self.outcome.model = str(response.get("model") or "")
        elif event.type == _ITEM_DONE and json.is_present(event.item):
            self._items.append(event.item.copy())

    def _end(self, event: StreamChunk) -> GatewayError | None:
        """Fills the outcome from the terminal event; the error when it tells of a failure."""
        response = json.decode_raw(event.response)
        if event.type not in ("response.completed", "response.incomplete"):
            told = response.get("error") if isinstance(response, dict) else None
            plain = {"code": event.code, "message": event.message, "param": event.param}
            return answer_error(told or json.decode_raw(event.error) or plain)
        if not isinstance(response, dict):
            return stream_truncated()
        body = bytes(event.response)
        if not response.get("output") and self._items:
            # Some upstreams leave the final output empty; the history needs it whole.
            body = json.encode({**_fields_of(event.response), "output": self._items})
            response["output"] = [json.decode_raw(item) for item in self._items]
        self.outcome = read_outcome(response, body, event.type)
        self.ended = True
        return None

    def _sequence(self) -> int:
        """The last sequence number that was passed on."""
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


def _says_nothing_new(run: bytes) -> bool:
    """Whether no frame must be read, or left out because clients fail on one without data.

    That a text may hold one of these words too costs only time.
    """
    # Spelled out: a loop costs more than the searches themselves.
    return not (
        b"complete" in run
        or b"item.done" in run
        or b"error" in run
        or b"failed" in run
        or b"cancelled" in run
        or b"[DONE]" in run
        or run.find(b"data:\n") >= 0
        or run.find(b"data: \n") >= 0
    )
