"""Anthropic's SDK: whole, streamed, and through the `.stream()` helper."""

from __future__ import annotations

import base64
import json
from typing import Any

import anthropic

from tests.clients.python.conversation import (
    IMAGE_URL,
    PARAMETERS,
    PDF,
    PNG,
    SCHEMA,
    SYSTEM,
    ConversationOptions,
    ReceivedCall,
    Reply,
    Weather,
)

TOOL = {"name": "look_up", "description": "Looks at the sky", "input_schema": PARAMETERS}
_FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}


def _base64(kind: str, data: bytes) -> dict[str, Any]:
    return {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}


_ATTACHED: dict[str, dict[str, Any]] = {
    "image": {"type": "image", "source": _base64("image/png", PNG)},
    "image URL": {"type": "image", "source": {"type": "url", "url": IMAGE_URL}},
    "PDF": {"type": "document", "source": _base64("application/pdf", PDF)},
}


class Messages:
    """A conversation over messages."""

    def __init__(
        self, client: anthropic.Anthropic, model: str, *, mode: str, options: ConversationOptions
    ) -> None:
        self._api: Any = client.messages
        self._options = options
        self._turn = {"whole": self._whole, "stream": self._stream, "helper": self._helper}[mode]
        self._messages: list[Any] = []
        self._calls: list[ReceivedCall] = []
        self._request: dict[str, Any] = {"model": model, "messages": self._messages, "max_tokens": 4096}
        if options.tools:
            self._request["tools"] = [TOOL]
        if options.forbidden:
            self._request["tool_choice"] = {"type": "none"}
        if options.system:
            self._request["system"] = SYSTEM
        if options.thinking:
            self._request["thinking"] = {"type": "enabled", "budget_tokens": 2048}

    def send(self, text: str, *, attached: str = "") -> Reply:
        content: Any = [{"type": "text", "text": text}, _ATTACHED[attached]] if attached else text
        self._messages.append({"role": "user", "content": content})
        return self._next_reply()

    def send_results(self, *results: str) -> Reply:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}
            for call, result in zip(self._calls, results, strict=True)
        ]
        self._messages.append({"role": "user", "content": blocks})
        return self._next_reply()

    def _next_reply(self) -> Reply:
        content, reply = self._turn()
        self._messages.append({"role": "assistant", "content": content})
        self._calls = reply.calls
        return reply

    def _whole(self) -> tuple[list[Any], Reply]:
        if self._options.structured:
            return _read(self._api.parse(**self._request, output_format=Weather))
        return _read(self._api.create(**self._request))

    def _helper(self) -> tuple[list[Any], Reply]:
        more = {"output_format": Weather} if self._options.structured else {}
        with self._api.stream(**self._request, **more) as stream:
            pieces = sum(event.type == "text" for event in stream)
            content, reply = _read(stream.get_final_message())
        reply.pieces = pieces
        return content, reply

    def _stream(self) -> tuple[list[Any], Reply]:
        more = {"output_config": _FORMAT} if self._options.structured else {}
        reader = _StreamReader()
        with self._api.create(**self._request, stream=True, **more) as events:
            for event in events:
                reader.take(event)
        return reader.reply(structured=self._options.structured)


def _usage(reply: Reply, usage: Any) -> None:
    reply.cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    reply.usage = ((usage.input_tokens or 0) + (reply.cached or 0) + written, usage.output_tokens)


def _read(message: Any) -> tuple[list[Any], Reply]:
    blocks = [block.to_dict(mode="json") for block in message.content]
    reply = _reply_of(blocks)
    reply.end = message.stop_reason
    reply.parsed = getattr(message, "parsed_output", None)
    _usage(reply, message.usage)
    return [{key: value for key, value in block.items() if key != "parsed_output"} for block in blocks], reply


def _reply_of(blocks: list[Any]) -> Reply:
    reply = Reply()
    for block in blocks:
        if block["type"] == "tool_use":
            reply.calls.append(ReceivedCall(block["id"], block["name"], block["input"]))
        reply.text += block.get("text", "")
        reply.reasoning += block.get("thinking", "")
    return reply


class _StreamReader:
    """Builds a reply from the events of a stream."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._json = ""
        self._pieces = 0
        self._end: str | None = None
        self._usage: Any = None

    def take(self, event: Any) -> None:
        if event.type == "content_block_start":
            self._blocks.append(event.content_block.to_dict(mode="json"))
            self._json = ""
        elif event.type == "content_block_delta":
            self._delta(event.delta)
        elif event.type == "content_block_stop" and self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"] = json.loads(self._json or "{}")
        elif event.type == "message_delta":
            self._end, self._usage = event.delta.stop_reason, event.usage

    def _delta(self, delta: Any) -> None:
        self._pieces += delta.type == "text_delta"
        if delta.type == "input_json_delta":
            self._json += delta.partial_json
            return
        name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[
            delta.type
        ]
        self._blocks[-1][name] += getattr(delta, name)

    def reply(self, *, structured: bool) -> tuple[list[Any], Reply]:
        reply = _reply_of(self._blocks)
        reply.end, reply.pieces = self._end, self._pieces
        _usage(reply, self._usage)
        if structured:
            reply.parsed = Weather.model_validate_json(reply.text)
        return self._blocks, reply
