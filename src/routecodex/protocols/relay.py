"""The skeleton of a relay: the stream of an upstream for a client of the same protocol.

Frames are scanned, not rebuilt. They are held until there is content, because until then another target may
answer; afterwards a failure becomes the protocol's own error frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.translation import observed_usage
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.wire.sse import Frames, FrameTooLarge

_BYTES_PER_TOKEN = 3


class OutputMeter:
    """Counts frames with content, and their bytes, for an estimate of their tokens.

    Relays count in place where frames pass undecoded, because every chunk of a stream comes through there.
    The last frames are kept: the size of a frame without its content is learned from them if it is needed.
    """

    __slots__ = ("bytes", "frames", "last")

    def __init__(self) -> None:
        self.bytes = 0
        self.frames = 0
        self.last = b""

    def tokens(self, envelope: int) -> int:
        """Return a count that errs high: one token per frame or three bytes of content, whichever is more.

        `envelope` is the size of a frame without content.
        """
        content = self.bytes - self.frames * envelope
        return max(self.frames, content // _BYTES_PER_TOKEN) + 1


class FrameRelay(ABC):
    """A Pipe from a protocol to itself; each codec has its own subclass `Relay`."""

    def __init__(self, reply: ReplyContext) -> None:
        self.started = False
        self.ended = False
        self.outcome = AnswerOutcome()
        self._reply = reply
        self._frames = Frames()
        self._meter = OutputMeter()
        self._held: list[bytes] = []

    @abstractmethod
    def _relay(self, run: bytes) -> bytes:
        """Return the client's frames for a run of whole frames; set `started` at the first content."""

    @abstractmethod
    def _error_frame(self, error: GatewayError) -> bytes:
        """Return the protocol's error frame."""

    @abstractmethod
    def _unparsable(self) -> GatewayError:
        """Return the error of a stream that is not of this protocol."""

    @abstractmethod
    def _output_tokens(self) -> int:
        """Estimate the tokens of the content so far."""

    def _reported(self) -> Usage | None:
        """Return the counts that the upstream has reported so far."""
        return self.outcome.usage

    def _finish(self) -> bytes:
        """Return the last bytes after the upstream closed the stream before its end."""
        return self._break(stream_truncated())

    def _is_finished(self) -> bool:
        """Return whether the finish has arrived: the answer is complete, whatever the stream does now."""
        return False

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return self._break(self._unparsable())
        if not run:
            return b""
        out = self._relay(run)
        return out if self.started and not self._held else self._release(out)

    def close(self) -> bytes:
        if self.ended:
            return b""
        # The last frame may lack its blank line.
        run = b"".join([frame.raw for frame in self._frames.close()])
        return self._finish_after(self._release(self._relay(run)) if run else b"")

    def _finish_after(self, out: bytes) -> bytes:
        # A function of its own: mypyc assumes that `_relay` has not changed `ended`.
        return out if self.ended else out + self._finish()

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        if self._is_finished():
            return self._finish()
        self.ended = True
        self.outcome.error = error
        return self._error_frame(error)

    def observed(self) -> Usage:
        output = self._output_tokens() if self.started else 0
        return observed_usage(self._reported(), input_tokens=self._reply.input_tokens, output_tokens=output)

    def _break(self, error: GatewayError) -> bytes:
        """Raise the error before content, so that the next target is tried; afterwards end with it."""
        if not self.started:
            raise error
        return self.fail(error)

    def _release(self, out: bytes) -> bytes:
        """Return the frames with those held before them; hold them while there is no content."""
        self._held.append(out)
        if not self.started:
            return b""
        held, self._held = self._held, []
        return b"".join(held)
