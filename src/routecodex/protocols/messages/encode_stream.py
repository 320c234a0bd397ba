"""Encodes events as a messages stream; also the head, blocks and end of whole answers.

Anthropic docs, "Streaming messages": one block is open at a time, so events of other parts wait.
`message_start` waits for the first content, because usage may arrive before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from routecodex.canon import finish
from routecodex.canon.events import (
    AnnotationDelta,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols import codec
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.messages import thinking
from routecodex.protocols.messages.content import MADE_CITATION, NAME, CallIds
from routecodex.protocols.messages.decode_stream import usage_object
from routecodex.protocols.messages.errors import error_frame
from routecodex.protocols.text_batches import escape_texts
from routecodex.protocols.tool_mapping import ToolNames, flat_call, wrap_input
from routecodex.protocols.translation import cited_page, estimated_usage
from routecodex.wire import json, sse

Fields = dict[str, Any]

_CITATIONS = frozenset(
    {
        "char_location",
        "page_location",
        "content_block_location",
        "web_search_result_location",
        "search_result_location",
    }
)

_PartEvent: TypeAlias = (
    PartStarted
    | TextDelta
    | ReasoningDelta
    | SignatureDelta
    | ArgumentsDelta
    | AnnotationDelta
    | PartFinished
)

MESSAGE_STOP = sse.frame(b'{"type":"message_stop"}', b"message_stop")
_BLOCK_STOP = sse.frame(b'{"type":"content_block_stop","index":%d}', b"content_block_stop")
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b'
_DELTA_END = b"}}\n\n"
_TEXT = b'{"type":"text_delta","text":'
_THINKING = b'{"type":"thinking_delta","thinking":'
_JSON = b'{"type":"input_json_delta","partial_json":'
_SIGNATURE = b'{"type":"signature_delta","signature":'
_CITATION = b'{"type":"citations_delta","citation":'


class BlockEncoder:
    """Encodes blocks of one answer with the ids, names and signatures for its client."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._ids = CallIds()
        self._new_ids = 0
        self._names = ToolNames(reply.request.tools if reply.request is not None else ())

    def call(self, call: ToolCall) -> Fields:
        """Return a `tool_use` block without its input."""
        id = call.id
        if not id:
            self._new_ids += 1
            id = f"toolu_{self._reply.id}_{self._new_ids}"
        name, _, _ = self._names.resolve(flat_call(call) if call.namespace else call.name)
        return {"type": "tool_use", "id": self._ids.fresh(id), "name": name, "input": {}}

    def carrier(self, call_id: str, signature: str | None) -> Fields | None:
        """Return the block that carries a call's signature back to its owner; None without one."""
        provider = self._reply.provider
        if not signature or not provider:
            return None
        data = thinking.carry_signature(provider, call_id, signature=signature)
        return {"type": "redacted_thinking", "data": data}

    def signature(self, signature: str | None) -> str:
        """Return the signature of reasoning, sealed with the name of its owner."""
        return thinking.sealed_signature(self._reply.provider, signature)

    def reasoning(self, part: Reasoning) -> Fields | None:
        """Return the thinking block; None if it would be empty."""
        if not part.text and not part.signature:
            return None
        signature = self.signature(part.signature)
        if part.redacted:
            return {"type": "redacted_thinking", "data": signature}
        return {"type": "thinking", "thinking": part.text, "signature": signature}


class _Part:
    """A part while it is encoded.

    `block` is its index in the stream, None until it has content. `head` are the bytes before each delta.
    `input` is that of a custom call, which is sent whole.
    """

    __slots__ = ("block", "call_id", "has_arguments", "head", "input", "part", "signature")

    def __init__(self, part: Text | ToolCall | Reasoning | Refusal | Opaque) -> None:
        self.part = part
        self.block: int | None = None
        self.head = b""
        self.call_id = ""
        self.signature: list[str] = []
        self.input: list[str] = []
        self.has_arguments = False


