"""The response object: one source for the answer that is streamed and the one that is sent whole.

Output items while they are written: each says its events to the Sink and ends as the item's JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import Raw

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.canon.parts import Json
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.schema import RequestView
from routecodex.protocols.text_batches import escape_texts
from routecodex.protocols.tool_mapping import InputUnwrapper
from routecodex.wire import json

_ECHOED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
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
"""Fields of the request that its answer repeats, with what the answer says when the request did not."""

_TOLD = frozenset({"insufficient_quota", "context_length_exceeded", "invalid_prompt", "rate_limit_exceeded"})


class ResponseObject:
    """Renders the response object of one answer at any moment of its life.

    `tier` is the service tier that was asked for, until the provider tells the one it used.
    """

    __slots__ = ("_head", "_tail", "id", "tier")

    def __init__(self, reply: ReplyContext) -> None:
        self.id = f"resp_{reply.id}"
        head = {"id": self.id, "object": "response", "created_at": reply.created, "model": reply.model}
        self._head = json.encode(head)[:-1]
        echo = _echo(reply)
        self.tier: Any = echo.pop("service_tier")
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
        """The object as JSON; `reason` is why it is incomplete, `error` why it failed."""
        state: dict[str, Any] = {
            "status": status,
            "error": None if error is None else error_object(error),
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if usage is None else usage_object(usage),
            "output": [Raw(item) for item in output],
            "service_tier": self.tier,
        }
        return b"%b,%b,%b" % (self._head, json.encode(state)[1:-1], self._tail)


def _echo(reply: ReplyContext) -> dict[str, Any]:
    if not isinstance(reply.wire, RequestView):
        return dict(_ECHOED)
    sent = json.read_fields(reply.wire.body)
    return {
        name: sent[name] if name in sent and bytes(sent[name]) != b"null" else default
        for name, default in _ECHOED.items()
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Responses tells them; cached tokens are part of the input."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def error_object(error: GatewayError) -> dict[str, str]:
    """An error as the `error` of a failed response; clients act on a few codes only."""
    return {"code": _error_code(error), "message": error.message}


def _error_code(error: GatewayError) -> str:
    if error.code in _TOLD:
        return str(error.code)
    by_kind = {"rate_limit": "rate_limit_exceeded", "invalid_request": "invalid_prompt"}
    return by_kind.get(error.kind, "server_error")


_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

_DELTAS = {
    "output_text": ("response.output_text.delta", b',"logprobs":[]'),
    "refusal": ("response.refusal.delta", b""),
}
"""By the kind of a content part, the event that adds to it and what follows the text there."""


@cache
def _opening(kind: str) -> bytes:
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()


class FrameSink:
    """The events of one answer as frames, numbered in the order they are said."""

    __slots__ = ("_frames", "_said")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._said = 0

    def say(self, kind: str, fields: bytes) -> None:
        """One event; `fields` are its other fields as JSON without the braces."""
        self._frames.append(b"%b%d,%b}\n\n" % (_opening(kind), self._said, fields))
        self._said += 1

    def say_each(self, kind: str, texts: Sequence[str], *, before: bytes, after: bytes) -> None:
        """An event for each text; `before` and `after` are the fields around it."""
        opening = _opening(kind)
        self._frames += [
            b'%b%d,%b"%b"%b}\n\n' % (opening, number, before, text, after)
            for number, text in enumerate(escape_texts(texts), self._said)
        ]
        self._said += len(texts)

    def tell(self, kind: str, **fields: Any) -> None:
        """One event from values."""
        self.say(kind, json.encode(fields)[1:-1])

    def take(self) -> bytes:
        """The frames said since the last time."""
        frames, self._frames = self._frames, []
        return b"".join(frames)


class ItemPosition:
    """Where an item stands in the answer, as the constant part of its events."""

    __slots__ = ("id", "index", "sink")

    def __init__(self, sink: FrameSink, item_id: str, index: int) -> None:
        self.sink = sink
        self.id = item_id
        self.index = index

    def fields(self, **more: Json) -> bytes:
        return json.encode({"item_id": self.id, "output_index": self.index, **more})[1:-1]

    def added(self, item: dict[str, Json]) -> None:
        self.sink.tell(_ADDED, output_index=self.index, item=item)

    def done(self, item: dict[str, Json]) -> bytes:
        data = json.encode(item)
        self.sink.say(_DONE, b'"output_index":%d,"item":%b' % (self.index, data))
        return data


class MessageItemEncoder:
    """The assistant's message; each text or refusal is a content part of it."""

    def __init__(self, place: ItemPosition, head: dict[str, Json]) -> None:
        self._place = place
        self._head = head
        self._content: list[dict[str, Json]] = []
        self._kind = ""
        place.added(self._item("in_progress"))

    def _item(self, status: str) -> dict[str, Json]:
        fixed = {"id": self._place.id, "type": "message", "status": status, "role": "assistant"}
        return {**fixed, **self._head, "content": self._content}

    def start(self, kind: str) -> None:
        """A content part begins; `kind` is output_text or refusal."""
        self._kind = kind
        self._pieces: list[str] = []
        self._annotations: list[Json] = []
        self._logprobs: list[Json] = []
        where = self._place.fields(content_index=len(self._content))
        self._where = where
        self._delta = b'%b,"delta":' % where
        self._tell("response.content_part.added", part=self._part())

    def _tell(self, kind: str, **fields: Json) -> None:
        self._place.sink.say(kind, b"%b,%b" % (self._where, json.encode(fields)[1:-1]))

    def _part(self) -> dict[str, Json]:
        text = "".join(self._pieces)
        if self._kind == "refusal":
            return {"type": "refusal", "refusal": text}
        part = {"type": "output_text", "text": text, "annotations": self._annotations}
        return {**part, "logprobs": self._logprobs} if self._logprobs else part

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        if not logprobs or self._kind == "refusal":
            self.add_all((text,))
            return
        self._pieces.append(text)
        self._logprobs.extend(logprobs)
        fields = b'%b%b,"logprobs":%b' % (self._delta, json.encode(text), json.encode(logprobs))
        self._place.sink.say("response.output_text.delta", fields)

    def add_all(self, texts: Sequence[str]) -> None:
        self._pieces.extend(texts)
        kind, after = _DELTAS[self._kind]
        self._place.sink.say_each(kind, texts, before=self._delta, after=after)

    def annotate(self, annotation: Json) -> None:
        at = len(self._annotations)
        self._annotations.append(annotation)
        self._tell("response.output_text.annotation.added", annotation_index=at, annotation=annotation)

    @property
    def length(self) -> int:
        """How long the text of the open part is by now."""
        return sum(map(len, self._pieces))

    def end(self) -> None:
        """The open content part is complete."""
        part = self._part()
        if self._kind == "refusal":
            self._tell("response.refusal.done", refusal=part["refusal"])
        else:
            self._tell("response.output_text.done", text=part["text"], logprobs=self._logprobs)
        self._tell("response.content_part.done", part=part)
        self._content.append(part)
        self._kind = ""

    def close(self, status: str) -> bytes:
        if self._kind:
            self.end()
        return self._place.done(self._item(status))


