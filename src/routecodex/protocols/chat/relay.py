"""A chat stream to a chat client: frames are scanned, not rebuilt.

A run of frames without any of the marks below passes as it is. A frame with one is looked at, and mended only
where the upstream broke the protocol: calls without `index`, a finish that denies the calls, usage glued to
another chunk, a missing `[DONE]`.
"""

from __future__ import annotations

from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError
from routecodex.canon.usage import Usage
from routecodex.protocols import failures
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.chunks import Chunk, Delta, read_chunk, usage_of
from routecodex.protocols.chat.decoder import unparsable
from routecodex.protocols.chat.encoder import DONE, usage_object
from routecodex.protocols.codec import Outcome, ReplyTo
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
_LENGTHS = frozenset({"length", "max_tokens"})


class Relay:
    """A Pipe for chat → chat."""

    def __init__(self, reply: ReplyTo) -> None:
        self.started = False
        self.ended = False
        self.outcome = Outcome()
        self._reply = reply
        self._frames = Frames()
        self._held: list[bytes] = []
        self._head: dict[str, Any] = {}
        self._calls: dict[int, list[str]] = {}
        self._finished: set[int] = set()
        self._usage_sent = False
        self._passed = 0

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        try:
            run = self._frames.cut(data)
        except FrameTooLarge as exc:
            return self._broken(failures.truncated(str(exc)))
        if not run:
            return b""
        return self._run(run)

    def close(self) -> bytes:
        if self.ended:
            return b""
        out = b"".join(map(self._frame, self._frames.close()))
        if self.ended:
            return out
        if not self._finished:
            return out + self._broken(failures.truncated())
        return out + self._done()

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        self.ended = True
        self.outcome.error = error
        return sse.frame(json.encode({"error": errors.error_object(error)}))

    def _run(self, run: bytes) -> bytes:
        """Passes what is harmless in one piece, and looks at the rest frame by frame."""
        if not self.started:
            return self._frame_by_frame(run)
        first = min((at for mark in _MARKS if (at := run.find(mark)) >= 0), default=-1)
        if first < 0:
            self._passed += 1
            return run
        before = run.rfind(b"\n\n", 0, first)
        edge = before + 2 if before >= 0 else 0
        return run[:edge] + self._frame_by_frame(run[edge:])

    def _frame_by_frame(self, run: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        while at < len(run) and not self.ended:
            end = run.find(b"\n\n", at) + 2
            frame = sse.parse(run[at : end - 2].strip(b"\n"))
            at = end
            if frame is None:
                continue
            was_started = self.started
            out.append(self._frame(frame))
            if self.started and not was_started and at < len(run):
                out.append(self._run(run[at:]))
                break
        return b"".join(out)

    def _frame(self, frame: Frame) -> bytes:
        if self.ended:
            return b""
        if frame.data == b"[DONE]":
            return self._done() if self._finished or self.started else self._broken(failures.truncated())
        chunk = read_chunk(frame.data)
        if chunk is None:
            return self._broken(unparsable())
        if present(chunk.error):
            return self._upstream_error(frame, chunk)
        out = self._chunk(frame, chunk)
        if self.started:
            if self._held:
                out, self._held = b"".join([*self._held, out]), []
            return out
        if out:
            self._held.append(out)
        return b""

    def _upstream_error(self, frame: Frame, chunk: Chunk) -> bytes:
        error = errors.from_object(502, thaw(chunk.error), provider=self._reply.provider)
        if not self.started:
            raise error
        self.ended = True
        self.outcome.error = error
        return frame.raw

    def _chunk(self, frame: Frame, chunk: Chunk) -> bytes:
        if not self._head:
            self._remember(chunk)
        mend = chunk.object != _OBJECT
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None:
                mend |= self._content(choice.index, delta)
            if choice.finish_reason:
                mend |= self._finish(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            return self._usage(frame, chunk, mend=mend)
        return self._mended(frame.data) if mend else frame.raw

    def _remember(self, chunk: Chunk) -> None:
        self.outcome.model = chunk.model or ""
        self.outcome.response_id = chunk.id or ""
        self._head = {
            "id": chunk.id or f"chatcmpl-{self._reply.id}",
            "object": _OBJECT,
            "created": chunk.created or self._reply.created,
            "model": chunk.model or self._reply.model,
        }

    def _content(self, choice: int, delta: Delta) -> bool:
        """Notes content; True when a tool call must be mended."""
        if (
            delta.content
            or delta.reasoning_content
            or delta.reasoning
            or delta.refusal
            or delta.function_call
        ):
            self.started = True
        mend = False
        for call in delta.tool_calls or ():
            self.started = True
            ids = self._calls.setdefault(choice, [])
            if call.id and call.id not in ids:
                ids.append(call.id)
            # Numbered -1 or not at all, or every call numbered 0: the client could not tell them apart.
            mend |= call.index is None or (bool(call.id) and call.index != ids.index(call.id or ""))
        return mend

    def _finish(self, choice: int, said: str) -> bool:
        """Notes the finish; True when it denies the calls that were made."""
        self._finished.add(choice)
        self.started = True
        end = finish.infer(
            "chat", said, has_calls=bool(self._calls.get(choice)), calls_whole=said not in _LENGTHS
        )
        word = finish.express("chat", end)
        self.outcome.finish = end
        self.outcome.sent_finish = word
        return end.reason == "tool_calls" and said not in ("tool_calls", "function_call")

    def _mended(self, data: bytes) -> bytes:
        value = json.decode(data)
        value["object"] = _OBJECT
        for field, known in self._head.items():
            value.setdefault(field, known)
        for choice in value.get("choices") or ():
            self._mend_choice(choice)
        return sse.frame(json.encode(value))

    def _mend_choice(self, choice: dict[str, Any]) -> None:
        ids = self._calls.get(choice.get("index", 0), [])
        for call in (choice.get("delta") or {}).get("tool_calls") or ():
            call["index"] = ids.index(call["id"]) if call.get("id") in ids else max(len(ids) - 1, 0)
        if choice.get("finish_reason") and ids and choice["finish_reason"] not in _LENGTHS:
            choice["finish_reason"] = self.outcome.sent_finish

    def _usage(self, frame: Frame, chunk: Chunk, *, mend: bool) -> bytes:
        """Usage goes out in a chunk of its own after the finish, exactly when asked for."""
        assert chunk.usage is not None
        self.outcome.usage = usage_of(chunk.usage)
        asked = self._reply.include_usage
        if not chunk.choices:
            if asked and self._finished and not self._usage_sent:
                self._usage_sent = True
                return self._mended(frame.data) if mend else frame.raw
            return b""
        value = json.decode(frame.data)
        value["usage"] = None
        if not asked:
            del value["usage"]
        return self._mended(json.encode(value))

    def _done(self) -> bytes:
        """The end every complete stream has: usage if asked for, then `[DONE]`."""
        self.ended = True
        out = b"".join(self._held)
        self._held = []
        self.started = True
        if not self._finished:
            # A [DONE] without a finish_reason: the upstream says that it is complete, in its own way.
            self._finish(0, "stop")
            end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self.outcome.sent_finish}
            out += sse.frame(json.encode({**self._head, "choices": [end]}))
        if self._reply.include_usage and not self._usage_sent:
            usage = self.outcome.usage or Usage(self._reply.input_tokens, self._passed + 1, estimated=True)
            self.outcome.usage = usage
            out += sse.frame(json.encode({**self._head, "choices": [], "usage": usage_object(usage)}))
        return out + DONE

    def _broken(self, error: GatewayError) -> bytes:
        if not self.started:
            raise error
        return self.fail(error)
