"""OpenAI's SDK on responses: whole, streamed, and through the `.stream()` helper."""

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
    "name": "look_up",
    "description": "Looks at the sky",
    "parameters": PARAMETERS,
    "strict": False,
}
_FORMAT = {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}
_ATTACHED: dict[str, dict[str, Any]] = {
    "image": {"type": "input_image", "detail": "auto", "image_url": data_url("image/png", PNG)},
    "image URL": {"type": "input_image", "detail": "auto", "image_url": IMAGE_URL},
    "PDF": {"type": "input_file", "filename": "a.pdf", "file_data": data_url("application/pdf", PDF)},
}


class Responses:
    """A conversation over responses that keeps its own history and stores nothing."""

    def __init__(self, client: openai.OpenAI, model: str, *, mode: str, options: ConversationOptions) -> None:
        self._responses: Any = client.responses
        self._options = options
        self._turn = {"whole": self._whole, "stream": self._stream, "helper": self._helper}[mode]
        self._input: list[Any] = []
        self._calls: list[ReceivedCall] = []
        self._request: dict[str, Any] = {"model": model, "input": self._input, "store": False}
        if options.tools:
            self._request["tools"] = [TOOL]
        if options.forbidden:
            self._request["tool_choice"] = "none"
        if options.system:
            self._request["instructions"] = SYSTEM
        if options.thinking:
            self._request["reasoning"] = {"effort": "high", "summary": "auto"}
            self._request["include"] = ["reasoning.encrypted_content"]

    def send(self, text: str, *, attached: str = "") -> Reply:
        content: Any = [{"type": "input_text", "text": text}, _ATTACHED[attached]] if attached else text
        self._input.append({"role": "user", "content": content})
        return self._next_reply()

    def send_results(self, *results: str) -> Reply:
        for call, result in zip(self._calls, results, strict=True):
            self._input.append({"type": "function_call_output", "call_id": call.id, "output": result})
        return self._next_reply()

    def _next_reply(self) -> Reply:
        response, pieces = self._turn()
        self._input += [item.to_dict(mode="json") for item in response.output]
        reply = read(response)
        reply.pieces = pieces
        self._calls = reply.calls
        return reply

    def _whole(self) -> tuple[Any, int]:
        if self._options.structured:
            return self._responses.parse(**self._request, text_format=Weather), 0
        return self._responses.create(**self._request), 0

    def _helper(self) -> tuple[Any, int]:
        more = {"text_format": Weather} if self._options.structured else {}
        pieces = 0
        with self._responses.stream(**self._request, **more) as events:
            for event in events:
                pieces += event.type == "response.output_text.delta"
            return events.get_final_response(), pieces

    def _stream(self) -> tuple[Any, int]:
        more = {"text": {"format": _FORMAT}} if self._options.structured else {}
        last, deltas = None, []
        with self._responses.create(**self._request, stream=True, **more) as events:
            for number, event in enumerate(events):
                assert event.sequence_number == number
                last = event
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
        if last is None or last.type == "response.failed":
            raise RuntimeError("the response failed")
        assert last.response.output_text == "".join(deltas)
        return last.response, len(deltas)


def read(response: Any) -> Reply:
    """Read a finished response."""
    reply = Reply(text=response.output_text, end=response.status)
    if response.incomplete_details is not None:
        reply.end = f"{response.status}: {response.incomplete_details.reason}"
    for item in response.output:
        if item.type == "function_call":
            reply.calls.append(ReceivedCall(item.call_id, item.name, json.loads(item.arguments)))
        if item.type == "reasoning":
            reply.reasoning += "".join(part.text for part in item.summary)
    reply.usage = (response.usage.input_tokens, response.usage.output_tokens)
    reply.cached = response.usage.input_tokens_details.cached_tokens
    if response.output_text[:1] == "{":
        parsed = getattr(response, "output_parsed", None)
        reply.parsed = parsed or Weather.model_validate_json(response.output_text)
    return reply