class ReasoningItemEncoder:
    """A thought; its text is told as one summary."""

    def __init__(self, place: ItemPosition) -> None:
        self._place = place
        self._pieces: list[str] = []
        place.added({"id": place.id, "type": "reasoning", "summary": []})

    def add(self, text: str) -> None:
        if not self._pieces:
            self._where = self._place.fields(summary_index=0)
            self._tell("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""})
        self._pieces.append(text)
        delta = b'%b,"delta":%b' % (self._where, json.encode(text))
        self._place.sink.say("response.reasoning_summary_text.delta", delta)

    def _tell(self, kind: str, **fields: Json) -> None:
        self._place.sink.say(kind, b"%b,%b" % (self._where, json.encode(fields)[1:-1]))

    def close(self, signature: str | None) -> bytes:
        summary = []
        if self._pieces:
            part = {"type": "summary_text", "text": "".join(self._pieces)}
            self._tell("response.reasoning_summary_text.done", text=part["text"])
            self._tell("response.reasoning_summary_part.done", part=part)
            summary = [part]
        item: dict[str, Json] = {"id": self._place.id, "type": "reasoning", "summary": summary}
        if signature is not None:
            item["encrypted_content"] = signature
        return self._place.done(item)


class CallItemEncoder:
    """A call of a function or of a custom tool; `wrapped` arguments are unwrapped into free text."""

    def __init__(self, place: ItemPosition, head: dict[str, Json], *, custom: bool, wrapped: bool) -> None:
        self._place = place
        self._custom = custom
        self._kind = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self._field = "input" if custom else "arguments"
        self._head = {
            "id": place.id,
            "type": "custom_tool_call" if custom else "function_call",
            **head,
        }
        self._unwrapper = InputUnwrapper() if wrapped else None
        self._pieces: list[str] = []
        self._where = place.fields()
        self._delta = b'%b,"delta":' % self._where
        place.added({**self._head, "status": "in_progress", self._field: ""})

    def add(self, text: str) -> None:
        if self._unwrapper is not None:
            text = self._unwrapper.feed(text)
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        self._pieces.append(text)
        self._place.sink.say(f"{self._kind}.delta", self._delta + json.encode(text))

    def close(self) -> bytes:
        if self._unwrapper is not None and (held := self._unwrapper.close()):
            self._say(held)
        if not self._custom and not "".join(self._pieces).strip():
            self._say("{}")
        text = "".join(self._pieces)
        done = json.encode({self._field: text})[1:-1]
        self._place.sink.say(f"{self._kind}.done", b"%b,%b" % (self._where, done))
        return self._place.done({**self._head, "status": self._status(text), self._field: text})

    def _status(self, text: str) -> str:
        whole = self._unwrapper.whole if self._unwrapper is not None else self._custom or json.is_whole(text)
        return "completed" if whole else "incomplete"
