"""Encodes output items and the response object, for streams and non-streaming answers alike.

An item encoder writes the events of its item to a FrameSink; `close` returns the finished item as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.canon.parts import Json
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.schema import RequestView, decode_usage
from routecodex.protocols.text_batches import escape_texts
from routecodex.protocols.translation import SERVICE_TIERS
from routecodex.wire import json

_ECHO_DEFAULTS: dict[str, Any] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "auto",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Request fields that OpenAI repeats in the response object, with the value for a field that was not sent."""

_TOOL_DEFAULTS: dict[str, Any] = {"description": None, "parameters": None, "strict": False}
"""Fields of a function tool that the Open Responses specification requires in the response object."""

_objects = Decoder(list[dict[str, Raw]])

_STATE = ("completed_at", "error", "incomplete_details", "usage")
_REQUIRED = frozenset((*_ECHO_DEFAULTS, *_STATE)) - {"user"}
_NOT_NULL = tuple(
    name
    for name in _ECHO_DEFAULTS
    if _ECHO_DEFAULTS[name] is not None and name not in ("metadata", "reasoning")
)
"""Fields of the response object that are null in no answer, by the Open Responses specification."""
_USAGE_DETAILS = frozenset({"input_tokens_details", "output_tokens_details", "total_tokens"})

_OPENAI_CODES = frozenset(
    {"insufficient_quota", "context_length_exceeded", "invalid_prompt", "rate_limit_exceeded"}
)


class ResponseObject:
    """Renders the response object of one answer, at its start and at its end.

    `tier` is the requested service tier until the provider reports the one it used.
    """

    __slots__ = ("_head", "_reply", "_tail", "id", "tier")

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self.id = f"resp_{reply.id}"
        head = {"id": self.id, "object": "response", "created_at": reply.created, "model": reply.model}
        self._head = json.encode(head)[:-1]
        echo = _echo(reply)
        self.tier: str = _requested_tier(echo.pop("service_tier"))
        self._tail = json.encode(echo)[1:]

    def render(
        self,
        status: str,
        *,
        output: list[bytes],
        usage: Usage | None = None,
        reason: str | None = None,
        error: GatewayError | None = None,
    ) -> bytes:
        """Return the object as JSON; `reason` is why it is incomplete, `error` why it failed."""
        state: dict[str, Any] = {
            "status": status,
            "error": None if error is None else error_object(error),
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if usage is None else usage_object(usage),
            "output": [Raw(item) for item in output],
            "completed_at": self._reply.now() if status == "completed" else None,
            "service_tier": _reported_tier(self.tier, status),
        }
        return b"%b,%b,%b" % (self._head, json.encode(state)[1:-1], self._tail)


def _echo(reply: ReplyContext) -> dict[str, Any]:
    if not isinstance(reply.view, RequestView):
        return dict(_ECHO_DEFAULTS)
    sent = json.read_fields(reply.view.body)
    echo = {
        name: sent[name] if name in sent and bytes(sent[name]) != b"null" else default
        for name, default in _ECHO_DEFAULTS.items()
    }
    for name in ("reasoning", "text"):
        if isinstance(echo[name], Raw):
            echo[name] = {**_ECHO_DEFAULTS[name], **_present(json.read_fields(bytes(echo[name])))}
    if isinstance(echo["tools"], Raw):
        echo["tools"] = _echo_tools(echo["tools"])
    if reply.view.unstorable:
        echo["store"] = False
    return echo


def _present(fields: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in fields.items() if bytes(value) != b"null"}


def _echo_tools(tools: Raw) -> Any:
    """Return the tools with every field of a function; unchanged if they have all fields."""
    values: list[dict[str, Any]] = _objects.decode(tools)
    functions = [value for value in values if bytes(value.get("type", b"")) == b'"function"']
    if all(_TOOL_DEFAULTS.keys() <= function.keys() for function in functions):
        return tools
    for function in functions:
        for name, default in _TOOL_DEFAULTS.items():
            function.setdefault(name, default)
    return values


