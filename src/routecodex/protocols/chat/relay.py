"""Relays a chat stream to a chat client.

A run of frames without any of `_MARKS` passes as it came. A frame with one is decoded, and repaired only
where the upstream breaks OpenAI's protocol: calls without `index`, a `finish_reason` that denies the calls,
requested usage in a chunk with choices, missing fields or a missing `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from routecodex.canon.errors import GatewayError, UpstreamRefusedKey
from routecodex.canon.events import Usage
from routecodex.protocols.chat import errors
from routecodex.protocols.chat.chunks import (
    CONTENT_KEY,
    CallPosition,
    ToolCallIndex,
    adds_text,
    complete_usage,
    has_error,
    index_of,
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
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.relay import FrameRelay
from routecodex.protocols.text_batches import FrameTemplate
from routecodex.protocols.upstream_errors import stream_broken, stream_truncated
from routecodex.wire import json, scan, sse
from routecodex.wire.json import ABSENT, decode_raw

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
    b'"annotations":[{',
    b'"annotations": [{',
    b"data:\n",
    b"data: \n",
)
"""Every frame that must be decoded holds one of these, and so does one without data: clients fail on that."""
_DONE: Final = b"[DONE]"


class Relay(FrameRelay):
    """A Pipe from chat to chat."""

    def __init__(self, reply: ReplyContext) -> None:
        super().__init__(reply)
        self._include_usage: bool = reply.include_usage
        view = reply.view
        self._choices: int = (view.fields.n or 1) if isinstance(view, RequestView) else 1
        self._template = FrameTemplate()
        self._known = KnownFrames()
        self._prefix: ChunkPrefix | None = None
        self._tier: str | None = None
        self._lacks_prefix = False
        self._calls: dict[int, ToolCallIndex] = {}
        self._positions: list[CallPosition] = []
        self._whole_choices: list[int] = []
        """Choices of this chunk whose content is in `message`, as in a completion that is not streamed."""
        self._function_calls: list[int] = []
        """Choices that called by `function_call`, OpenAI's field before `tool_calls`."""
        self._annotations: dict[int, int] = {}
        """Annotations so far, by choice."""
        self._finish_reasons: dict[int, str] = {}
        self._repeats_reason = False
        """Text came with a finish reason again: none of them proves the end (Gemini 1.x, gcli2api)."""
        self._failure = ""
        """The finish reason with which the upstream reported a failure."""
        self._usage_sent = False
        self._usage_data = b""
        """Data of the last chunk whose usage could not be sent as it came."""
        self._last_arguments: list[str] = []
        self._envelope = 0
        """Size of a chunk without content."""

    def _error_frame(self, error: GatewayError) -> bytes:
        return errors.error_frame(error)

    def _unparsable(self) -> GatewayError:
        return unparsable()

    def _count(self, run: bytes) -> None:
        meter = self._meter
        meter.bytes += len(run)
        meter.frames += run.count(b"\n\n")

    def _output_tokens(self) -> int:
        return self._meter.tokens(self._envelope)

    def _finish(self) -> bytes:
        return self._done() if self._complete else self._break(stream_truncated())

    def _is_finished(self) -> bool:
        return self._complete and not self._repeats_reason

    @property
    def _complete(self) -> bool:
        """Whether every requested choice has finished."""
        return len(self._finish_reasons) >= self._choices

    def _relay(self, run: bytes) -> bytes:
        out: list[bytes] = []
        # The bytes from `begin` to `at` pass as they came.
        begin, at, searched = 0, 0, False
        while at < len(run) and not self.ended:
            if not searched and self._may_pass(run, at):
                searched = True
                end = self._unmarked_end(run, at)
                if end > at:
                    self._count(run[at:end])
                    at = end
                    continue
            frame, raw, end = self._next_frame(run, at)
            if frame != raw or len(raw) != end - at:
                out.append(run[begin:at])
                out.append(frame)
                begin = end
            at = end
        if not begin and at == len(run):
            return run
        out.append(run[begin:at])
        return b"".join(out)

    def _may_pass(self, run: bytes, at: int) -> bool:
        """Whether frames from there on may pass undecoded: there is content, and no choice has to finish."""
        if self._lacks_prefix or self._complete:
            return False
        return self.started or self._starts(run, at)

    def _starts(self, run: bytes, at: int) -> bool:
        """Whether a known frame with the first text begins there; note its shape."""
        head, tail = self._known.text_at(run, at)
        if head:
            self.started = True
            self._template.take_shape(head, tail)
        return bool(head)

    def _unmarked_end(self, run: bytes, at: int) -> int:
        """Return the end of the frames from there on that need not be decoded."""
        at = self._template.span(run, at)
        if at == len(run):
            return at
        end = self._known_end(run, at)
        if end > at:
            return end
        mark = scan.find_first(run, _MARKS, at)
        if mark < 0:
            return len(run)
        before = run.rfind(b"\n\n", at, mark)
        return at if before < 0 else before + 2

    def _next_frame(self, run: bytes, at: int) -> tuple[bytes, bytes, int]:
        """Return the client's frame for the frame that begins there, its own bytes, and its end."""
        end = self._known_end(run, at)
        if end > at:
            raw = run[at:end]
            self._count(raw)
            return raw, raw, end
        if self.started and run[at : at + len(DONE)] == DONE:
            return self._done(), DONE, at + len(DONE)
        if self._finish_reasons and not self._lacks_prefix:
            usage, end = self._known.usage_at(run, at)
            if usage is not None:
                raw = run[at:end]
                return self._usage_frame(usage, raw), raw, end
        data, raw, end = sse.frame_at(run, at)
        return self._frame(data, raw) if data else b"", raw, end

    def _known_end(self, run: bytes, at: int) -> int:
        """Return the end of a known first or last frame that begins there, else `at`; note its fields."""
        if self._prefix is None:
            prefix, end = self._known.opening_at(run, at)
            if prefix is not None:
                self._note_prefix(prefix, end - at)
                return end
        elif not (self._lacks_prefix or self._finish_reasons or self._calls or self._function_calls):
            reason, end = self._known.finish_at(run, at)
            if reason:
                self._note_finish(0, reason)
                return end
        return at

    def _frame(self, data: bytes, raw: bytes) -> bytes:
        if data[:6] == _DONE and data.rstrip() == _DONE:
            return self._done() if self.started else self._break(stream_truncated())
        chunk = read_typed(data)
        loose = chunk is None
        if chunk is None:
            chunk = read_loosely(data)
        if chunk is None:
            return self._break(unparsable())
        if chunk.error is not ABSENT and has_error(chunk):
            return self._upstream_error(raw, chunk)
        self._count(raw)
        started, finishes = self.started, len(self._finish_reasons)
        try:
            return self._chunk(chunk, data, raw=raw, loose=loose)
        except ValueError:
            # The chunk must be rewritten and is not UTF-8; the client has not received any of it.
            self.started = started
            if len(self._finish_reasons) != finishes:
                self._finish_reasons.clear()
            return self._break(unparsable())

    def _upstream_error(self, raw: bytes, chunk: StreamChunk) -> bytes:
        if self._is_finished():
            return self._finish()
        value = decode_raw(chunk.error)
        error = errors.typed_error(200, value, provider=self._reply.provider)
        if not self.started:
            raise error
        # The text of a rejected key may quote the key.
        if (
            isinstance(error, UpstreamRefusedKey)
            or not errors.is_chat_error(value)
            or scan.find_invalid_utf8(raw) >= 0
        ):
            return self.fail(error)
        self.ended = True
        self.outcome.error = error
        return raw

    def _chunk(self, chunk: StreamChunk, data: bytes, *, raw: bytes, loose: bool) -> bytes:
        choices = chunk.choices or []
        if self._prefix is None and choices:
            prefix = ChunkPrefix(chunk.id, chunk.created, chunk.model, chunk.service_tier)
            complete = prefix.id and prefix.model and prefix.created is not None and chunk.object == OBJECT
            self._lacks_prefix = not complete
            self._note_prefix(prefix, len(raw))
        usage = chunk.usage if chunk.x_groq is None else chunk.counts
        if self._finish_reasons and self._repeats_finish(choices):
            return b"" if usage is None else self._late_usage(usage, data, raw=raw)
        self._positions.clear()
        self._whole_choices.clear()
        repair = self._lacks_prefix or chunk.object != OBJECT
        for choice in choices:
            repair |= self._choice(choice, loose=loose)
        if self._failure:
            return self._break(stream_broken(self._failure))
        if usage is not None:
            return self._usage(chunk, usage, data=data, raw=raw, repair=repair)
        if repair:
            return self._repaired(json.decode(data))
        if is_plain_text(chunk):
            self._template.learn(raw, CONTENT_KEY)
        return raw

    def _repeats_finish(self, choices: list[WireChoice]) -> bool:
        """Whether a chunk only repeats that its choices have finished, or has text that came too late."""
        for choice in choices:
            if choice.index not in self._finish_reasons:
                return False
            delta = choice.delta
            if delta is None or is_empty(delta):
                continue
            if choice.finish_reason or not adds_text(delta):
                self._repeats_reason = self._repeats_reason or adds_text(delta)
                return False
        return bool(choices)

    def _note_prefix(self, prefix: ChunkPrefix, size: int) -> None:
        """Note the fields of the first chunk with a choice, and the size of its frame."""
        self._prefix = prefix
        self._tier = prefix.tier
        self._envelope = size
        self.outcome.model = prefix.model or ""
        self.outcome.response_id = prefix.id or ""

    def _shared_fields(self) -> dict[str, Any]:
        """Return the fields that every chunk of this answer has."""
        prefix = self._prefix
        if prefix is None:
            return {}
        return {
            "id": prefix.id or f"chatcmpl-{self._reply.id}",
            "object": OBJECT,
            "created": prefix.created or self._reply.created,
            "model": prefix.model or self._reply.model,
        }

    def _choice(self, choice: WireChoice, *, loose: bool) -> bool:
        """Note the delta and finish of a choice; return whether its calls or its finish need a repair."""
        delta, reason = choice.delta, choice.finish_reason
        whole = choice.message
        if whole is not None and not self.started and (delta is None or is_empty(delta)):
            delta = whole
            self._whole_choices.append(choice.index)
        repair = delta is not None and self._note_delta(choice.index, delta, loose=loose)
        repair |= bool(self._whole_choices)
        if reason is not None:
            repair |= self._note_finish(choice.index, reason)
        return repair

    def _note_delta(self, choice: int, delta: WireDelta, *, loose: bool) -> bool:
        """Note content and calls; return whether a call or an annotation needs a repair."""
        if not self.started:
            self.started = not is_empty(delta)
        if delta.function_call is not None and delta.legacy_call is not None:
            self._function_calls.append(choice)
        repair = bool(delta.annotations) and self._note_annotations(choice, delta.annotations or [])
        calls = delta.tool_calls
        if not calls:
            return repair
        repair |= loose
        for call in calls:
            position = self._calls.setdefault(choice, ToolCallIndex()).locate(call)
            self._positions.append(position)
            self._note_arguments(call, begins=position.begins)
            repair |= not is_valid_call(call, position)
        return repair

    def _note_annotations(self, choice: int, annotations: list[Any]) -> bool:
        """Count annotations; return whether they need an `index`.

        OpenRouter sends each in a delta of its own, without one; OpenAI's Python SDK fails at the second.
        """
        before = self._annotations.get(choice, 0)
        self._annotations[choice] = before + len(annotations)
        return before > 0

    def _note_arguments(self, call: WireToolCallDelta, *, begins: bool) -> None:
        """Keep the arguments of the last call: without a finish reason they show whether it is complete."""
        if begins:
            self._last_arguments.clear()
        if call.text and not call.is_custom:
            self._last_arguments.append(call.text)

    def _note_finish(self, choice: int, reason: str) -> bool:
        """Note the finish; return whether the client must get another reason than the upstream's."""
        if not reason:
            return True
        outcome = self.outcome
        finish, sent = settle_finish(
            reason, calls=bool(self._calls.get(choice)), legacy=choice in self._function_calls
        )
        if finish.reason == "error":
            self._failure = reason
            return False
        outcome.empty = self._choices == 1 and not self.started
        self.started = True
        outcome.finish, outcome.sent_finish = finish, sent
        self._finish_reasons[choice] = sent
        return sent != reason

    def _repaired(self, value: dict[str, Any]) -> bytes:
        value["object"] = OBJECT
        if not (value.get("id") and value.get("created") and value.get("model")):
            for field, known in self._shared_fields().items():
                value[field] = value.get(field) or known
        positions = iter(self._positions)
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._repair_choice(choice, positions)
        return sse.frame(json.encode(value))

    def _repair_choice(self, choice: dict[str, Any], positions: Iterator[CallPosition]) -> None:
        index = index_of(choice)
        if index in self._whole_choices:
            choice["delta"] = choice.pop("message", None)
        if not isinstance(choice.get("delta"), dict):
            choice["delta"] = {}
        delta = choice["delta"]
        listed = delta.get("annotations")
        annotations = listed if isinstance(listed, list) else []
        first = self._annotations.get(index, 0) - len(annotations)
        for at, annotation in enumerate(annotations):
            if first and isinstance(annotation, dict):
                annotation.setdefault("index", first + at)
        calls = delta.get("tool_calls")
        repaired = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        for call, position in zip(repaired, positions, strict=False):
            repair_call(call, position, new_id=f"call_{self._reply.id}_{position.number}")
        if "finish_reason" in choice:
            reason = self._finish_reasons.get(index)
            choice["finish_reason"] = reason if choice["finish_reason"] else None

    def _usage(self, chunk: StreamChunk, usage: WireUsage, *, data: bytes, raw: bytes, repair: bool) -> bytes:
        """Return a chunk with usage.

        OpenAI API reference, `stream_options.include_usage`: the last chunk has the usage and no choices, all
        others have null. Unrequested usage beside choices (Mistral, Together, Databricks) stays there.
        """
        self._note_usage(usage, data)
        if not chunk.choices:
            frame = self._usage_frame(usage, raw)
            return self._repaired(json.decode(data)) if frame and repair else frame
        if not self._include_usage:
            return self._repaired(json.decode(data)) if repair else raw
        value = json.decode(data)
        value["usage"] = None
        return self._repaired(value)

    def _late_usage(self, usage: WireUsage, data: bytes, *, raw: bytes) -> bytes:
        """Return a chunk with usage after the finish of its choices, without a second finish."""
        self._note_usage(usage, data)
        if self._include_usage:
            return b""
        value = json.decode(data)
        choices = [choice for choice in value["choices"] if isinstance(choice, dict)]
        broken = self._lacks_prefix or value.get("object") != OBJECT
        if not broken and not any(choice.get("finish_reason") or choice.get("delta") for choice in choices):
            return raw
        for choice in choices:
            choice["finish_reason"], choice["delta"] = None, {}
        return self._repaired(value)

    def _note_usage(self, usage: WireUsage, data: bytes) -> None:
        """Note the usage of a chunk that cannot be sent as it came."""
        self.outcome.usage = usage_of(usage, self._tier) or self.outcome.usage
        self._usage_data = data

    def _usage_frame(self, usage: WireUsage, raw: bytes) -> bytes:
        """Note the usage of a chunk without choices; return its frame if it may be sent now."""
        self.outcome.usage = usage_of(usage, self._tier) or self.outcome.usage
        if self._usage_sent or not (self._include_usage and self._finish_reasons):
            return b""
        self._usage_sent = True
        return raw

    def _done(self) -> bytes:
        """Return the end of a complete stream: usage if requested, then `[DONE]`."""
        arguments = "" if self._finish_reasons else "".join(self._last_arguments)
        if arguments and not json.is_whole(arguments):
            return self._break(stream_truncated())
        self.ended = True
        out = b""
        if not self._finish_reasons:
            # Some upstreams send [DONE] without any finish_reason: the answer is complete.
            self._note_finish(0, "stop")
            end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self.outcome.sent_finish}
            out = sse.frame(json.encode({**self._shared_fields(), "choices": [end]}))
        if self._include_usage and not self._usage_sent:
            usage = self._final_usage()
            out += sse.frame(json.encode({**self._shared_fields(), "choices": [], "usage": usage}))
        return out + DONE

    def _final_usage(self) -> Any:
        """Return the usage as the upstream wrote it if complete, else from its counts or an estimate."""
        usage = self.outcome.usage
        if usage is None:
            usage = Usage(self._reply.input_tokens, self._output_tokens(), estimated=True)
            self.outcome.usage = usage
        raw = complete_usage(self._usage_data) if self._usage_data else ABSENT
        return usage_object(usage) if raw is ABSENT else raw
