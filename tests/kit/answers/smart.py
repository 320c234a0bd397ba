"""A model in a tool loop: reads requests off each wire and decides what to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.kit.answers.said import Call, Piece, Said, Words
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool on offer."""

    name: str
    schema: dict[str, Any]
    custom: bool = False


@dataclass(slots=True)
class Seen:
    """What the model makes of a request: the last user text, or the results after it."""

    text: str = ""
    results: list[str] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    include_usage: bool = True

    def user(self, text: str) -> None:
        """A user's text: what came before is history."""
        self.text, self.results = text, []


Put: TypeAlias = Callable[[str, Said, bool], Json | Sse]


def smart_with(protocol: str, put: Put) -> Callable[[Request], Json | Sse]:
    """The script, given how to put what is said on the wire."""

    def answer(request: Request) -> Json | Sse:
        seen = _READERS[protocol](request.json)
        model = request.json.get("model") or ""
        said = Said((_decide(seen),), model=model, include_usage=seen.include_usage)
        return put(protocol, said, wants_stream(request))

    return answer


def wants_stream(request: Request) -> bool:
    """Whether the request asks for a stream: by its body, on Gemini by its path."""
    return ":streamGenerateContent" in request.path or request.json.get("stream") is True


def _decide(seen: Seen) -> Piece:
    if seen.results:
        return Words("The tool says: " + " | ".join(seen.results))
    if not seen.offers:
        return Words(f"You said: {seen.text}")
    named = [offer for offer in seen.offers if offer.name in seen.text]
    offer = (named or seen.offers)[0]
    if offer.custom:
        return Call(offer.name, seen.text, custom=True)
    return Call(offer.name, fill(offer.schema, seen.text))


_PLAIN: dict[str, Any] = {"integer": 7, "number": 1.5, "boolean": True, "array": [], "null": None}


def fill(schema: dict[str, Any], text: str) -> Any:
    """A value for the schema's required fields; strings are the user's text."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = str(schema.get("type", "object")).lower()
    if kind == "string":
        return text
    if kind != "object":
        return _PLAIN.get(kind)
    properties: dict[str, Any] = schema.get("properties") or {}
    names = schema.get("required", list(properties))
    return {name: fill(properties.get(name, {"type": "string"}), text) for name in names}


def _words(content: Any) -> str:
    """The text in a content field, whatever its shape."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _chat(body: dict[str, Any]) -> Seen:
    seen = Seen(include_usage=bool((body.get("stream_options") or {}).get("include_usage")))
    for message in body["messages"]:
        if message["role"] == "user":
            seen.user(_words(message["content"]))
        elif message["role"] == "tool":
            seen.results.append(_words(message["content"]))
    if body.get("tool_choice") != "none":
        for tool in body.get("tools") or ():
            function = tool.get("function") or tool.get("custom") or {}
            custom = tool["type"] == "custom"
            seen.offers.append(Offer(function["name"], function.get("parameters") or {}, custom))
    return seen


def _messages(body: dict[str, Any]) -> Seen:
    seen = Seen()
    for message in body["messages"]:
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        results = [block for block in blocks if block["type"] == "tool_result"]
        if results:
            seen.results.extend(_words(block.get("content")) for block in results)
        elif message["role"] == "user":
            seen.user(_words(content))
    if (body.get("tool_choice") or {}).get("type") != "none":
        tools = body.get("tools") or ()
        seen.offers = [Offer(t["name"], t["input_schema"]) for t in tools if "input_schema" in t]
    return seen


def _responses(body: dict[str, Any]) -> Seen:
    seen = Seen()
    items = body["input"]
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            seen.results.append(_words(item["output"]))
        elif item.get("role") == "user":
            seen.user(_words(item["content"]))
    if body.get("tool_choice") != "none":
        tools = [tool for tool in body.get("tools") or () if tool["type"] in ("function", "custom")]
        seen.offers = [Offer(t["name"], t.get("parameters") or {}, t["type"] == "custom") for t in tools]
    return seen


def _gemini(body: dict[str, Any]) -> Seen:
    seen = Seen()
    contents = body["contents"]
    for content in contents if isinstance(contents, list) else [contents]:
        parts = content["parts"] if isinstance(content["parts"], list) else [content["parts"]]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if results:
            seen.results.extend(_gemini_result(result.get("response") or {}) for result in results)
        elif content.get("role", "user") == "user":
            seen.user(_words(parts))
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if config.get("mode") != "NONE":
        for tool in body.get("tools") or ():
            for function in tool.get("functionDeclarations") or ():
                schema = function.get("parameters") or function.get("parametersJsonSchema") or {}
                seen.offers.append(Offer(function["name"], schema))
    return seen


def _gemini_result(response: dict[str, Any]) -> str:
    value = response.get("output", response.get("result", response))
    return value if isinstance(value, str) else str(value)


_READERS: dict[str, Callable[[dict[str, Any]], Seen]] = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
    "gemini": _gemini,
}
