"""Events as chat chunks."""

from __future__ import annotations

from typing import Any

from routecodex.canon import finish
from routecodex.canon.events import (
    AnnotationAdded,
    ArgumentsAdded,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningAdded,
    Started,
    TextAdded,
    UsageReported,
)
from routecodex.canon.parts import Json, Refusal, ToolCall
from routecodex.canon.usage import Usage
from routecodex.protocols.chat import errors
from routecodex.protocols.codec import ReplyTo
from routecodex.protocols.tools import CallNames, InputUnwrapper
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json

DONE = b"data: [DONE]\n\n"


def answer_id(reply: ReplyTo) -> str:
    """The id every chunk of one answer carries."""
    return f"chatcmpl-{reply.id}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as chat counts it."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class _Call:
    __slots__ = ("custom", "number", "unwrapper")

    def __init__(self, number: int, *, custom: bool, unwrapper: InputUnwrapper | None) -> None:
        self.number = number
        self.custom = custom
        self.unwrapper = unwrapper


class StreamEncoder:
    """Events in, bytes of a chat stream out; the constant part of a chunk is written once."""

    def __init__(self, reply: ReplyTo) -> None:
        self._reply = reply
        self._model = reply.model
        self._calls: dict[int, _Call] = {}
        self._refusals: set[int] = set()
        self._names = CallNames(reply.request.tools if reply.request is not None else ())
        self._usage: Usage | None = None
        self._written = 0
        self._envelope = b""
        self._head = b""
        self._tail = b',"logprobs":null,"finish_reason":null}]'
        self._tail += b',"usage":null}\n\n' if reply.include_usage else b"}\n\n"

    def encode(self, event: Event) -> bytes:
        match event:
            case TextAdded():
                self._written += len(event.text)
                if event.logprobs:
                    return self._with_logprobs(event.text, event.logprobs)
                field = b'{"refusal":' if event.index in self._refusals else b'{"content":'
                return self._delta(field + json.encode(event.text) + b"}")
            case ReasoningAdded():
                self._written += len(event.text)
                return self._delta(b'{"reasoning_content":' + json.encode(event.text) + b"}")
            case ArgumentsAdded():
                return self._arguments(event)
            case PartStarted():
                return self._part(event)
            case PartFinished():
                return self._close_call(event.index)
            case AnnotationAdded():
                return self._delta(b'{"annotations":[' + json.encode(event.annotation) + b"]}")
            case UsageReported():
                self._usage = event.usage
            case Started():
                return self._start(event)
            case Finished():
                return self._finish(event)
            case Failed():
                return b"data: " + json.encode({"error": errors.error_object(event.error)}) + b"\n\n"
            case _:
                pass
        return b""

    def _start(self, event: Started) -> bytes:
        self._model = event.model or self._reply.model
        head = {
            "id": answer_id(self._reply),
            "object": "chat.completion.chunk",
            "created": self._reply.created,
            "model": self._model,
        }
        self._envelope = json.encode(head)[:-1]
        self._head = b"data: " + self._envelope + b',"choices":[{"index":0,"delta":'
        return self._delta(b'{"role":"assistant","content":""}')

    def _delta(self, delta: bytes) -> bytes:
        return self._head + delta + self._tail

    def _with_logprobs(self, text: str, logprobs: tuple[Json, ...]) -> bytes:
        choice = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": {"content": list(logprobs), "refusal": None},
            "finish_reason": None,
        }
        return b"data: " + self._envelope + b',"choices":[' + json.encode(choice) + b"]" + self._close_chunk()

    def _close_chunk(self) -> bytes:
        return b',"usage":null}\n\n' if self._reply.include_usage else b"}\n\n"

    def _part(self, event: PartStarted) -> bytes:
        part = event.part
        if isinstance(part, Refusal):
            self._refusals.add(event.index)
        if not isinstance(part, ToolCall):
            return b""
        name, _, custom = self._names.resolve(part.name)
        unwrapper = InputUnwrapper() if custom and not part.custom else None
        call = _Call(len(self._calls), custom=custom or part.custom, unwrapper=unwrapper)
        self._calls[event.index] = call
        body = {"name": name, "input": ""} if call.custom else {"name": name, "arguments": ""}
        kind = "custom" if call.custom else "function"
        entry = {"index": call.number, "id": part.id, "type": kind, kind: body}
        return self._delta(json.encode({"tool_calls": [entry]}))

    def _arguments(self, event: ArgumentsAdded) -> bytes:
        call = self._calls[event.index]
        return self._argue(call, event.text if call.unwrapper is None else call.unwrapper.feed(event.text))

    def _close_call(self, index: int) -> bytes:
        call = self._calls.get(index)
        return b"" if call is None or call.unwrapper is None else self._argue(call, call.unwrapper.close())

    def _argue(self, call: _Call, text: str) -> bytes:
        if not text:
            return b""
        self._written += len(text)
        kind, field = ("custom", "input") if call.custom else ("function", "arguments")
        return self._delta(
            b'{"tool_calls":[{"index":%d,"%s":{"%s":%s}}]}'
            % (call.number, kind.encode(), field.encode(), json.encode(text))
        )

    def _finish(self, event: Finished) -> bytes:
        word = finish.express("chat", event.finish)
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": word}
        out = b"data: " + self._envelope + b',"choices":[' + json.encode(choice) + b"]" + self._close_chunk()
        if self._reply.include_usage:
            usage = self._usage or estimated_usage(self._reply.input_tokens, self._written)
            counted = json.encode(usage_object(usage))
            out += b"data: " + self._envelope + b',"choices":[],"usage":' + counted + b"}\n\n"
        return out + DONE
