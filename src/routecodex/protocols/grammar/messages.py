"""The grammar of a messages stream.

message_start, then blocks one at a time (start, deltas of its kind, stop), message_delta, message_stop; a
tool turn may lack the last. A further message_delta repeats the stop reason with newer token counts.
"""

from __future__ import annotations

from typing import Any

from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    ServedFrame,
    need,
    need_count,
    need_error,
    need_json_object,
    need_one_of,
    need_text,
    read,
)

STOP = frozenset(
    {
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
        "compaction",
    }
)
ERRORS = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    }
)
_DELTAS: dict[str, dict[str, str]] = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
    "server_tool_use": {"input_json_delta": "partial_json"},
    "redacted_thinking": {},
}
_FIELDS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


class _Stream:
    """Checks the events of one stream one by one."""

    def __init__(self) -> None:
        self.started = False
        self.blocks = 0
        self.open: dict[str, Any] | None = None
        self.json = ""
        self.calls: list[tuple[str, str]] = []
        self.stop_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.stopped = False

    def take(self, frame: ServedFrame) -> None:
        event = frame.json
        kind = need_text(event, "type", at=frame)
        if frame.event != kind:
            raise GrammarViolation(f"{frame}: the event line is {frame.event!r}, the type {kind!r}")
        step = _STEPS.get(kind)
        if step is None:
            raise GrammarViolation(f"{frame}: unknown event type {kind!r}")
        if not self.started and kind != "message_start":
            raise GrammarViolation(f"{frame}: comes before message_start")
        if self.stopped:
            raise GrammarViolation(f"{frame}: comes after message_stop")
        if self.stop_reason is not None and kind not in ("message_stop", "message_delta"):
            raise GrammarViolation(f"{frame}: comes after message_delta")
        step(self, event, frame)

    def start(self, event: dict[str, Any], at: ServedFrame) -> None:
        if self.started:
            raise GrammarViolation(f"{at}: message_start a second time")
        message = need(event, "message", dict, at=at)
        check_head(message, at=at)
        if need(message, "content", list, at=at) != []:
            raise GrammarViolation(f"{at}: message_start has content")
        for key in ("stop_reason", "stop_sequence"):
            need(message, key, type(None), at=at)
        self.started = True

    def block_start(self, event: dict[str, Any], at: ServedFrame) -> None:
        if self.open is not None:
            raise GrammarViolation(f"{at}: block {self.blocks - 1} is still open")
        index = need(event, "index", int, at=at)
        if index != self.blocks:
            raise GrammarViolation(f"{at}: block index {index} after {self.blocks} blocks")
        block = need(event, "content_block", dict, at=at)
        kind = need_text(block, "type", at=at)
        for key in _FIELDS.get(kind, ()):
            need(block, key, str, at=at)
        if kind in ("tool_use", "server_tool_use"):
            need_text(block, "id", at=at)
            need_text(block, "name", at=at)
            if need(block, "input", dict, at=at) != {}:
                raise GrammarViolation(f"{at}: tool input belongs into deltas")
        self.open, self.json = block, ""
        self.blocks += 1

    def block_delta(self, event: dict[str, Any], at: ServedFrame) -> None:
        block = self._opened(event, at)
        delta = need(event, "delta", dict, at=at)
        kind = need_text(delta, "type", at=at)
        if kind == "citations_delta":
            if block["type"] != "text":
                raise GrammarViolation(f"{at}: a citation for a block of type {block['type']!r}")
            need(delta, "citation", dict, at=at)
            return
        allowed = _DELTAS.get(block["type"])
        if allowed is None:
            return
        if kind not in allowed:
            raise GrammarViolation(f"{at}: a {kind} for a block of type {block['type']!r}")
        text = need(delta, allowed[kind], str, at=at)
        if kind == "input_json_delta":
            self.json += text

    def block_stop(self, event: dict[str, Any], at: ServedFrame) -> None:
        block = self._opened(event, at)
        if block["type"] == "tool_use":
            if block["id"] in {name for name, _ in self.calls}:
                raise GrammarViolation(f"{at}: tool id {block['id']!r} twice")
            self.calls.append((block["id"], self.json))
        self.open = None

    def _opened(self, event: dict[str, Any], at: ServedFrame) -> dict[str, Any]:
        index = need(event, "index", int, at=at)
        if self.open is None:
            raise GrammarViolation(f"{at}: no block is open")
        if index != self.blocks - 1:
            raise GrammarViolation(f"{at}: block {index} is not the open one, {self.blocks - 1}")
        return self.open

    def delta(self, event: dict[str, Any], at: ServedFrame) -> None:
        if self.open is not None:
            raise GrammarViolation(f"{at}: message_delta while block {self.blocks - 1} is open")
        delta = need(event, "delta", dict, at=at)
        previous, self.stop_reason = self.stop_reason, need_one_of(delta, "stop_reason", STOP, at=at)
        if previous not in (None, self.stop_reason):
            raise GrammarViolation(f"{at}: another stop_reason")
        need(delta, "stop_sequence", (str, type(None)), at=at)
        previous_usage, self.usage = self.usage, need(event, "usage", dict, at=at)
        if previous_usage == self.usage:
            raise GrammarViolation(f"{at}: message_delta a second time")
        need_count(self.usage, "output_tokens", at=at)
        check_stop(self.stop_reason, [json for _, json in self.calls], at=at)

    def stop(self, _event: dict[str, Any], at: ServedFrame) -> None:
        if self.stop_reason is None:
            raise GrammarViolation(f"{at}: message_stop without message_delta")
        self.stopped = True

    def ping(self, _event: dict[str, Any], _at: ServedFrame) -> None:
        """Accept a ping anywhere after message_start."""


