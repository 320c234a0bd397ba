"""A chat stream to a chat client: frames are scanned, not rebuilt.

A run of frames without any of the marks below passes as it is. A frame with one is looked at, and mended only
where the upstream broke the protocol: calls without `index`, a finish that denies the calls, usage glued to
another chunk, a missing head or `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routecodex.canon.errors import GatewayError, UpstreamRefusedKey
from routecodex.canon.usage import Usage
from routecodex.protocols import failures
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.calls import CallBook
from routecodex.protocols.chat.chunks import (
    CONTENT_KEY,
    CallDelta,
    Chunk,
    Delta,
    read_odd,
    read_typed,
    usage_of,
)
from routecodex.protocols.chat.decoder import unparsable
from routecodex.protocols.chat.encoder import DONE, usage_object
from routecodex.protocols.chat.ends import settle
from routecodex.protocols.chat.meter import Meter
from routecodex.protocols.codec import Outcome, ReplyTo
from routecodex.protocols.repeats import Repeats
from routecodex.wire import json, sse
from routecodex.wire.json import present, thaw
from routecodex.wire.sse import Frame, Frames, FrameTooLarge

_MARKS = (
    b'"finish_reason":"',
    b'"finish_reason": "',
    b'"usage":{',
    b'"usage": {',
    b'"error"',
    b"[DONE]",
    b"_call",
)
_OBJECT = "chat.completion.chunk"


class Relay:
    """A Pipe for chat → chat."""

    def __init__(self, reply: ReplyTo) -> None:
        self.started = False
        self.ended = False
        self.outcome = Outcome()
        self._reply = reply
        self._frames = Frames()
        self._repeats = Repeats()
        self._held: list[bytes] = []
        self._head: dict[str, Any] = {}
        self._bare = False
        self._calls: dict[int, CallBook] = {}
        self._placed: list[tuple[int, bool]] = []
        self._legacy: set[int] = set()
        self._wanted: int = getattr(reply.wire, "n", None) or 1
        self._finished: set[int] = set()
        self._words: dict[int, str] = {}
        self._usage_sent = False
        self._meter = Meter()

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return self._broken(unparsable())
        if not run:
            return b""
        return self._run(run)

    def close(self) -> bytes:
        return b"" if self.ended else self._closed(b"".join(map(self._frame, self._frames.close())))

    def _closed(self, out: bytes) -> bytes:
        """The end of the stream after its last bytes, which may have been one already."""
        if self.ended:
            return out
        if not self._complete:
            return out + self._broken(failures.truncated())
        return out + self._done()

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        self.ended = True
        self.outcome.error = error
        return sse.frame(json.encode({"error": errors.error_object(error)}))

    @property
    def _complete(self) -> bool:
        """Whether every choice that was asked for has finished."""
        return len(self._finished) >= self._wanted

    def _run(self, run: bytes) -> bytes:
        """Passes what is harmless in one piece, and looks at the rest frame by frame."""
        at = self._repeats.span(run) if self.started and not self._bare and not self._complete else 0
        if at < len(run):
            return self._piece_by_piece(run, at)
        if self._reply.include_usage:
            self._meter.add(run)
        return run

    def _piece_by_piece(self, run: bytes, harmless: int) -> bytes:
        out: list[bytes] = []
        at, searched = 0, False
        while at < len(run) and not self.ended:
            end = harmless
            if end <= at and not searched and self.started and not self._bare and not self._complete:
                end = self._repeats.span(run, at)
                if end == at:
                    end, searched = self._unmarked(run, at), True
            if end > at:
                out.append(run[at:end])
                if self._reply.include_usage:
                    self._meter.add(out[-1])
                at = end
                continue
            end = run.find(b"\n\n", at) + 2
            frame = sse.parse(run[at : end - 2].strip(b"\n"))
            at = end
            if frame is not None and (said := self._frame(frame)):
                out.append(said)
        return out[0] if len(out) == 1 else b"".join(out)

    def _unmarked(self, run: bytes, at: int) -> int:
        """Where the first frame from this place on begins that has a mark."""
        first = min((found for mark in _MARKS if (found := run.find(mark, at)) >= 0), default=-1)
        if first < 0:
            return len(run)
        before = run.rfind(b"\n\n", at, first)
        return before + 2 if before >= 0 else at

    def _frame(self, frame: Frame) -> bytes:
        if self.ended:
            return b""
        if frame.data.rstrip() == b"[DONE]":
            return self._done() if self._finished or self.started else self._broken(failures.truncated())
        chunk = read_typed(frame.data)
        odd = chunk is None
        if chunk is None:
            chunk = read_odd(frame.data)
        if chunk is None:
            return self._broken(unparsable())
        if present(chunk.error):
            return self._upstream_error(frame, chunk)
        if self._reply.include_usage:
            self._meter.add(frame.raw)
        out = self._chunk(frame, chunk, odd=odd)
        if self.started:
            if self._held:
                self._held.append(out)
                out, self._held = b"".join(self._held), []
            return out
        if out:
            self._held.append(out)
        return b""

    def _upstream_error(self, frame: Frame, chunk: Chunk) -> bytes:
        said = thaw(chunk.error)
        error = errors.from_object(200, said, provider=self._reply.provider)
        if not self.started:
            raise error
        if isinstance(error, UpstreamRefusedKey) or not errors.is_proper(said):
            return self.fail(error)
        self.ended = True
        self.outcome.error = error
        return frame.raw

    def _chunk(self, frame: Frame, chunk: Chunk, *, odd: bool) -> bytes:
        if not self._head and chunk.choices:
            self._remember(chunk, frame)
        if self._is_late(chunk):
            self.outcome.usage = usage_of(chunk.usage) if chunk.usage is not None else self.outcome.usage
            return b""
        self._placed.clear()
        mend = self._bare or chunk.object != _OBJECT
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None:
                mend |= self._content(choice.index, delta) or (odd and bool(delta.tool_calls))
            if choice.finish_reason is not None:
                mend |= self._finish(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            return self._usage(frame, chunk, mend=mend)
        if mend:
            return self._mended(json.decode(frame.data))
        if chunk.is_plain_text:
            self._repeats.learn(frame.raw, CONTENT_KEY)
        return frame.raw

    def _is_late(self, chunk: Chunk) -> bool:
        """Whether the chunk only repeats that its choices have finished."""
        return bool(chunk.choices) and all(
            choice.index in self._finished and (choice.delta is None or choice.delta.is_empty)
            for choice in chunk.choices or ()
        )

    def _remember(self, chunk: Chunk, frame: Frame) -> None:
        self.outcome.model = chunk.model or ""
        self.outcome.response_id = chunk.id or ""
        self._bare = not (chunk.id and chunk.model) or chunk.created is None or chunk.object != _OBJECT
        self._meter.envelope = len(frame.raw)
        self._head = {
            "id": chunk.id or f"chatcmpl-{self._reply.id}",
            "object": _OBJECT,
            "created": chunk.created or self._reply.created,
            "model": chunk.model or self._reply.model,
        }

    def _content(self, choice: int, delta: Delta) -> bool:
        """Notes content; True when a tool call must be mended."""
        if delta.function_call is not None:
            self._legacy.add(choice)
        self.started |= not delta.is_empty
        mend = False
        for call in delta.tool_calls or ():
            number, begins = self._calls.setdefault(choice, CallBook()).place(call)
            self._placed.append((number, begins))
            mend |= call.index != number or not _is_proper(call, begins=begins)
        return mend

    def _finish(self, choice: int, said: str) -> bool:
        """Notes the finish; True when its word is not the one to send."""
        if not said:
            return True
        self._finished.add(choice)
        self.outcome.empty = self._wanted == 1 and not self.started
        self.started = True
        end, word = settle(said, calls=bool(self._calls.get(choice)), legacy=choice in self._legacy)
        self.outcome.finish = end
        self.outcome.sent_finish = self._words[choice] = word
        return word != said

    def _mended(self, value: dict[str, Any]) -> bytes:
        value["object"] = _OBJECT
        for field, known in self._head.items():
            value[field] = value.get(field) or known
        placed = iter(self._placed)
        for choice in value.get("choices") or ():
            if isinstance(choice, dict):
                self._mend_choice(choice, placed)
        return sse.frame(json.encode(value))

    def _mend_choice(self, choice: dict[str, Any], placed: Iterator[tuple[int, bool]]) -> None:
        calls = (choice.get("delta") or {}).get("tool_calls") or ()
        for call in (call for call in calls if isinstance(call, dict)):
            number, begins = next(placed)
            call["index"] = number
            _mend_call(call, begins=begins, made_id=f"call_{self._reply.id}_{number}")
        if "finish_reason" in choice:
            word = self._words.get(choice.get("index") or 0)
            choice["finish_reason"] = word if choice["finish_reason"] else None

    def _usage(self, frame: Frame, chunk: Chunk, *, mend: bool) -> bytes:
        """Usage goes out in a chunk of its own after the finish, exactly when asked for."""
        assert chunk.usage is not None
        self.outcome.usage = usage_of(chunk.usage)
        asked = self._reply.include_usage
        if not chunk.choices:
            if asked and self._finished and not self._usage_sent:
                self._usage_sent = True
                return self._mended(json.decode(frame.data)) if mend else frame.raw
            return b""
        value = json.decode(frame.data)
        value["usage"] = None
        if not asked:
            del value["usage"]
        return self._mended(value)

    def _done(self) -> bytes:
        """The end every complete stream has: usage if asked for, then `[DONE]`."""
        self.ended = True
        out = b"".join(self._held)
        self._held = []
        if not self._finished:
            # A [DONE] without a finish_reason: the upstream says that it is complete, in its own way.
            self._finish(0, "stop")
            end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self.outcome.sent_finish}
            out += sse.frame(json.encode({**self._head, "choices": [end]}))
        if self._reply.include_usage and not self._usage_sent:
            usage = self.outcome.usage
            if usage is None:
                usage = Usage(self._reply.input_tokens, self._meter.tokens(), estimated=True)
            self.outcome.usage = usage
            out += sse.frame(json.encode({**self._head, "choices": [], "usage": usage_object(usage)}))
        return out + DONE

    def _broken(self, error: GatewayError) -> bytes:
        if not self.started:
            raise error
        return self.fail(error)


def _is_proper(call: CallDelta, *, begins: bool) -> bool:
    """Whether a piece has what its place demands: a name and an id come once, with the first piece."""
    if begins:
        return bool(call.id and call.type) and call.text is not None
    return not call.id and not call.name


def _mend_call(call: dict[str, Any], *, begins: bool, made_id: str) -> None:
    kind, field = ("custom", "input") if call.get("custom") else ("function", "arguments")
    body = call.get(kind) or {}
    text = body.get(field)
    if begins:
        call["id"] = call.get("id") or made_id
        call["type"] = kind
        text = "" if text is None else text
    else:
        call.pop("id", None)
        body.pop("name", None)
    if text is not None:
        body[field] = text if isinstance(text, str) else json.encode(text).decode()
    call[kind] = body