class StreamEncoder(codec.StreamEncoder):
    """Encodes events as a messages stream."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._encoder = BlockEncoder(reply)
        self._model = ""
        self._begun = False
        self._usage: Usage | None = None
        self.written = 0
        self._blocks = 0
        self._open: int | None = None
        self._parts: dict[int, _Part] = {}
        self._waiting: OrderedDict[int, list[_PartEvent]] = OrderedDict()

    def encode(self, event: Event) -> bytes:
        return _ANSWER_HANDLERS.get(type(event), StreamEncoder._encode_or_queue)(self, event)

    def _start_answer(self, event: Started) -> bytes:
        self._model = event.model
        return b""

    def _count(self, event: UsageReported) -> bytes:
        self._usage = event.usage
        return b""

    def _fail(self, event: Failed) -> bytes:
        return error_frame(event.error)

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Encode many deltas of one text at once."""
        part = self._parts.get(index)
        if self._open != index or part is None or part.block is None or isinstance(part.part, Reasoning):
            return b"".join([self.encode(TextDelta(index, text)) for text in texts])
        self.written += sum(map(len, texts))
        pieces = escape_texts(list(filter(None, texts)))
        if not pieces:
            return b""
        between = b'"%b%b"' % (_DELTA_END, part.head)
        return b'%b"%b"%b' % (part.head, between.join(pieces), _DELTA_END)

    def _begin(self) -> bytes:
        """Return `message_start`, once."""
        if self._begun:
            return b""
        self._begun = True
        usage = self._usage or Usage(input=self._reply.input_tokens)
        # Anthropic's message_start has at least one output token.
        usage = Usage(usage.input, max(usage.output, 1), usage.cache_read, usage.cache_write)
        message = message_head(self._reply, model=self._model, usage=usage)
        return sse.frame(json.encode({"type": "message_start", "message": message}), b"message_start")

    def _encode_or_queue(self, event: _PartEvent) -> bytes:
        """Encode the event, or queue it while a block of another part is open."""
        if self._open is not None and event.index != self._open:
            self._waiting.setdefault(event.index, []).append(event)
            return b""
        out = self._write(event)
        if self._open is None and self._waiting:
            out += self._advance()
        return out if self._begun or not out else self._begin() + out

    def _advance(self) -> bytes:
        """Encode queued events until a block is open again."""
        out: list[bytes] = []
        while self._open is None and self._waiting:
            _, events = self._waiting.popitem(last=False)
            out.extend(map(self._write, events))
        return b"".join(out)

    def _write(self, event: _PartEvent) -> bytes:
        if isinstance(event, PartStarted):
            return self._start(event)
        return _PART_HANDLERS[type(event)](self, self._parts[event.index], event)

    def _add_text(self, part: _Part, event: TextDelta) -> bytes:
        return self._text(part, event.index, event.text, template=_TEXT)

    def _add_reasoning(self, part: _Part, event: ReasoningDelta) -> bytes:
        return self._text(part, event.index, event.text, template=_THINKING)

    def _add_arguments(self, part: _Part, event: ArgumentsDelta) -> bytes:
        return self._arguments(part, event.text)

    def _add_signature(self, part: _Part, event: SignatureDelta) -> bytes:
        part.signature.append(event.signature)
        return b""

    def _start(self, event: PartStarted) -> bytes:
        part = self._parts[event.index] = _Part(event.part)
        match event.part:
            case ToolCall():
                return self._start_call(part, event.index, event.part)
            case Text() | Refusal():
                return self._text(part, event.index, event.part.text, template=_TEXT)
            case Reasoning():
                if event.part.signature is not None:
                    part.signature.append(event.part.signature)
                return self._text(part, event.index, event.part.text, template=_THINKING)
            case Opaque():
                return self._opaque(event.part)

    def _open_block(self, part: _Part, index: int, block: Fields, *, template: bytes) -> bytes:
        part.block = self._blocks
        part.head = _DELTA % (self._blocks, template)
        self._blocks += 1
        self._open = index
        return start_frame(part.block, block)

    def _whole(self, block: Fields) -> bytes:
        """Return the events of a block without deltas."""
        self._blocks += 1
        return start_frame(self._blocks - 1, block) + stop_frame(self._blocks - 1)

    def _text(self, part: _Part, index: int, text: str, *, template: bytes) -> bytes:
        if not text:
            return b""
        self.written += len(text)
        delta = json.encode(text) + _DELTA_END
        if part.block is not None:
            return part.head + delta
        block: Fields = {"type": "text", "text": ""}
        if template is _THINKING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        return self._open_block(part, index, block, template=template) + part.head + delta

    def _annotation(self, part: _Part, event: AnnotationDelta) -> bytes:
        citation = citation_of(event.annotation)
        if citation is None:
            return b""
        out = b""
        if part.block is None:
            out = self._open_block(part, event.index, {"type": "text", "text": ""}, template=_TEXT)
        assert part.block is not None
        return out + _DELTA % (part.block, _CITATION) + json.encode(citation) + _DELTA_END

    def _start_call(self, part: _Part, index: int, call: ToolCall) -> bytes:
        block = self._encoder.call(call)
        part.call_id = block["id"]
        carrier = self._encoder.carrier(part.call_id, call.signature)
        out = self._whole(carrier) if carrier is not None else b""
        out += self._open_block(part, index, block, template=_JSON)
        return out + self._arguments(part, call.arguments)

    def _arguments(self, part: _Part, text: str) -> bytes:
        if not text:
            return b""
        self.written += len(text)
        if isinstance(part.part, ToolCall) and part.part.custom:
            part.input.append(text)
            return b""
        part.has_arguments = True
        return part.head + json.encode(text) + _DELTA_END

    def _opaque(self, part: Opaque) -> bytes:
        if part.protocol != NAME:
            return b""
        block = part.value
        if "input" not in block:
            return self._whole(block)
        index = self._blocks
        self._blocks += 1
        input = json.encode(json.encode(block["input"]).decode())
        start = start_frame(index, {**block, "input": {}})
        return start + _DELTA % (index, _JSON) + input + _DELTA_END + stop_frame(index)

    def _end(self, part: _Part, _event: PartFinished) -> bytes:
        return self._stop(part)

    def _stop(self, part: _Part) -> bytes:
        signature = "".join(part.signature) or None
        if isinstance(part.part, Reasoning):
            return self._stop_reasoning(part, part.part, signature)
        if isinstance(part.part, ToolCall):
            return self._stop_call(part, part.part, signature)
        return self._close(part)

    def _stop_reasoning(self, part: _Part, reasoning: Reasoning, signature: str | None) -> bytes:
        if part.block is None:
            block = self._encoder.reasoning(Reasoning("", signature, redacted=reasoning.redacted))
            if block is None or reasoning.redacted:
                return self._whole(block) if block is not None else b""
            part.block, self._blocks = self._blocks, self._blocks + 1
            return start_frame(part.block, {**block, "signature": ""}) + self._sign(part, signature)
        return self._sign(part, signature)

    def _sign(self, part: _Part, signature: str | None) -> bytes:
        """Return the signature as one delta, because clients keep only the last, and the end of the block."""
        assert part.block is not None
        sealed = self._encoder.signature(signature)
        delta = _DELTA % (part.block, _SIGNATURE) + json.encode(sealed) + _DELTA_END if sealed else b""
        return delta + self._close(part)

    def _stop_call(self, part: _Part, call: ToolCall, signature: str | None) -> bytes:
        out = b""
        if call.custom:
            out = part.head + json.encode(wrap_input("".join(part.input))) + _DELTA_END
        elif not part.has_arguments:
            out = part.head + b'""' + _DELTA_END
        out += self._close(part)
        carrier = self._encoder.carrier(part.call_id, signature)
        return out + self._whole(carrier) if carrier is not None else out

    def _close(self, part: _Part) -> bytes:
        self._open = None
        return stop_frame(part.block) if part.block is not None else b""

    def _finish(self, event: Finished) -> bytes:
        out: list[bytes] = [self._begin()]
        while self._open is not None or self._waiting:
            if self._open is not None:
                out.append(self._stop(self._parts[self._open]))
            out.append(self._advance())
        usage = self._usage or estimated_usage(self._reply.input_tokens, self.written)
        delta = stop_fields(self._reply, event.finish, extras=event.extras)
        out.append(end_frame(delta, usage))
        if sends_message_stop(self._reply, event.finish):
            out.append(MESSAGE_STOP)
        return b"".join(out)


