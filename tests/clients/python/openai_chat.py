"""OpenAI's SDK on chat completions: whole, streamed, and through the `.stream()` helper."""

from __future__ import annotations

import json
from typing import Any

import openai

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
    data_url,
)

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks at the sky", "parameters": PARAMETERS},
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
_ATTACHED: dict[str, dict[str, Any]] = {
    "image": {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}},
    "image URL": {"type": "image_url", "image_url": {"url": IMAGE_URL}},
    "PDF": {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url("application/pdf", PDF)}},
}


class Chat:
    """A conversation over chat completions."""

    def __init__(self, client: openai.OpenAI, model: str, *, mode: str, options: ConversationOptions) -> None:
        self._completions: Any = client.chat.completions
        self._options = options
        self._turn = {"whole": self._whole, "stream": self._stream, "helper": self._helper}[mode]
        self._messages: list[Any] = []
        self._calls: list[ReceivedCall] = []
        self._request: dict[str, Any] = {"model": model, "messages": self._messages}
        if options.tools:
            self._request["tools"] = [TOOL]
        if options.forbidden:
            self._request["tool_choice"] = "none"
        if options.system:
            self._messages.append({"role": "system", "content": SYSTEM})
        if options.thinking:
            self._request["reasoning_effort"] = "high"

    def send(self, text: str, *, attached: str = "") -> Reply:
        content: Any = [{"type": "text", "text": text}, _ATTACHED[attached]] if attached else text
        self._messages.append({"role": "user", "content": content})
        return self._next_reply()

    def send_results(self, *results: str) -> Reply:
        for call, result in zip(self._calls, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return self._next_reply()

    def _next_reply(self) -> Reply:
        reply = self._turn()
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in reply.calls
            ]
        self._messages.append(message)
        self._calls = reply.calls
        return reply

    def _whole(self) -> Reply:
        if self._options.structured:
            return _read(self._completions.parse(**self._request, response_format=Weather))
        return _read(self._completions.create(**self._request))

    def _helper(self) -> Reply:
        more = {"response_format": Weather} if self._options.structured else {}
        pieces = 0
        request = {**self._request, "stream_options": {"include_usage": True}, **more}
        with self._completions.stream(**request) as events:
            for event in events:
                pieces += event.type == "content.delta"
            reply = _read(events.get_final_completion())
        reply.pieces = pieces
        return reply

    def _stream(self) -> Reply:
        more = {"response_format": _FORMAT} if self._options.structured else {}
        request = {**self._request, "stream": True, "stream_options": {"include_usage": True}, **more}
        reader = _StreamReader()
        with self._completions.create(**request) as chunks:
            for chunk in chunks:
                reader.take(chunk)
        return reader.reply(structured=self._options.structured)


def _usage(reply: Reply, usage: Any) -> None:
    reply.usage = (usage.prompt_tokens, usage.completion_tokens)
    reply.cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None


def _read(completion: Any) -> Reply:
    choice = completion.choices[0]
    message = choice.message
    reply = Reply(
        text=message.content or "",
        calls=[
            ReceivedCall(call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or ()
        ],
        reasoning=getattr(message, "reasoning_content", None) or "",
        end=choice.finish_reason,
        parsed=getattr(message, "parsed", None),
    )
    _usage(reply, completion.usage)
    return reply


class _StreamReader:
    """Builds a reply from the chunks of a stream, as many programs do."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._calls: dict[int, list[str]] = {}

    def take(self, chunk: Any) -> None:
        if chunk.usage is not None:
            _usage(self._reply, chunk.usage)
        for choice in chunk.choices:
            self._reply.end = choice.finish_reason or self._reply.end
            self._delta(choice.delta)

    def _delta(self, delta: Any) -> None:
        self._reply.reasoning += getattr(delta, "reasoning_content", None) or ""
        if delta.content:
            self._reply.text += delta.content
            self._reply.pieces += 1
        for call in delta.tool_calls or ():
            known = self._calls.setdefault(call.index, ["", "", ""])
            known[0] += call.id or ""
            known[1] += call.function.name or ""
            known[2] += call.function.arguments or ""

    def reply(self, *, structured: bool) -> Reply:
        self._reply.calls = [
            ReceivedCall(id, name, json.loads(text)) for id, name, text in self._calls.values()
        ]
        if structured:
            self._reply.parsed = Weather.model_validate_json(self._reply.text)
        return self._reply
