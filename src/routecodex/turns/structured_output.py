"""Structured output: the answer as a dataclass, a msgspec Struct, a TypedDict or a pydantic model.

The schema is sent as `response_format`, which the codecs express in every protocol. The answer is checked in
any case: not every provider enforces the schema, and some ignore it. An answer that does not fit is returned
to the model with the reason and the schema, a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.errors import OutputInvalid
from routecodex.turns.json_types import convert, schema_of
from routecodex.turns.message import Message

T = TypeVar("T")

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)```\s*", re.DOTALL | re.IGNORECASE)
"""A Markdown code block as the whole answer: models write it where the endpoint ignores `response_format`."""

_CORRECTION = (
    "Your answer is not valid: {reason}\n"
    "Answer again, with nothing but a JSON object that matches this schema:\n{schema}"
)


class OutputSchema(Generic[T]):
    """The JSON form of an `output_type`: its schema, and values from the text of answers."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.name = _NOT_IN_A_NAME.sub("_", getattr(kind, "__name__", str(kind)))[:64]
        self.schema = _object_schema(kind)

    def response_format(self) -> dict[str, Any]:
        """Return the request parameter; strict wherever the schema allows it."""
        strict = strict_schema(self.schema)
        schema = self.schema if strict is None else strict
        body = {"name": self.name, "schema": schema, "strict": strict is not None}
        return {"type": "json_schema", "json_schema": body}

    def read(self, text: str) -> T:
        """Return the value in the text of an answer; raise ValueError saying what is wrong."""
        fenced = _FENCED.fullmatch(text)
        if not text.strip():
            raise ValueError("it is empty")
        try:
            value = msgspec.json.decode(fenced[1] if fenced else text)
        except (msgspec.DecodeError, UnicodeEncodeError) as exc:
            raise ValueError(f"it is not JSON ({exc})") from exc
        return convert(value, self.kind)


class OutputCheck(Generic[T]):
    """A plugin for one turn: asks for the format and checks the answers; `output` is the last valid one."""

    def __init__(self, schema: OutputSchema[T], *, max_retries: int) -> None:
        self.output: T | None = None
        self._schema = schema
        self._valid = False
        self._left = self._max_retries = max_retries

    def on_before_request(self, turn: ChatTurn) -> None:
        turn.request_body["response_format"] = self._schema.response_format()

    def on_after_request(self, turn: ChatTurn) -> None:
        self.output, self._valid = None, False
        message = turn.current_message
        if message.tool_calls or turn.will_request:
            return  # this answer is not the last one, or on_turn_end reports it
        try:
            self.output, self._valid = self._schema.read(_text(message)), True
        except ValueError as exc:
            self._ask_again(turn, message, str(exc))

    def on_turn_end(self, turn: ChatTurn) -> None:
        if not self._valid and not turn.aborted:
            raise self._error(turn.current_message, "it calls tools that no plugin runs; add a ToolPlugin")

    def _ask_again(self, turn: ChatTurn, message: Message, reason: str) -> None:
        for applies, explanation in _FINAL:
            if applies(message):
                raise self._error(message, explanation)
        if not self._left:
            raise self._error(message, reason)
        self._left -= 1
        schema = msgspec.json.encode(self._schema.schema).decode()
        turn.append_and_request(Message("user", _CORRECTION.format(reason=reason, schema=schema)))

    def _error(self, message: Message, reason: str) -> OutputInvalid:
        retries = self._max_retries - self._left
        after = f" after {retries} corrections" if retries else ""
        return OutputInvalid(
            f"the answer is not a valid {self._schema.name}{after}: {reason}", answer=_text(message)
        )


_FINAL: tuple[tuple[Callable[[Message], Any], str], ...] = (
    (lambda message: getattr(message, "refusal", None), "the model refused to answer"),
    (
        lambda message: message.metadata.get("finish_reason") == "length",
        "the token limit cut it off; raise max_tokens or add LengthContinuation",
    ),
    (
        lambda message: message.metadata.get("finish_reason") == "content_filter",
        "the content filter of the provider cut it off",
    ),
)
"""Answers that the same question would get again."""


def _text(message: Message) -> str:
    content = message.content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _object_schema(kind: Any) -> dict[str, Any]:
    try:
        schema = schema_of(kind)
    except (TypeError, NameError) as exc:
        raise TypeError(f"output_type {kind!r} has no JSON schema: {exc}") from exc
    if schema.get("type") != "object" or "properties" not in schema:
        raise TypeError(
            f"output_type {kind!r} is not an object with fields; "
            "use a dataclass, a msgspec Struct, a TypedDict or a pydantic model"
        )
    return schema


# OpenAI, "Structured Outputs", supported schemas: other keywords are rejected in strict mode.
_STRICT_KEYS = frozenset(
    {
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format"),
    }
)
_STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_DROPPED = frozenset({"default", "discriminator"})
"""Annotations that strict mode rejects and that the answer does not depend on."""

_SAYS_TYPE = frozenset({"type", "anyOf", "$ref", "enum", "const"})


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema in the strict form of OpenAI; None if it has none, as with free-form mappings.

    Strict mode requires every field, so a field with a default is required of the model too.
    """
    node = {key: value for key, value in schema.items() if key not in _DROPPED}
    if not node.keys() <= _STRICT_KEYS or not node.keys() & _SAYS_TYPE:
        return None
    if node.get("format", "date") not in _STRICT_FORMATS:
        return None
    if node.get("type") == "object":
        if not node.get("properties") or node.get("additionalProperties"):
            return None
        node |= {"required": list(node["properties"]), "additionalProperties": False}
    if node.get("type") == "array" and "items" not in node:
        return None
    return _strict_children(node)


def _strict_children(node: dict[str, Any]) -> dict[str, Any] | None:
    for key in ("properties", "$defs"):
        if key in node:
            node[key] = {name: strict_schema(inner) for name, inner in node[key].items()}
            if None in node[key].values():
                return None
    if "anyOf" in node:
        node["anyOf"] = [strict_schema(inner) for inner in node["anyOf"]]
        if None in node["anyOf"]:
            return None
    if "items" in node:
        node["items"] = strict_schema(node["items"]) if isinstance(node["items"], dict) else None
        if node["items"] is None:
            return None
    return node