_ANSWER_HANDLERS: dict[type[Event], Callable[[StreamEncoder, Any], bytes]] = {
    Started: StreamEncoder._start_answer,
    UsageReported: StreamEncoder._count,
    Finished: StreamEncoder._finish,
    Failed: StreamEncoder._fail,
}
"""Handlers of events that do not belong to a part."""

_PART_HANDLERS: dict[type[_PartEvent], Callable[[StreamEncoder, _Part, Any], bytes]] = {
    TextDelta: StreamEncoder._add_text,
    ReasoningDelta: StreamEncoder._add_reasoning,
    ArgumentsDelta: StreamEncoder._add_arguments,
    AnnotationDelta: StreamEncoder._annotation,
    SignatureDelta: StreamEncoder._add_signature,
    PartFinished: StreamEncoder._end,
}


def start_frame(index: int, block: Fields) -> bytes:
    """Return the event that opens a block."""
    data = {"type": "content_block_start", "index": index, "content_block": block}
    return sse.frame(json.encode(data), b"content_block_start")


def stop_frame(index: int) -> bytes:
    """Return the event that closes a block."""
    return _BLOCK_STOP % index


def end_frame(delta: Fields, usage: Usage) -> bytes:
    """Return the `message_delta` with the stop reason and the usage."""
    data = {"type": "message_delta", "delta": delta, "usage": usage_object(usage)}
    return sse.frame(json.encode(data), b"message_delta")


