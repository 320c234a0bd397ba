"""The shape of answers that are not streamed, and of error envelopes."""

from __future__ import annotations

from typing import Any

import msgspec

from routecodex.protocols.grammar import gemini, messages, responses
from routecodex.protocols.grammar.chat import FINISH, check_usage
from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    need,
    need_error,
    need_json_object,
    need_objects,
    need_one_of,
    need_text,
)


def _object(body: bytes, *, at: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as exc:
        raise GrammarViolation(f"{at}: not JSON: {body[:160]!r}") from exc
    if not isinstance(value, dict):
        raise GrammarViolation(f"{at}: not a JSON object: {body[:160]!r}")
    return value


def _chat(value: dict[str, Any], at: str) -> None:
    need_text(value, "id", at=at)
    need_one_of(value, "object", frozenset({"chat.completion"}), at=at)
    need(value, "created", int, at=at)
    need_text(value, "model", at=at)
    choices = need_objects(value, "choices", at=at)
    if not choices:
        raise GrammarViolation(f"{at}: no choices")
    for position, choice in enumerate(choices):
        if need(choice, "index", int, at=at) != position:
            raise GrammarViolation(f"{at}: choice {position} has another index")
        _chat_choice(choice, at)
    check_usage(need(value, "usage", dict, at=at), at=at)


def _chat_choice(choice: dict[str, Any], at: str) -> None:
    reason = need_one_of(choice, "finish_reason", FINISH, at=at)
    message = need(choice, "message", dict, at=at)
    need_one_of(message, "role", frozenset({"assistant"}), at=at)
    need(message, "content", (str, type(None)), at=at)
    calls = need_objects(message, "tool_calls", at=at) if message.get("tool_calls") else []
    ids = [need_text(call, "id", at=at) for call in calls]
    if len(ids) != len(set(ids)):
        raise GrammarViolation(f"{at}: tool call ids used twice: {ids}")
    if reason == "tool_calls":
        if not calls:
            raise GrammarViolation(f"{at}: finish_reason tool_calls without any tool call")
    elif calls and reason != "length":
        raise GrammarViolation(f"{at}: finish_reason {reason!r} though there are tool calls")
    for call in calls:
        _chat_call(call, whole=reason == "tool_calls", at=at)


def _chat_call(call: dict[str, Any], *, whole: bool, at: str) -> None:
    kind = need_one_of(call, "type", frozenset({"function", "custom"}), at=at)
    body = need(call, kind, dict, at=at)
    need_text(body, "name", at=at)
    if kind == "custom":
        need(body, "input", str, at=at)
        return
    arguments = need(body, "arguments", str, at=at)
    if whole:
        need_json_object(arguments, at=at)


def _messages(value: dict[str, Any], at: str) -> None:
    messages.check_head(value, at=at)
    reason = need_one_of(value, "stop_reason", messages.STOP, at=at)
    need(value, "stop_sequence", (str, type(None)), at=at)
    blocks = need_objects(value, "content", at=at)
    for block in blocks:
        _block(block, at)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    ids = [block["id"] for block in calls]
    if len(ids) != len(set(ids)):
        raise GrammarViolation(f"{at}: tool ids used twice: {ids}")
    messages.check_stop(reason, ["" for _ in calls], at=at)


_BLOCK_TEXTS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def _block(block: dict[str, Any], at: str) -> None:
    kind = need_text(block, "type", at=at)
    for key in _BLOCK_TEXTS.get(kind, ()):
        need(block, key, str, at=at)
    if kind == "tool_use":
        need_text(block, "id", at=at)
        need_text(block, "name", at=at)
        need(block, "input", dict, at=at)


def _responses(value: dict[str, Any], at: str) -> None:
    responses.check_head(value, at=at)
    need_one_of(value, "status", frozenset({"completed", "incomplete"}), at=at)
    responses.check_end(value, at=at)


def _gemini(value: dict[str, Any], at: str) -> None:
    gemini.check_whole(value, at=at)


_BODIES = {"chat": _chat, "messages": _messages, "responses": _responses, "gemini": _gemini}


def check_json(protocol: str, body: bytes) -> None:
    """Check a whole answer that was not streamed."""
    at = f"the {protocol} answer"
    _BODIES[protocol](_object(body, at=at), at)


def _openai_error(value: dict[str, Any], _status: int, *, at: str) -> None:
    error = need(value, "error", dict, at=at)
    need_text(error, "type", at=at)
    need(error, "param", (str, type(None)), at=at)
    need(error, "code", (str, type(None)), at=at)
    need_error(error, at=at)


def _messages_error(value: dict[str, Any], _status: int, *, at: str) -> None:
    messages.check_error_object(value, at=at)


def _gemini_error(value: dict[str, Any], status: int, *, at: str) -> None:
    code = gemini.check_error_object(value, at=at)
    if code != status:
        raise GrammarViolation(f"{at}: the envelope's code {code} is not the status {status}")


_ERRORS = {
    "chat": _openai_error,
    "responses": _openai_error,
    "messages": _messages_error,
    "gemini": _gemini_error,
}


def check_error(protocol: str, status: int, body: bytes) -> None:
    """Check an error in the protocol's envelope; the gateway adds `code` and `details` at the top level."""
    at = f"the {protocol} error {status}"
    if not 400 <= status <= 599:
        raise GrammarViolation(f"{at}: not an error status")
    value = _object(body, at=at)
    _ERRORS[protocol](value, status, at=at)
    if "code" in value:
        need(value, "code", (str, type(None)), at=at)
    if "details" in value:
        need(value, "details", (dict, type(None)), at=at)
