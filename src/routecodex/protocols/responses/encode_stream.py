"""Encodes events as a Responses stream: the full event set of the OpenAI API reference, in order.

Items are written one at a time: events of a later part wait until the part before it is finished.
Consecutive texts are content parts of one message item. A part without content is not written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.errors import GatewayError, UpstreamFailed
from routecodex.canon.events import (
    AnnotationDelta,
    AnswerPart,
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
from routecodex.canon.finish import Finish, encode
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.protocols import codec
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.content import ITEM, seal_call_signature, seal_reasoning
from routecodex.protocols.responses.encode_calls import CallItemEncoder, SearchItemEncoder
from routecodex.protocols.responses.encode_items import (
    FrameSink,
    ItemPosition,
    MessageItemEncoder,
    ReasoningItemEncoder,
    ResponseObject,
)
from routecodex.protocols.responses.schema import NAME, TOOL_SEARCH, objects
from routecodex.protocols.tool_mapping import ToolNames
from routecodex.protocols.translation import cited_page, estimated_usage, used_tier

_ANNOTATION_TYPES = frozenset({"file_citation", "url_citation", "container_file_citation", "file_path"})
_PartEvent = (
    PartStarted
    | TextDelta
    | ReasoningDelta
    | SignatureDelta
    | ArgumentsDelta
    | AnnotationDelta
    | PartFinished
)


class StreamEncoder(codec.StreamEncoder):
    """Encodes one answer; `final_body` is the response object as JSON. See codec.StreamEncoder."""

    def __init__(self, reply: ReplyContext) -> None:
        self.final_body: bytes | None = None
        self._reply = reply
        self._object = ResponseObject(reply)
        self._sink = FrameSink()
        self._names = ToolNames(reply.request.tools if reply.request is not None else ())
        self._created = False
        self._usage: Usage | None = None
        self._output: list[bytes] = []
        self._message: MessageItemEncoder | None = None
        self._part: AnswerPart | None = None
        self._item: MessageItemEncoder | ReasoningItemEncoder | CallItemEncoder | SearchItemEncoder | None = (
            None
        )
        self._signature: list[str] = []
        self._tool_search: bool | None = None
        self._current: int | None = None
        self._waiting: OrderedDict[int, list[_PartEvent]] = OrderedDict()
        self.written = 0
        self._refused = False
        self._explanation = ""

    def encode(self, event: Event) -> bytes:
        if self.final_body is not None:
            return b""
        _EVENTS.get(type(event), StreamEncoder._encode_part)(self, event)
        return self._sink.take()

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Return the frames of several consecutive deltas of one text."""
        if (
            self.final_body is not None
            or self._current != index
            or not isinstance(self._item, MessageItemEncoder)
        ):
            return b"".join([self.encode(TextDelta(index, text)) for text in texts])
        self.written += sum(map(len, texts))
        self._item.add_all(list(filter(None, texts)))
        return self._sink.take()

    def _start(self, event: Started) -> None:
        self._note_extras(event.extras)
        self._create()

    def _set_usage(self, event: UsageReported) -> None:
        self._usage = event.usage

    def _note_extras(self, extras: dict[str, Json] | None) -> None:
        if extras:
            self._object.tier = used_tier(extras) or self._object.tier
            details = extras.get("stop_details")
            explanation = details.get("explanation") if isinstance(details, dict) else None
            self._explanation = explanation if isinstance(explanation, str) else ""

    def _end(self, event: Finished) -> None:
        self._note_extras(event.extras)
        self._create()
        self._finish(event.finish)

    def _fail_event(self, event: Failed) -> None:
        self._fail(event.error)

    def _encode_part(self, event: _PartEvent) -> None:
        self._create()
        self._dispatch(event)

    def _create(self) -> None:
        if self._created:
            return
        self._created = True
        response = b'"response":' + self._object.render("in_progress", output=[])
        self._sink.write("response.created", response)
        self._sink.write("response.in_progress", response)

    def _dispatch(self, event: _PartEvent) -> None:
        if self._current is None:
            self._current = event.index
        if event.index != self._current:
            self._waiting.setdefault(event.index, []).append(event)
            return
        self._apply(event)
        self._release()

    def _release(self) -> None:
        """Apply the events of parts that waited for the current part to end."""
        while self._current is None and self._waiting:
            self._current, events = self._waiting.popitem(last=False)
            for event in events:
                self._apply(event)

    def _apply(self, event: _PartEvent) -> None:
        match event:
            case PartStarted():
                self._begin(event.part)
            case TextDelta():
                self._add_text(event.text, event.logprobs)
            case ReasoningDelta():
                self._add_reasoning(event.text)
            case ArgumentsDelta():
                self._add_arguments(event.text)
            case SignatureDelta():
                self._signature.append(event.signature)
            case AnnotationDelta():
                self._annotate(event.annotation)
            case PartFinished():
                self._end_part()

    def _next_position(self, prefix: str, *, item_id: str | None = None) -> ItemPosition:
        """Return the position of the next item; a message that is still open ends before it."""
        self._close_message("completed")
        index = len(self._output)
        return ItemPosition(self._sink, item_id or f"{prefix}_{self._reply.id}_{index}", index)

    def _begin(self, part: AnswerPart) -> None:
        self._part, self._item, self._signature = part, None, []
        match part:
            case Text() | Refusal():
                self._add_text(part.text, ())
                for annotation in part.annotations if isinstance(part, Text) else ():
                    self._annotate(annotation)
            case Reasoning():
                self._signature = [part.signature] if part.signature else []
                self._add_reasoning(part.text)
            case ToolCall():
                self._signature = [part.signature] if part.signature else []
                self._item = self._call(part)
                self._add_arguments(part.arguments)
            case Opaque(protocol="responses", value=value):
                self._output.append(self._opaque(value))
            case Opaque():
                pass

    def _call(self, call: ToolCall) -> CallItemEncoder | SearchItemEncoder:
        name, namespace, custom = call.name, call.namespace, call.custom
        if not custom and namespace is None:
            name, namespace, custom = self._names.resolve(name)
        if name == TOOL_SEARCH and namespace is None and self._offers_tool_search():
            return self._search_call(call)
        position = self._next_position("ctc" if custom else "fc")
        head: dict[str, Json] = {
            "call_id": call.id or f"call_{self._reply.id}_{position.index}",
            "name": name,
        }
        if namespace is not None:
            head["namespace"] = namespace
        self._part = replace(call, id=head["call_id"])
        return CallItemEncoder(position, head, custom=custom, wrapped=custom and not call.custom)

    def _offers_tool_search(self) -> bool:
        """Whether the client searches for tools itself (Codex)."""
        if self._tool_search is None:
            tools = self._reply.request.tools if self._reply.request is not None else ()
            self._tool_search = any(
                tool.name == TOOL_SEARCH and ITEM in (tool.extras or {}) for tool in tools
            )
        return self._tool_search

    def _search_call(self, call: ToolCall) -> SearchItemEncoder:
        position = self._next_position("tsc")
        call_id = call.id or f"call_{self._reply.id}_{position.index}"
        self._part = replace(call, id=call_id)
        return SearchItemEncoder(position, call_id)

    def _opaque(self, value: Json) -> bytes:
        item_id = value.get("id")
        position = self._next_position("item", item_id=item_id if isinstance(item_id, str) else None)
        item = {"id": position.id, **value}
        position.added(item)
        return position.done(item)

    def _text_item(self) -> MessageItemEncoder:
        """Return the open message item, with the current part started in it."""
        if isinstance(self._item, MessageItemEncoder):
            return self._item
        head = self._part.extras.get(ITEM) if isinstance(self._part, Text) and self._part.extras else None
        if self._message is None or head or (isinstance(self._part, Text) and self._part.apart):
            self._message = MessageItemEncoder(self._next_position("msg"), head or {})
        refusal = isinstance(self._part, Refusal)
        self._refused = self._refused or refusal
        self._message.start("refusal" if refusal else "output_text")
        self._item = self._message
        return self._message

    def _add_text(self, text: str, logprobs: tuple[Json, ...]) -> None:
        if text or logprobs:
            self.written += len(text)
            self._text_item().add(text, encode_logprobs(logprobs) if logprobs else ())

    def _annotate(self, annotation: Json) -> None:
        item = self._item
        at = item.length if isinstance(item, MessageItemEncoder) else 0
        encoded = encode_annotation(annotation, at)
        if encoded is not None:
            self._text_item().annotate(encoded)

    def _reasoning_item(self) -> ReasoningItemEncoder:
        if not isinstance(self._item, ReasoningItemEncoder):
            item_id = self._part.id if isinstance(self._part, Reasoning) else None
            # OpenAI checks that encrypted reasoning returns under the id it was issued with.
            item_id = item_id if item_id and item_id.startswith("rs_") else None
            self._item = ReasoningItemEncoder(self._next_position("rs", item_id=item_id))
        return self._item

    def _add_reasoning(self, text: str) -> None:
        if text:
            self.written += len(text)
            self._reasoning_item().add(text)

    def _add_arguments(self, text: str) -> None:
        if isinstance(self._item, CallItemEncoder | SearchItemEncoder):
            self.written += len(text)
            self._item.add(text)

    def _end_part(self) -> None:
        part, item, signature = self._part, self._item, "".join(self._signature)
        if isinstance(item, MessageItemEncoder):
            item.end()
        elif isinstance(part, Reasoning) and (item is not None or signature):
            sealed = seal_reasoning(self._reply.provider, signature, redacted=part.redacted)
            self._output.append(self._reasoning_item().close(sealed))
        elif isinstance(item, CallItemEncoder | SearchItemEncoder) and isinstance(part, ToolCall):
            self._output.append(item.close())
            if signature and self._reply.provider:
                # Clients do not echo unknown fields of a call, but they echo reasoning items (see content).
                sealed = seal_call_signature(self._reply.provider, part.id, signature)
                self._output.append(ReasoningItemEncoder(self._next_position("rs")).close(sealed))
        self._part, self._item, self._current = None, None, None

    def _close_message(self, status: str) -> None:
        if self._message is not None:
            message, self._message = self._message, None
            self._output.append(message.close(status))

    def _finish(self, finish: Finish) -> None:
        while self._current is not None:
            self._dispatch(PartFinished(self._current))
        end = encode(NAME, finish)
        if finish.reason == "refusal" and not self._refused:
            end = self._refuse()
        if end == "failed":
            reason = finish.upstream_reason or "an error"
            self._fail(UpstreamFailed(f"the upstream ended its answer with {reason!r}"))
            return
        status = "completed" if end == "completed" else "incomplete"
        self._close_message(status)
        self.final_body = self._object.render(
            status,
            output=self._output,
            usage=self._usage or estimated_usage(self._reply.input_tokens, self.written),
            reason=None if status == "completed" else end,
        )
        self._sink.write(f"response.{status}", b'"response":' + self.final_body)

    def _refuse(self) -> str:
        """Write the explanation of a refusal that has no part, and return how the answer ends.

        Anthropic refuses by its stop reason, and explains it in `stop_details` (Anthropic docs, handling stop
        reasons). Without an explanation the answer is incomplete: it must not look complete.
        """
        if not self._explanation:
            return "content_filter"
        self._dispatch(PartStarted(-1, Refusal(self._explanation)))
        self._dispatch(PartFinished(-1))
        return "completed"

    def _fail(self, error: GatewayError) -> None:
        """End with `response.failed`; an unfinished call is left out, so that no client runs it."""
        usage = self._usage or estimated_usage(self._reply.input_tokens, self.written)
        self.final_body = self._object.render("failed", output=self._output, usage=usage, error=error)
        self._sink.write("response.failed", b'"response":' + self.final_body)


