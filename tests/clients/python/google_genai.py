"""Google's Gen AI SDK: whole and streamed."""

from __future__ import annotations

from typing import Any

from google import genai
from google.genai import types

from tests.clients.python.conversation import (
    IMAGE_URL,
    PARAMETERS,
    PDF,
    PNG,
    SYSTEM,
    ConversationOptions,
    ReceivedCall,
    Reply,
    Weather,
)

TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="look_up", description="Looks at the sky", parameters_json_schema=PARAMETERS
        )
    ]
)
_ATTACHED = {
    "image": types.Part.from_bytes(data=PNG, mime_type="image/png"),
    "image URL": types.Part.from_uri(file_uri=IMAGE_URL, mime_type="image/png"),
    "PDF": types.Part.from_bytes(data=PDF, mime_type="application/pdf"),
}


class Gemini:
    """A conversation over generateContent."""

    def __init__(self, client: genai.Client, model: str, *, mode: str, options: ConversationOptions) -> None:
        self._models: Any = client.models
        self._model = model
        self._turn = {"whole": self._whole, "stream": self._stream}[mode]
        self._contents: list[Any] = []
        self._calls: list[ReceivedCall] = []
        fields: dict[str, Any] = {}
        if options.tools:
            fields["tools"] = [TOOL]
            fields["automatic_function_calling"] = types.AutomaticFunctionCallingConfig(disable=True)
        if options.forbidden:
            mode = types.FunctionCallingConfigMode.NONE
            choice = types.FunctionCallingConfig(mode=mode)
            fields["tool_config"] = types.ToolConfig(function_calling_config=choice)
        if options.system:
            fields["system_instruction"] = SYSTEM
        if options.thinking:
            fields["thinking_config"] = types.ThinkingConfig(include_thoughts=True, thinking_budget=2048)
        if options.structured:
            fields |= {"response_mime_type": "application/json", "response_schema": Weather}
        self._config = types.GenerateContentConfig(**fields)
        self._structured = options.structured

    def send(self, text: str, *, attached: str = "") -> Reply:
        parts = [types.Part(text=text)]
        if attached:
            parts.append(_ATTACHED[attached])
        self._contents.append(types.Content(role="user", parts=parts))
        return self._next_reply()

    def send_results(self, *results: str) -> Reply:
        parts = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"output": result}
                )
            )
            for call, result in zip(self._calls, results, strict=True)
        ]
        self._contents.append(types.Content(role="user", parts=parts))
        return self._next_reply()

    def _next_reply(self) -> Reply:
        parts, reply = self._turn()
        self._contents.append(types.Content(role="model", parts=parts))
        self._calls = reply.calls
        return reply

    def _request(self) -> dict[str, Any]:
        return {"model": self._model, "contents": self._contents, "config": self._config}

    def _whole(self) -> tuple[list[types.Part], Reply]:
        answer = self._models.generate_content(**self._request())
        parts = _parts(answer)
        reply = _reply_of(parts)
        _add_end_and_usage(reply, answer)
        reply.parsed = answer.parsed
        return parts, reply

    def _stream(self) -> tuple[list[types.Part], Reply]:
        parts: list[types.Part] = []
        last = None
        for chunk in self._models.generate_content_stream(**self._request()):
            parts += _parts(chunk)
            last = chunk
        reply = _reply_of(parts)
        reply.pieces = sum(bool(part.text) and not part.thought for part in parts)
        _add_end_and_usage(reply, last)
        if self._structured:
            reply.parsed = Weather.model_validate_json(reply.text)
        return parts, reply


def _parts(answer: Any) -> list[types.Part]:
    candidate = answer.candidates[0]
    return list(candidate.content.parts or ()) if candidate.content else []


def _reply_of(parts: list[types.Part]) -> Reply:
    reply = Reply()
    for part in parts:
        if part.function_call is not None:
            call = part.function_call
            reply.calls.append(ReceivedCall(call.id, call.name or "", call.args))
        elif part.thought:
            reply.reasoning += part.text or ""
        else:
            reply.text += part.text or ""
    return reply


def _add_end_and_usage(reply: Reply, answer: Any) -> None:
    reply.end = answer.candidates[0].finish_reason.value
    usage = answer.usage_metadata
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    reply.usage = (usage.prompt_token_count, output)
    reply.cached = usage.cached_content_token_count