def missing_fields(response: dict[str, Any], reply: ReplyContext) -> dict[str, Any]:
    """Return the fields of the Open Responses specification that a provider's response object lacks.

    OpenAI before 2026 sent neither the penalties nor `completed_at`; Bedrock Mantle leaves out `store` too.
    """
    whole = response.keys() >= _REQUIRED and None not in map(response.get, _NOT_NULL)
    missing = {} if whole else _absent_fields(response, reply)
    if reply.view and reply.view.previous_response_id and response.get("previous_response_id") is None:
        # The upstream got the stored turns instead of their id.
        missing["previous_response_id"] = reply.view.previous_response_id
    if reply.view and reply.view.unstorable and response.get("store"):
        # Whatever the upstream keeps, the gateway cannot continue this answer.
        missing["store"] = False
    tools = response.get("tools")
    if tools and isinstance(tools, list) and not all(map(_is_whole_tool, tools)):
        missing["tools"] = [tool if _is_whole_tool(tool) else {**_TOOL_DEFAULTS, **tool} for tool in tools]
    usage = response.get("usage")
    if usage and isinstance(usage, dict) and not usage.keys() >= _USAGE_DETAILS:
        counts = decode_usage(usage)
        if counts is not None:
            missing["usage"] = {**usage_object(counts), **usage}
    return missing


def _absent_fields(response: dict[str, Any], reply: ReplyContext) -> dict[str, Any]:
    status = response.get("status")
    fields: dict[str, Any] = {**dict.fromkeys(_STATE), **_echo(reply)}
    fields["completed_at"] = reply.now() if status == "completed" else None
    fields["service_tier"] = _reported_tier(_requested_tier(fields["service_tier"]), status)
    return {
        name: value
        for name, value in fields.items()
        if name in _REQUIRED and response.get(name) is None and (name not in response or name in _NOT_NULL)
    }


def _is_whole_tool(tool: Any) -> bool:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return True
    return tool.keys() >= _TOOL_DEFAULTS.keys()


def _reported_tier(tier: str, status: Any) -> str:
    """Return the tier as OpenAI does: `auto` while the answer is in progress, then the tier that was used."""
    return "default" if tier == "auto" and status != "in_progress" else tier


def _requested_tier(tier: Any) -> str:
    value = json.decode_raw(tier) if isinstance(tier, Raw) else tier
    return value if value in SERVICE_TIERS else "auto"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the token counts as Responses reports them; cached tokens are part of the input."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def error_object(error: GatewayError) -> dict[str, str]:
    """Return the `error` of a failed response."""
    return {"code": _error_code(error), "message": error.message}


def _error_code(error: GatewayError) -> str:
    # The Codex CLI acts on these codes and retries every other one.
    if error.code in _OPENAI_CODES:
        return str(error.code)
    by_kind = {"rate_limit": "rate_limit_exceeded", "invalid_request": "invalid_prompt"}
    return by_kind.get(error.kind, "server_error")


_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

_DELTAS = {
    "output_text": ("response.output_text.delta", b',"logprobs":[]'),
    "refusal": ("response.refusal.delta", b""),
}
"""The delta event of each kind of content part, and the fields that follow its text."""


@cache
def _frame_start(kind: str) -> bytes:
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()


class FrameSink:
    """Writes the events of one answer as frames with consecutive sequence numbers."""

    __slots__ = ("_count", "_frames")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._count = 0

    def write(self, kind: str, fields: bytes) -> None:
        """Write one event; `fields` are its other fields as JSON without the braces."""
        self._frames.append(b"%b%d,%b}\n\n" % (_frame_start(kind), self._count, fields))
        self._count += 1

    def write_texts(self, kind: str, texts: Sequence[str], *, before: bytes, after: bytes) -> None:
        """Write one event for each text; `before` and `after` are the fields around it."""
        start = _frame_start(kind)
        self._frames += [
            b'%b%d,%b"%b"%b}\n\n' % (start, number, before, text, after)
            for number, text in enumerate(escape_texts(texts), self._count)
        ]
        self._count += len(texts)

    def write_at(self, position: bytes, kind: str, **fields: Any) -> None:
        """Write one event from the fields of a position and further values."""
        self.write(kind, b"%b,%b" % (position, json.encode(fields)[1:-1]))

    def take(self) -> bytes:
        """Return the frames written since the last call."""
        frames, self._frames = self._frames, []
        return b"".join(frames)


class ItemPosition:
    """Id and index of an item, which all its events repeat."""

    __slots__ = ("id", "index", "sink")

    def __init__(self, sink: FrameSink, item_id: str, index: int) -> None:
        self.sink = sink
        self.id = item_id
        self.index = index

    def fields(self, **more: Json) -> bytes:
        return json.encode({"item_id": self.id, "output_index": self.index, **more})[1:-1]

    def added(self, item: dict[str, Json]) -> None:
        self.sink.write(_ADDED, b'"output_index":%d,"item":%b' % (self.index, json.encode(item)))

    def done(self, item: dict[str, Json]) -> bytes:
        data = json.encode(item)
        self.sink.write(_DONE, b'"output_index":%d,"item":%b' % (self.index, data))
        return data