_EVENTS: dict[type[Event], Callable[[StreamEncoder, Any], None]] = {
    Started: StreamEncoder._start,
    UsageReported: StreamEncoder._set_usage,
    Finished: StreamEncoder._end,
    Failed: StreamEncoder._fail_event,
}
"""Handlers of the events about the whole answer; all other events belong to a part."""


def encode_annotation(value: Json, at: int) -> Json | None:
    """Return an annotation in the shape of Responses, or None if it has none.

    A citation without a position (Anthropic's) is placed at character `at`; chat nests `url_citation`.
    """
    if not isinstance(value, dict):
        return None
    nested = value.get("url_citation")
    if isinstance(nested, dict):
        value = {"type": "url_citation", **nested}
    kind = str(value.get("type"))
    page = cited_page(value)
    if kind == "url_citation" or (kind not in _ANNOTATION_TYPES and page is not None):
        return {
            "type": "url_citation",
            "url": page[0] if page is not None else "",
            "title": page[1] if page is not None else "",
            "start_index": value.get("start_index", at),
            "end_index": value.get("end_index", at),
        }
    return value if kind in _ANNOTATION_TYPES else None


def takes_citation(annotation: Json) -> bool:
    """Return whether a Responses answer can have this citation."""
    return encode_annotation(annotation, 0) is not None


def encode_logprobs(entries: Iterable[Json]) -> list[Json]:
    """Return chat's entries with every field that Responses requires."""
    return [
        _logprob(entry) | {"top_logprobs": [_logprob(top) for top in objects(entry.get("top_logprobs"))]}
        for entry in entries
        if isinstance(entry, dict)
    ]


def _logprob(entry: dict[str, Json]) -> dict[str, Json]:
    token, data = entry.get("token"), entry.get("bytes")
    token = token if isinstance(token, str) else ""
    return {
        "token": token,
        "logprob": entry.get("logprob", 0.0),
        "bytes": data if isinstance(data, list) else list(token.encode("utf-8", "replace")),
    }
