"""Requests and answers of every protocol in which one list has `n` entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.growing import chat, gemini, messages, responses
from tests.kit.growing.shapes import Fields, Grow, GrowStream, compose

_TAG = "<**help-me-{}**> "


def _properties(n: int) -> Fields:
    return {"type": "object", "properties": {f"p{k}": {"type": "string", "minLength": k} for k in range(n)}}


def _any_of(n: int) -> Fields:
    choice = {"anyOf": [{"type": "object", "properties": {f"p{k}": {"type": "string"}}} for k in range(n)]}
    return {"type": "object", "properties": {"a": choice}}


def _enum(n: int) -> Fields:
    return {"type": "object", "properties": {"a": {"type": "string", "enum": [f"v{k}" for k in range(n)]}}}


def _required(n: int) -> Fields:
    return {**_properties(n), "required": [f"p{k}" for k in range(n)]}


def _definitions(n: int) -> Fields:
    fields = {f"p{k}": {"$ref": f"#/$defs/d{k}"} for k in range(n)}
    return {"type": "object", "properties": fields, "$defs": {f"d{k}": {"type": "string"} for k in range(n)}}


_SCHEMAS: dict[str, Callable[[int], Fields]] = {
    "schema properties": _properties,
    "schema anyOf": _any_of,
    "schema enum": _enum,
    "schema required": _required,
    "schema definitions": _definitions,
}
_TEXTS: dict[str, Callable[[int], str]] = {
    "instruction tags": lambda n: "".join(map(_TAG.format, range(n))),
    "unclosed tags": lambda n: "<**" * n,
    "quoted tags": lambda n: "`<**a**>` " * n,
    "envelopes": lambda n: "<system-reminder>note</system-reminder> word " * n,
    "open envelopes": lambda n: "<system-reminder> word " * n,
    "closed envelopes": lambda n: "</system-reminder> word " * n,
    "lines": lambda n: "> quoted\n```\nword\n" * n,
}
_TAGGED = "<**help-me**> "
"""Makes the gateway search the texts for instructions."""


_REQUESTS: dict[str, type[Any]] = {
    "chat": chat.Requests,
    "responses": responses.Requests,
    "messages": messages.Requests,
    "gemini": gemini.Requests,
}
_ANSWERS: dict[str, type[Any]] = {
    "chat": chat.Answers,
    "responses": responses.Answers,
    "messages": messages.Answers,
    "gemini": gemini.Answers,
}
_PLAIN_STREAMS = {
    "chat": chat.Answers.stream([{"content": "word"}]),
    "responses": responses.Answers.items([responses.Answers.message(0)]),
    "messages": messages.Answers.stream(messages.Answers.text(0)),
    "gemini": gemini.Answers.stream([[{"text": "word"}]]),
}


def _shared(name: str, requests: type[Any]) -> dict[str, Grow]:
    """Return what grows in the same way in every protocol: schemas of tools, and the user's text."""

    def with_schema(schema: Fields) -> Fields:
        return dict(requests.make([requests.user()], tools=[requests.tool("f", schema)]))

    def with_text(text: str) -> Fields:
        content = [{"text": _TAGGED + text}] if name == "gemini" else _TAGGED + text
        return dict(requests.make([requests.user(content)]))

    schemas = {kind: compose(with_schema, schema) for kind, schema in _SCHEMAS.items()}
    return schemas | {kind: compose(with_text, text) for kind, text in _TEXTS.items()}


def _frame_oddities(text: list[bytes]) -> dict[str, GrowStream]:
    """Return lists of SSE lines, the same in every protocol; `text` is a plain stream."""
    return {
        "comment lines": lambda n: [b": ping\n" * n + b"\n", *text],
        "comments": lambda n: [*[b": ping\n\n"] * n, *text],
        "empty lines": lambda n: [b"\n" * n, *text],
        "unknown fields of a frame": lambda n: [b"x-field: 1\n" * n + text[0], *text[1:]],
        "pieces of a frame": lambda n: [b'data: {"x":"', *[b"0123456789"] * n, b'"}\n\n', *text],
        "byte by byte": lambda n: [
            bytes([byte]) for part in [b": " + b"x" * n + b"\n\n", *text] for byte in part
        ],
    }


REQUESTS: dict[str, dict[str, Grow]] = {
    name: {**_shared(name, requests), **requests.table()} for name, requests in _REQUESTS.items()
}
"""By protocol and kind: the body of a request whose list of this kind has `n` entries."""

STREAMS: dict[str, dict[str, GrowStream]] = {
    name: {**_frame_oddities(_PLAIN_STREAMS[name]), **answers.streams()} for name, answers in _ANSWERS.items()
}
"""By protocol and kind: the writes of a stream whose list of this kind has `n` entries."""

WHOLES: dict[str, dict[str, Grow]] = {name: answers.wholes() for name, answers in _ANSWERS.items()}
"""By protocol and kind: a whole answer whose list of this kind has `n` entries."""