def message_head(reply: ReplyContext, *, model: str, usage: Usage) -> Fields:
    """Return a message without content."""
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": model or reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_object(usage),
    }


def stop_fields(reply: ReplyContext, finished: Finish, *, extras: dict[str, Json] | None = None) -> Fields:
    """Return `stop_reason` and `stop_sequence`, and the details of a refusal."""
    reason = finish.encode(NAME, finished, knows_refusal=reply.knows_refusal)
    out: Fields = {
        "stop_reason": reason,
        "stop_sequence": finished.sequence if reason == "stop_sequence" else None,
    }
    details = (extras or {}).get("stop_details")
    if isinstance(details, dict) and reason == "refusal":
        out["stop_details"] = details
    return out


def relayed_stop_reason(reply: ReplyContext, finished: Finish) -> str:
    """Return the stop reason of a relayed answer: the provider's, unless wrong or unknown to the client."""
    reason = finished.upstream_reason
    if reason is None or reason == "tool_use" or finished.reason == "tool_calls":
        return finish.encode(NAME, finished)
    if finished.reason in ("refusal", "content_filter"):
        return finish.encode(NAME, finished, knows_refusal=reply.knows_refusal)
    return reason


def sends_message_stop(reply: ReplyContext, finished: Finish) -> bool:
    """Whether `message_stop` ends a stream with this finish."""
    return reply.message_stop_after_calls or finished.reason != "tool_calls"


def citation_of(annotation: Json, text: str = "") -> Fields | None:
    """Return an annotation of `text` as a citation of messages; None if it is not one and names no page.

    A page is cited as a result of a web search. Its `encrypted_index` marks it, because Anthropic rejects one
    that it has not made: the citation does not return to a provider.
    """
    kind = annotation.get("type") if isinstance(annotation, dict) else None
    if isinstance(kind, str) and kind in _CITATIONS:
        return dict(annotation)
    page = cited_page(annotation)
    if page is None:
        return None
    nested = annotation.get("url_citation")
    fields = nested if isinstance(nested, dict) else annotation
    first, last = fields.get("start_index"), fields.get("end_index")
    cited = text[first:last] if isinstance(first, int) and isinstance(last, int) else text
    return {
        "type": "web_search_result_location",
        "url": page[0],
        "title": page[1] or None,
        "cited_text": cited,
        "encrypted_index": MADE_CITATION,
    }


def takes_citation(annotation: Json) -> bool:
    """Return whether a messages answer can have this citation."""
    return citation_of(annotation) is not None
