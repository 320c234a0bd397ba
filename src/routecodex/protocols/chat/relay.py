"""A chat stream to a chat client: frames are scanned, not rebuilt.

A run of frames without any of the marks below passes as it is. A frame with one is looked at, and mended only
where the upstream broke the protocol: calls without `index`, a finish that denies the calls, usage glued to
another chunk, a missing head or `[DONE]`.

How much an upstream that counts nothing has written, guessed from the size of its frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from routecodex.canon.errors import GatewayError, UpstreamRefusedKey
from routecodex.canon.events import Usage
from routecodex.protocols import upstream_errors
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.chunks import (
    CONTENT_KEY,
    CallPosition,
    ToolCallIndex,
    complete_usage,
    is_empty,
    is_plain_text,
    is_valid_call,
    read_loosely,
    read_typed,
    repair_call,
    settle_finish,
    usage_of,
)
from routecodex.protocols.chat.decode_stream import unparsable
from routecodex.protocols.chat.encode_stream import DONE, usage_object
from routecodex.protocols.chat.known_frames import OBJECT, ChunkPrefix, KnownFrames
from routecodex.protocols.chat.schema import StreamChunk, WireChoice, WireDelta, WireToolCallDelta, WireUsage
from routecodex.protocols.chat.validate import RequestView
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.text_batches import FrameTemplate
from routecodex.wire import json, scan, sse
from routecodex.wire.json import ABSENT, decode_raw, is_present
from routecodex.wire.sse import Frames, FrameTooLarge

_BYTES_PER_TOKEN = 3


class OutputMeter:
    """Adds up frames that pass unread; `envelope` is the size of a chunk that says nothing."""

    __slots__ = ("_bytes", "_frames", "envelope")

    def __init__(self) -> None:
        self.envelope = 0
        self._bytes = 0
        self._frames = 0

    def add(self, run: bytes) -> None:
        """Takes a run of whole frames."""
        self._bytes += len(run)
        self._frames += run.count(b"\n\n")

    def tokens(self) -> int:
        """A count that errs high: a token a frame at least, or three bytes each of what they say."""
        said = self._bytes - self._frames * self.envelope
        return max(self._frames, said // _BYTES_PER_TOKEN) + 1


_MARKS: Final[tuple[bytes, ...]] = (
    b'"finish_reason":"',
    b'"finish_reason": "',
    b'"finish_reason" ',
    b'"usage":{',
    b'"usage": {',
    b'"usage" ',
    b'"error"',
    b"[DONE]",
    b"_call",
    b"data:\n",
    b"data: \n",
)
"""One of these is in every frame that must be read, or must not be sent: clients fail on one without data."""
_DONE: Final = b"[DONE]"


class Relay:
    """A Pipe for chat → chat."""

    def __init__(self, reply: ReplyContext) -> None:
        self.started = False
        self.ended = False
        self.outcome = AnswerOutcome()
        self._reply = reply
        self._asked: bool = reply.include_usage
        view = reply.view
        self._wanted: int = (view.fields.n or 1) if isinstance(view, RequestView) else 1
        self._frames = Frames()
        self._repeats = FrameTemplate()
        self._usual = KnownFrames()
        self._held: list[bytes] = []
        self._first: ChunkPrefix | None = None
        self._bare = False
        self._calls: dict[int, ToolCallIndex] = {}
        self._placed: list[CallPosition] = []
        self._legacy: list[int] = []
        self._words: dict[int, str] = {}
        self._usage_sent = False
        self._counts_in = b""
        """The data in which the last usage was that could not go out as it came."""
        self._last_call: list[str] = []
        self._broke_off = ""
        """The word with which the upstream gave up."""
        self._meter = OutputMeter()

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge:
            return self._broken(unparsable())
        return self._released(self._run(run)) if run else b""

    def close(self) -> bytes:
        if self.ended:
            return b""
        told = [self._frame(frame.data, frame.raw) for frame in self._frames.close()]
        return self._closed(self._released(b"".join(told)))

    def _closed(self, out: bytes) -> bytes:
        """The end of the stream after its last bytes, which may have been one already."""
        if self.ended:
            return out
        if not self._complete:
            return out + self._broken(upstream_errors.stream_truncated())
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
        return len(self._words) >= self._wanted

    def _released(self, out: bytes) -> bytes:
        """What may leave by now: nothing before there is content, then all that was held."""
        if not self.started:
            if out:
                self._held.append(out)
            return b""
        if self._held:
            out = b"".join([*self._held, out])
            self._held = []
        return out

    def _run(self, run: bytes) -> bytes:
        """Passes what is harmless in one piece, and looks at the rest frame by frame."""
        out: list[bytes] = []
        # What lies between `kept` and `at` passes as it came.
        kept, at, searched = 0, 0, False
        while at < len(run) and not self.ended:
            if not searched and self._may_pass(run, at):
                searched = True
                end = self._harmless(run, at)
                if end > at:
                    if self._asked:
                        self._meter.add(run[at:end])
                    at = end
                    continue
            said, raw, end = self._told(run, at)
            if said != raw or len(raw) != end - at:
                out.append(run[kept:at])
                out.append(said)
                kept = end
            at = end
        if not kept and at == len(run):
            return run
        out.append(run[kept:at])
        return b"".join(out)

    def _may_pass(self, run: bytes, at: int) -> bool:
        """Whether frames from this place on may pass unread: there is content, and more of it may come."""
        if self._bare or self._complete:
            return False
        return self.started or self._begins(run, at)

    def _begins(self, run: bytes, at: int) -> bool:
        """Whether the answer's first content stands there, in a frame as it usually is; notes it."""
        head, tail = self._usual.text_at(run, at)
        if head:
            self.started = True
            self._repeats.take_shape(head, tail)
        return bool(head)

    def _harmless(self, run: bytes, at: int) -> int:
        """Where the first frame from this place on begins that must be read."""
        at = self._repeats.span(run, at)
        if at == len(run):
            return at
        end = self._as_usual(run, at)
        if end > at:
            return end
        mark = scan.find_first(run, _MARKS, at)
        if mark < 0:
            return len(run)
        before = run.rfind(b"\n\n", at, mark)
        return at if before < 0 else before + 2

    def _told(self, run: bytes, at: int) -> tuple[bytes, bytes, int]:
        """What is told of the frame that begins there, its own bytes, and where the next one begins."""
        end = self._as_usual(run, at)
        if end > at:
            raw = run[at:end]
            if self._asked:
                self._meter.add(raw)
            return raw, raw, end
        if self.started and run[at : at + len(DONE)] == DONE:
            return self._done(), DONE, at + len(DONE)
        if self._words and not self._bare:
            counts, end = self._usual.usage_at(run, at)
            if counts is not None:
                raw = run[at:end]
                return self._counted(counts, raw), raw, end
        data, raw, end = sse.frame_at(run, at)
        return self._frame(data, raw) if data else b"", raw, end

    def _as_usual(self, run: bytes, at: int) -> int:
        """Where the frame ends that begins there, if it is a usual first or last one; notes what it says."""
        if self._first is None:
            head, end = self._usual.opening_at(run, at)
            if head is not None:
                self._remember(head, end - at)
                return end
        elif not (self._bare or self._words or self._calls or self._legacy):
            said, end = self._usual.finish_at(run, at)
            if said:
                self._finish(0, said)
                return end
        return at

    def _frame(self, data: bytes, raw: bytes) -> bytes:
        if data[:6] == _DONE and data.rstrip() == _DONE:
            return self._done() if self.started else self._broken(upstream_errors.stream_truncated())
        chunk = read_typed(data)
        odd = chunk is None
        if chunk is None:
            chunk = read_loosely(data)
        if chunk is None:
            return self._broken(unparsable())
        if chunk.error is not ABSENT and is_present(chunk.error):
            return self._upstream_error(raw, chunk)
        if self._asked:
            self._meter.add(raw)
        began = self.started
        try:
            return self._chunk(chunk, data, raw=raw, odd=odd)
        except ValueError:
            # It must be written anew, and something in it is not UTF-8: the client has seen nothing of it.
            self.started = began
            return self._broken(unparsable())

    def _upstream_error(self, raw: bytes, chunk: StreamChunk) -> bytes:
        said = decode_raw(chunk.error)
        error = errors.typed_error(200, said, provider=self._reply.provider)
        if not self.started:
            raise error
        if (
            isinstance(error, UpstreamRefusedKey)
            or not errors.is_chat_error(said)
            or scan.find_invalid_utf8(raw) >= 0
        ):
            return self.fail(error)
        self.ended = True
        self.outcome.error = error
        return raw

    def _chunk(self, chunk: StreamChunk, data: bytes, *, raw: bytes, odd: bool) -> bytes:
        choices = chunk.choices or []
        if self._first is None and choices:
            head = ChunkPrefix(chunk.id, chunk.created, chunk.model)
            self._bare = not (head.id and head.model) or head.created is None or chunk.object != OBJECT
            self._remember(head, len(raw))
        if self._words and self._are_late(choices):
            if chunk.usage is not None:
                self._count(chunk.usage, data)
            return b""
        self._placed.clear()
        mend = self._bare or chunk.object != OBJECT
        for choice in choices:
            mend |= self._choice(choice, odd=odd)
        if self._broke_off:
            return self._broken(upstream_errors.stream_broken(self._broke_off))
        if chunk.usage is not None:
            return self._usage(chunk, data, raw=raw, mend=mend)
        if mend:
            return self._mended(json.decode(data))
        if is_plain_text(chunk):
            self._repeats.learn(raw, CONTENT_KEY)
        return raw

    def _are_late(self, choices: list[WireChoice]) -> bool:
        """Whether a chunk only repeats that its choices have finished."""
        for choice in choices:
            delta = choice.delta
            if choice.index not in self._words or not (delta is None or is_empty(delta)):
                return False
        return bool(choices)

    def _remember(self, head: ChunkPrefix, size: int) -> None:
        """Takes the head of the first chunk that has a choice, and the size of its frame."""
        self._first = head
        self._meter.envelope = size
        self.outcome.model = head.model or ""
        self.outcome.response_id = head.id or ""

    def _head(self) -> dict[str, Any]:
        """What every chunk of this answer has in common."""
        first = self._first
        if first is None:
            return {}
        return {
            "id": first.id or f"chatcmpl-{self._reply.id}",
            "object": OBJECT,
            "created": first.created or self._reply.created,
            "model": first.model or self._reply.model,
        }

    def _choice(self, choice: WireChoice, *, odd: bool) -> bool:
        """Notes what a choice says; True when its calls or its finish must be mended."""
        delta, said = choice.delta, choice.finish_reason
        mend = delta is not None and self._content(choice.index, delta, odd=odd)
        if said is not None:
            mend |= self._finish(choice.index, said)
        return mend

    def _content(self, choice: int, delta: WireDelta, *, odd: bool) -> bool:
        """Notes content; True when a tool call must be mended."""
        if not self.started:
            self.started = not is_empty(delta)
        if delta.function_call is not None:
            self._legacy.append(choice)
        calls = delta.tool_calls
        if not calls:
            return False
        mend = odd
        for call in calls:
            place = self._calls.setdefault(choice, ToolCallIndex()).locate(call)
            self._placed.append(place)
            self._keep(call, begins=place.begins)
            mend |= not is_valid_call(call, place)
        return mend

    def _keep(self, call: WireToolCallDelta, *, begins: bool) -> None:
        """Remembers the arguments of the last call: whether they are whole matters if no finish comes."""
        if begins:
            self._last_call.clear()
        if call.text and call.custom is None:
            self._last_call.append(call.text)

    def _finish(self, choice: int, said: str) -> bool:
        """Notes the finish; True when its word is not the one to send."""
        if not said:
            return True
        outcome = self.outcome
        end, word = settle_finish(said, calls=bool(self._calls.get(choice)), legacy=choice in self._legacy)
        if end.reason == "error":
            self._broke_off = said
            return False
        outcome.empty = self._wanted == 1 and not self.started
        self.started = True
        outcome.finish, outcome.sent_finish = end, word
        self._words[choice] = word
        return word != said

    def _mended(self, value: dict[str, Any]) -> bytes:
        value["object"] = OBJECT
        if not (value.get("id") and value.get("created") and value.get("model")):
            for field, known in self._head().items():
                value[field] = value.get(field) or known
        placed = iter(self._placed)
        for choice in value.get("choices") or ():
            if isinstance(choice, dict):
                self._mend_choice(choice, placed)
        return sse.frame(json.encode(value))

    def _mend_choice(self, choice: dict[str, Any], placed: Iterator[CallPosition]) -> None:
        calls = (choice.get("delta") or {}).get("tool_calls") or ()
        for call in (call for call in calls if isinstance(call, dict)):
            place = next(placed)
            repair_call(call, place, new_id=f"call_{self._reply.id}_{place.number}")
        if "finish_reason" in choice:
            word = self._words.get(choice.get("index") or 0)
            choice["finish_reason"] = word if choice["finish_reason"] else None

    def _usage(self, chunk: StreamChunk, data: bytes, *, raw: bytes, mend: bool) -> bytes:
        """Usage goes out in a chunk of its own after the finish, exactly when asked for."""
        assert chunk.usage is not None
        self._count(chunk.usage, data)
        if not chunk.choices:
            said = self._counted(chunk.usage, raw)
            return self._mended(json.decode(data)) if said and mend else said
        value = json.decode(data)
        value["usage"] = None
        if not self._asked:
            del value["usage"]
        return self._mended(value)

    def _count(self, counts: WireUsage, data: bytes) -> None:
        """Notes the usage of a frame that cannot go out as it is."""
        self.outcome.usage = usage_of(counts)
        self._counts_in = data

    def _counted(self, counts: WireUsage, raw: bytes) -> bytes:
        """Notes the usage that a frame tells alone; the frame, if it may go out now."""
        self.outcome.usage = usage_of(counts)
        if self._usage_sent or not (self._asked and self._words):
            return b""
        self._usage_sent = True
        return raw

    def _done(self) -> bytes:
        """The end every complete stream has: usage if asked for, then `[DONE]`."""
        arguments = "" if self._words else "".join(self._last_call)
        if arguments and not json.is_whole(arguments):
            return self._broken(upstream_errors.stream_truncated())
        self.ended = True
        out = b""
        if not self._words:
            # A [DONE] without a finish_reason: the upstream says that it is complete, in its own way.
            self._finish(0, "stop")
            end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self.outcome.sent_finish}
            out = sse.frame(json.encode({**self._head(), "choices": [end]}))
        if self._asked and not self._usage_sent:
            out += sse.frame(json.encode({**self._head(), "choices": [], "usage": self._usage_told()}))
        return out + DONE

    def _usage_told(self) -> Any:
        """What was counted, in the upstream's own words where it has them; an estimate where it has none."""
        usage = self.outcome.usage
        if usage is None:
            usage = Usage(self._reply.input_tokens, self._meter.tokens(), estimated=True)
            self.outcome.usage = usage
        told = complete_usage(self._counts_in) if self._counts_in else ABSENT
        return usage_object(usage) if told is ABSENT else told

    def _broken(self, error: GatewayError) -> bytes:
        if not self.started:
            raise error
        return self.fail(error)