_STEPS = {
    "message_start": _Stream.start,
    "content_block_start": _Stream.block_start,
    "content_block_delta": _Stream.block_delta,
    "content_block_stop": _Stream.block_stop,
    "message_delta": _Stream.delta,
    "message_stop": _Stream.stop,
    "ping": _Stream.ping,
}


def check_head(message: dict[str, Any], *, at: object) -> None:
    """Check the fields that every message of an assistant has."""
    need_text(message, "id", at=at)
    need_text(message, "model", at=at)
    need_one_of(message, "type", frozenset({"message"}), at=at)
    need_one_of(message, "role", frozenset({"assistant"}), at=at)
    usage = need(message, "usage", dict, at=at)
    need_count(usage, "input_tokens", at=at)
    need_count(usage, "output_tokens", at=at)


def check_stop(reason: str, calls: list[str], *, at: object) -> None:
    """Check that stop reason and tool calls agree and that complete calls have complete input."""
    if reason == "tool_use":
        if not calls:
            raise GrammarViolation(f"{at}: stop_reason tool_use without any tool call")
        for text in calls:
            need_json_object(text, at=at)
    elif calls and reason != "max_tokens":
        raise GrammarViolation(f"{at}: stop_reason {reason!r} though there are tool calls")


def check_messages(body: bytes, *, message_stop_after_calls: bool | None = None) -> None:
    """Check a complete stream; None: a tool turn may end with or without a message_stop."""
    stream = _Stream()
    for frame in read(body):
        stream.take(frame)
    if not stream.started:
        raise GrammarViolation("an empty stream")
    if stream.stop_reason is None:
        raise GrammarViolation("no message_delta with a stop_reason")
    if stream.stop_reason != "tool_use":
        if not stream.stopped:
            raise GrammarViolation(f"a turn that ends with {stream.stop_reason!r} has no message_stop")
    elif message_stop_after_calls is not None and stream.stopped != message_stop_after_calls:
        raise GrammarViolation(f"tool turn: message_stop is {stream.stopped}")


def check_broken_messages(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: events, then an error event (none if `aborted`), no message_delta."""
    frames = read(body)
    if not aborted:
        if not frames:
            raise GrammarViolation("an empty stream")
        last = frames.pop()
        if last.event != "error":
            raise GrammarViolation(f"the last frame is not an error event: {last}")
        check_error_object(last.json, at=last)
    stream = _Stream()
    for frame in frames:
        stream.take(frame)
    if stream.stop_reason is not None:
        raise GrammarViolation("a broken stream has a stop_reason")


def check_error_object(value: dict[str, Any], *, at: object) -> None:
    """Check the envelope `{"type": "error", "error": {"type": …, "message": …}}`."""
    need_one_of(value, "type", frozenset({"error"}), at=at)
    error = need(value, "error", dict, at=at)
    need_one_of(error, "type", ERRORS, at=at)
    need_error(error, at=at)