class MessageItemEncoder:
    """The assistant's message; each text or refusal is one of its content parts."""

    def __init__(self, position: ItemPosition, head: dict[str, Json]) -> None:
        self._position = position
        self._sink = position.sink
        self._head = head
        self._content: list[dict[str, Json]] = []
        self._kind = ""
        position.added(self._item("in_progress"))

    def _item(self, status: str) -> dict[str, Json]:
        fixed = {"id": self._position.id, "type": "message", "status": status, "role": "assistant"}
        return {**fixed, **self._head, "content": self._content}

    def start(self, kind: str) -> None:
        """Start a content part; `kind` is output_text or refusal."""
        self._kind = kind
        self._pieces: list[str] = []
        self._measured, self._length = 0, 0
        self._annotations: list[Json] = []
        self._logprobs: list[Json] = []
        self._where = self._position.fields(content_index=len(self._content))
        self._delta = b'%b,"delta":' % self._where
        self._sink.write_at(self._where, "response.content_part.added", part=self._part())

    def _part(self) -> dict[str, Json]:
        text = "".join(self._pieces)
        if self._kind == "refusal":
            return {"type": "refusal", "refusal": text}
        part = {"type": "output_text", "text": text, "annotations": self._annotations}
        return {**part, "logprobs": self._logprobs}

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        if not logprobs or self._kind == "refusal":
            self.add_all((text,))
            return
        self._pieces.append(text)
        self._logprobs.extend(logprobs)
        fields = b'%b%b,"logprobs":%b' % (self._delta, json.encode(text), json.encode(logprobs))
        self._sink.write("response.output_text.delta", fields)

    def add_all(self, texts: Sequence[str]) -> None:
        self._pieces.extend(texts)
        kind, after = _DELTAS[self._kind]
        self._sink.write_texts(kind, texts, before=self._delta, after=after)

    def annotate(self, annotation: Json) -> None:
        fields = {"annotation_index": len(self._annotations), "annotation": annotation}
        self._annotations.append(annotation)
        self._sink.write_at(self._where, "response.output_text.annotation.added", **fields)

    @property
    def length(self) -> int:
        """The length of the open part's text so far."""
        self._length += sum(map(len, self._pieces[self._measured :]))
        self._measured = len(self._pieces)
        return self._length

    def end(self) -> None:
        """End the open content part."""
        part = self._part()
        if self._kind == "refusal":
            self._sink.write_at(self._where, "response.refusal.done", refusal=part["refusal"])
        else:
            text, logprobs = part["text"], self._logprobs
            self._sink.write_at(self._where, "response.output_text.done", text=text, logprobs=logprobs)
        self._sink.write_at(self._where, "response.content_part.done", part=part)
        self._content.append(part)
        self._kind = ""

    def close(self, status: str) -> bytes:
        if self._kind:
            self.end()
        return self._position.done(self._item(status))


class ReasoningItemEncoder:
    """Reasoning; its text is written as one summary, the form that OpenAI sends and clients display."""

    def __init__(self, position: ItemPosition) -> None:
        self._position = position
        self._sink = position.sink
        self._pieces: list[str] = []
        position.added({"id": position.id, "type": "reasoning", "summary": []})

    def add(self, text: str) -> None:
        if not self._pieces:
            self._where = self._position.fields(summary_index=0)
            part = {"type": "summary_text", "text": ""}
            self._sink.write_at(self._where, "response.reasoning_summary_part.added", part=part)
        self._pieces.append(text)
        delta = b'%b,"delta":%b' % (self._where, json.encode(text))
        self._sink.write("response.reasoning_summary_text.delta", delta)

    def close(self, signature: str | None) -> bytes:
        summary = []
        if self._pieces:
            part = {"type": "summary_text", "text": "".join(self._pieces)}
            self._sink.write_at(self._where, "response.reasoning_summary_text.done", text=part["text"])
            self._sink.write_at(self._where, "response.reasoning_summary_part.done", part=part)
            summary = [part]
        item: dict[str, Json] = {"id": self._position.id, "type": "reasoning", "summary": summary}
        if signature is not None:
            item["encrypted_content"] = signature
        return self._position.done(item)
