"""A model in a tool loop: reads requests of each protocol, calls a tool, then quotes its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.kit.answers.model_answer import Call, ModelAnswer, Piece, TextPiece
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the request offers."""

    name: str
    schema: dict[str, Any]
    custom: bool = False


@dataclass(slots=True)
class ModelInput:
    """The parts of a request that the model reacts to: the last user text and the results after it."""

    text: str = ""
    results: list[str] = field(default_factory=list)
    tools: list[OfferedTool] = field(default_factory=list)
    include_usage: bool = True

    def start_turn(self, text: str) -> None:
        """Take a user's text; results before it are history."""
        self.text, self.results = text, []


Encode: TypeAlias = Callable[[str, ModelAnswer, bool], Json | Sse]


def smart_with(protocol: str, encode: Encode) -> Callable[[Request], Json | Sse]:
    """Return the script; `encode` puts the answer on the wire."""

    def answer(request: Request) -> Json | Sse:
        model_input = _READERS[protocol](request.json)
        model = request.json.get("model") or ""
        reply = ModelAnswer((_next_piece(model_input),), model=model, include_usage=model_input.include_usage)
        return encode(protocol, reply, wants_stream(request))

    return answer


def wants_stream(request: Request) -> bool:
    """Return whether the request asks for a stream: by its body, on Gemini by its path."""
    return ":streamGenerateContent" in request.path or request.json.get("stream") is True


def _next_piece(model_input: ModelInput) -> Piece:
    if model_input.results:
        return TextPiece("The tool says: " + " | ".join(model_input.results))
    if not model_input.tools:
        return TextPiece(f"You said: {model_input.text}")
    named = [tool for tool in model_input.tools if tool.name in model_input.text]
    tool = (named or model_input.tools)[0]
    if tool.custom:
        return Call(tool.name, model_input.text, custom=True)
    return Call(tool.name, fill_schema(tool.schema, model_input.text))


_PLAIN: dict[str, Any] = {"integer": 7, "number": 1.5, "boolean": True, "array": [], "null": None}


def fill_schema(schema: dict[str, Any], text: str) -> Any:
    """Return a value for the schema's required fields; strings are the user's text."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = str(schema.get("type", "object")).lower()
    if kind == "string":
        return text
    if kind != "object":
        return _PLAIN.get(kind)
    properties: dict[str, Any] = schema.get("properties") or {}
    names = schema.get("required", list(properties))
    return {name: fill_schema(properties.get(name, {"type": "string"}), text) for name in names}


def _content_text(content: Any) -> str:
    """Return the text of a content field, a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _chat(body: dict[str, Any]) -> ModelInput:
    model_input = ModelInput(include_usage=bool((body.get("stream_options") or {}).get("include_usage")))
    for message in body["messages"]:
        if message["role"] == "user":
            model_input.start_turn(_content_text(message["content"]))
        elif message["role"] == "tool":
            model_input.results.append(_content_text(message["content"]))
    if body.get("tool_choice") != "none":
        for tool in body.get("tools") or ():
            function = tool.get("function") or tool.get("custom") or {}
            custom = tool["type"] == "custom"
            model_input.tools.append(OfferedTool(function["name"], function.get("parameters") or {}, custom))
    return model_input


def _messages(body: dict[str, Any]) -> ModelInput:
    model_input = ModelInput()
    for message in body["messages"]:
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        results = [block for block in blocks if block["type"] == "tool_result"]
        if results:
            model_input.results.extend(_content_text(block.get("content")) for block in results)
        elif message["role"] == "user":
            model_input.start_turn(_content_text(content))
    if (body.get("tool_choice") or {}).get("type") != "none":
        tools = body.get("tools") or ()
        model_input.tools = [OfferedTool(t["name"], t["input_schema"]) for t in tools if "input_schema" in t]
    return model_input


def _responses(body: dict[str, Any]) -> ModelInput:
    model_input = ModelInput()
    items = body["input"]
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            model_input.results.append(_content_text(item["output"]))
        elif item.get("role") == "user":
            model_input.start_turn(_content_text(item["content"]))
    if body.get("tool_choice") != "none":
        tools = [tool for tool in body.get("tools") or () if tool["type"] in ("function", "custom")]
        model_input.tools = [
            OfferedTool(t["name"], t.get("parameters") or {}, t["type"] == "custom") for t in tools
        ]
    return model_input


def _gemini(body: dict[str, Any]) -> ModelInput:
    model_input = ModelInput()
    contents = body["contents"]
    for content in contents if isinstance(contents, list) else [contents]:
        parts = content["parts"] if isinstance(content["parts"], list) else [content["parts"]]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if results:
            model_input.results.extend(_gemini_result(result.get("response") or {}) for result in results)
        elif content.get("role", "user") == "user":
            model_input.start_turn(_content_text(parts))
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if config.get("mode") != "NONE":
        for tool in body.get("tools") or ():
            for function in tool.get("functionDeclarations") or ():
                schema = function.get("parameters") or function.get("parametersJsonSchema") or {}
                model_input.tools.append(OfferedTool(function["name"], schema))
    return model_input


def _gemini_result(response: dict[str, Any]) -> str:
    value = response.get("output", response.get("result", response))
    return value if isinstance(value, str) else str(value)


_READERS: dict[str, Callable[[dict[str, Any]], ModelInput]] = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
    "gemini": _gemini,
}
