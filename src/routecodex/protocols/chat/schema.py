"""The shape of a chat request, for validation: known fields have their types, unknown ones pass."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import Inbound
from routecodex.wire import json

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ImageUrl(Struct, gc=False):
    url: str
    detail: str | None = None


class InputAudio(Struct, gc=False):
    data: str
    format: str | None = None


class FileRef(Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class Part(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    video_url: ImageUrl | str | None = None
    input_audio: InputAudio | None = None
    file: FileRef | None = None


class FunctionCall(Struct, gc=False):
    name: str
    arguments: str | dict[str, Any] = ""


class CustomCall(Struct, gc=False):
    name: str
    input: str = ""


class Call(Struct):
    id: str | None = None
    type: str = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class Message(Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class Function(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(Struct):
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(Struct):
    type: str
    function: Function | None = None
    custom: Custom | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class JsonSchema(Struct):
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct):
    type: str
    json_schema: JsonSchema | None = None


class ChatRequest(Struct):
    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Function] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None


_decoder = Decoder(ChatRequest)


def read(body: bytes, *, model: str | None = None, stream: bool | None = None) -> Inbound:
    """The request, checked; BadRequest names the field that is wrong."""
    wire = json.read(body, _decoder)
    _check(wire)
    options = wire.stream_options
    return Inbound(
        protocol="chat",
        body=body,
        wire=wire,
        model=wire.model if model is None else model,
        stream=bool(wire.stream) if stream is None else stream,
        include_usage=bool(options is not None and options.include_usage),
    )


def _check(wire: ChatRequest) -> None:
    if not wire.model or "\x00" in wire.model:
        raise BadRequest("model: must name a model", param="model", code="invalid_value")
    if not wire.messages:
        raise BadRequest("messages: must hold at least one message", param="messages", code="invalid_value")
    if wire.n is not None and wire.n < 1:
        raise BadRequest("n: must be 1 or more", param="n", code="invalid_value")
    if wire.max_tokens is not None and wire.max_tokens < 1:
        raise BadRequest("max_tokens: must be 1 or more", param="max_tokens", code="invalid_value")
    _check_messages(wire.messages)
    for index, tool in enumerate(wire.tools or ()):
        _check_tool(f"tools[{index}]", tool)


def _check_messages(messages: list[Message]) -> None:
    called: set[str] = set()
    for index, message in enumerate(messages):
        role = message.role
        if role == "assistant":
            if message.tool_calls:
                called.update(_call_ids(f"messages[{index}].tool_calls", message.tool_calls))
        elif role == "tool":
            _check_result(f"messages[{index}]", message, called)
        elif role not in ROLES:
            where = f"messages[{index}].role"
            raise BadRequest(
                f"{where}: unknown role {role!r}; use one of {', '.join(ROLES)}",
                param=where,
                code="invalid_value",
            )


def _call_ids(where: str, calls: list[Call]) -> set[str]:
    ids: set[str] = set()
    for index, call in enumerate(calls):
        if call.function is None and call.custom is None:
            field = f"{where}[{index}].{call.type}"
            raise BadRequest(f"{field}: this field is required", param=field, code="missing_field")
        if not call.id:
            field = f"{where}[{index}].id"
            raise BadRequest(f"{field}: a tool call needs an id", param=field, code="missing_field")
        if call.id in ids:
            field = f"{where}[{index}].id"
            raise BadRequest(f"{field}: duplicate id {call.id!r}", param=field, code="duplicate_id")
        ids.add(call.id)
    return ids


def _check_result(where: str, message: Message, called: set[str]) -> None:
    field = f"{where}.tool_call_id"
    if not message.tool_call_id:
        raise BadRequest(
            f"{field}: a tool message needs the id of its call", param=field, code="missing_field"
        )
    if message.tool_call_id not in called:
        raise BadRequest(
            f"{field}: no earlier assistant message calls {message.tool_call_id!r}",
            param=field,
            code="orphan_tool_result",
        )


def _check_tool(where: str, tool: Tool) -> None:
    described = tool.function or tool.custom
    if tool.type in ("function", "custom") and described is None:
        field = f"{where}.{tool.type}"
        raise BadRequest(f"{field}: this field is required", param=field, code="missing_field")
    if described is not None and (not described.name or "\x00" in described.name):
        field = f"{where}.{tool.type}.name"
        raise BadRequest(f"{field}: a tool needs a name", param=field, code="invalid_value")
