"""Messages of requests and answers as attributes of spans, where `telemetry.content` is on.

The shape is that of the JSON schemas beside docs/gen-ai/gen-ai-spans.md of
open-telemetry/semantic-conventions-genai (gen-ai-input-messages.json, gen-ai-output-messages.json,
gen-ai-system-instructions.json). Data of images and files is left out; only its type is named.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event, Failed
from routecodex.canon.parts import Media, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message
from routecodex.canon.response import Response, ResponseBuilder
from routecodex.protocols.codecs import CODECS
from routecodex.telemetry import names
from routecodex.telemetry.request_trace import CapturedContent
from routecodex.telemetry.span import Attributes
from routecodex.wire import json

log = logging.getLogger("routecodex.telemetry")

_JSON_TYPE = "application/json"


def content_attributes(content: CapturedContent, *, openinference: bool) -> Attributes:
    """Return the messages of one attempt; those of an answer that cannot be read are left out."""
    request = content.request
    sent = [_message(message) for message in request.messages]
    system = [{"type": "text", "content": part.text} for part in request.system]
    attributes: Attributes = [(names.INPUT_MESSAGES, _text(sent))]
    if system:
        attributes.append((names.SYSTEM_INSTRUCTIONS, _text(system)))
    response = _response(content)
    received = [] if response is None else [_answer(response)]
    if received:
        attributes.append((names.OUTPUT_MESSAGES, _text(received)))
    if openinference:
        attributes += _openinference(sent, received)
    return attributes


def _text(value: Any) -> str:
    return json.encode(value).decode()


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _answer(response: Response) -> dict[str, Any]:
    parts = [_part(part) for part in response.parts]
    return {"role": "assistant", "parts": parts, "finish_reason": response.finish.reason}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text() | Refusal():
            return {"type": "text", "content": part.text}
        case Reasoning():
            return {"type": "reasoning", "content": part.text}
        case ToolCall():
            return {
                "type": "tool_call",
                "id": part.id,
                "name": part.name,
                "arguments": _arguments(part.arguments),
            }
        case ToolResult():
            result = "".join(inner.text for inner in part.parts if isinstance(inner, Text))
            return {"type": "tool_call_response", "id": part.call_id, "result": result}
        case Media():
            return _media(part)
        case _:
            return {"type": "other"}


def _media(part: Media) -> dict[str, Any]:
    described = {"modality": part.kind, "mime_type": part.media_type}
    if part.url is not None:
        return {"type": "uri", **described, "uri": part.url}
    if part.file_id is not None:
        return {"type": "file", **described, "file_id": part.file_id}
    return {"type": "blob", **described, "content": ""}


def _arguments(text: str) -> Any:
    try:
        return json.decode(text)
    except ValueError:
        return text


def _response(content: CapturedContent) -> Response | None:
    """Return the answer as far as it came; None if nothing of it was kept, or it cannot be read."""
    try:
        events = content.events or _decoded(content)
        return _built(events) if events else None
    except (GatewayError, ValueError, KeyError, TypeError) as exc:
        log.debug("the content of an answer cannot be read: %s", exc)
        return None


def _decoded(content: CapturedContent) -> Sequence[Event]:
    data = b"".join(content.data)
    if not data:
        return []
    codec = CODECS[content.protocol]
    if not content.is_stream:
        return codec.decode_response(data)
    decoder = codec.stream_decoder()
    return [*decoder.feed(data), *decoder.close()]


def _built(events: Iterable[Event]) -> Response:
    builder = ResponseBuilder()
    for event in events:
        if not isinstance(event, Failed):
            builder.add(event)
    return builder.response()


def _openinference(sent: list[dict[str, Any]], received: list[dict[str, Any]]) -> Attributes:
    attributes: Attributes = [(names.OI_INPUT, _text(sent)), (names.OI_INPUT_TYPE, _JSON_TYPE)]
    if received:
        attributes += ((names.OI_OUTPUT, _text(received)), (names.OI_OUTPUT_TYPE, _JSON_TYPE))
    for prefix, messages in ((names.OI_INPUT_MESSAGE, sent), (names.OI_OUTPUT_MESSAGE, received)):
        for index, message in enumerate(messages):
            attributes += _flattened(f"{prefix}.{index}.message", message)
    return attributes


def _flattened(prefix: str, message: dict[str, Any]) -> Attributes:
    """Return one message as OpenInference has it: an attribute for each field, numbered from 0."""
    attributes: Attributes = [(f"{prefix}.role", message["role"])]
    texts = [part["content"] for part in message["parts"] if part["type"] == "text"]
    results = [part["result"] for part in message["parts"] if part["type"] == "tool_call_response"]
    if texts or results:
        attributes.append((f"{prefix}.content", "".join([*texts, *results])))
    calls = [part for part in message["parts"] if part["type"] == "tool_call"]
    for index, call in enumerate(calls):
        at = f"{prefix}.tool_calls.{index}.tool_call"
        attributes += (
            (f"{at}.id", call["id"]),
            (f"{at}.function.name", call["name"]),
            (f"{at}.function.arguments", _text(call["arguments"])),
        )
    return attributes
