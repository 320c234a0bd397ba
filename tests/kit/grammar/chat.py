"""The grammar of a chat completions stream.

chunk* with role first, one finish_reason per choice, then the usage chunk exactly if requested, then [DONE].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.kit.grammar.frames import (
    Frame,
    need,
    need_count,
    need_error,
    need_json_object,
    need_one_of,
    need_text,
    read,
)

FINISH = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


@dataclass(slots=True)
class _Call:
    id: str
    type: str
    text: str = ""


@dataclass(slots=True)
class _Choice:
    """One choice while its deltas arrive."""

    calls: list[_Call] = field(default_factory=list)
    finish: str | None = None

    def delta(self, delta: dict[str, Any], *, at: Frame) -> None:
        for key in ("content", "refusal", "reasoning_content"):
            if delta.get(key) is not None:
                need(delta, key, str, at=at)
        if delta.get("tool_calls") is not None:
            for entry in need(delta, "tool_calls", list, at=at):
                self._call(entry, at=at)

    def _call(self, entry: dict[str, Any], *, at: Frame) -> None:
        index = need(entry, "index", int, at=at)
        assert 0 <= index <= len(self.calls), f"{at}: tool call index {index} after {len(self.calls)} calls"
        if index == len(self.calls):
            self._open(entry, at=at)
        else:
            self._continued(entry, at=at)
        body = entry.get("function") or entry.get("custom") or {}
        self.calls[index].text += body.get("arguments") or body.get("input") or ""

    def _open(self, entry: dict[str, Any], *, at: Frame) -> None:
        kind = need_one_of(entry, "type", frozenset({"function", "custom"}), at=at)
        call = _Call(need_text(entry, "id", at=at), kind)
        assert call.id not in {c.id for c in self.calls}, f"{at}: tool call id {call.id!r} used twice"
        body = need(entry, kind, dict, at=at)
        need_text(body, "name", at=at)
        need(body, "arguments" if kind == "function" else "input", str, at=at)
        self.calls.append(call)

    def _continued(self, entry: dict[str, Any], *, at: Frame) -> None:
        # Clients concatenate repeated fields: an id or a name sent again would be doubled.
        assert not entry.get("id"), f"{at}: the id of a tool call is sent again"
        assert not (entry.get("function") or {}).get("name"), f"{at}: the name of a tool call is sent again"

    def end(self, reason: str, *, at: Frame) -> None:
        self.finish = reason
        if reason == "tool_calls":
            assert self.calls, f"{at}: finish_reason tool_calls without any tool call"
            for call in self.calls:
                if call.type == "function":
                    need_json_object(call.text, at=f"tool call {call.id}")
        elif self.calls:
            assert reason == "length", f"{at}: finish_reason {reason!r} though there are tool calls"


class _Stream:
    """Checks the chunks of one stream one by one."""

    def __init__(self, *, include_usage: bool) -> None:
        self.include_usage = include_usage
        self.head: tuple[str, int, str] | None = None
        self.choices: dict[int, _Choice] = {}
        self.usage = False

    @property
    def finished(self) -> bool:
        return bool(self.choices) and all(choice.finish for choice in self.choices.values())

    def chunk(self, chunk: dict[str, Any], *, at: Frame) -> None:
        assert not self.usage, f"{at}: a chunk after the usage chunk"
        self._head(chunk, at=at)
        choices = need(chunk, "choices", list, at=at)
        if not choices:
            self._usage(chunk, at=at)
            return
        counted = chunk.get("usage") is not None
        # Mistral and others send usage with the finish or in every chunk; it stays there if not requested.
        assert not (counted and self.include_usage), f"{at}: usage in a chunk with choices"
        for choice in choices:
            if not (counted and choice.get("delta") == {} and choice.get("finish_reason") is None):
                self._choice(choice, at=at)

    def _head(self, chunk: dict[str, Any], *, at: Frame) -> None:
        need_one_of(chunk, "object", frozenset({"chat.completion.chunk"}), at=at)
        created = need(chunk, "created", int, at=at)
        head = (need_text(chunk, "id", at=at), created, need_text(chunk, "model", at=at))
        assert self.head in (None, head), f"{at}: id, created, model {head} are not the first's {self.head}"
        self.head = head

    def _choice(self, choice: dict[str, Any], *, at: Frame) -> None:
        index = need(choice, "index", int, at=at)
        delta = need(choice, "delta", dict, at=at)
        known = self.choices.get(index)
        if known is None:
            known = self.choices[index] = _Choice()
            assert delta.get("role") == "assistant", f"{at}: the first delta has no role"
        assert known.finish is None, f"{at}: choice {index} goes on after its finish_reason"
        known.delta(delta, at=at)
        if choice.get("finish_reason") is not None:
            known.end(need_one_of(choice, "finish_reason", FINISH, at=at), at=at)

    def _usage(self, chunk: dict[str, Any], *, at: Frame) -> None:
        assert self.finished, f"{at}: the usage chunk comes before the finish_reason"
        check_usage(need(chunk, "usage", dict, at=at), at=at)
        self.usage = True


def check_usage(usage: dict[str, Any], *, at: object) -> None:
    """Check that the token counts of a chat answer add up."""
    prompt = need_count(usage, "prompt_tokens", at=at)
    completion = need_count(usage, "completion_tokens", at=at)
    total = need_count(usage, "total_tokens", at=at)
    assert total == prompt + completion, f"{at}: total_tokens {total} is not {prompt} + {completion}"


def check_chat(body: bytes, *, include_usage: bool) -> None:
    """Check a complete stream; the usage chunk is there exactly when requested."""
    frames = read(body)
    assert frames, "an empty stream"
    assert frames[-1].data == "[DONE]", f"the last frame is not [DONE]: {frames[-1]}"
    stream = _Stream(include_usage=include_usage)
    for frame in frames[:-1]:
        _check_frame(stream, frame)
    assert stream.choices, "no choice in any chunk"
    for index, choice in stream.choices.items():
        assert choice.finish, f"choice {index} has no finish_reason"
    assert stream.usage == include_usage, f"usage chunk: {stream.usage}, requested: {include_usage}"


def _check_frame(stream: _Stream, frame: Frame) -> None:
    assert not frame.event, f"{frame}: chat has no event lines"
    assert frame.data != "[DONE]", f"{frame}: [DONE] is not last"
    chunk = frame.json
    assert "error" not in chunk, f"{frame}: an error in a stream that should be complete"
    stream.chunk(chunk, at=frame)


def check_broken_chat(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: chunks, an error chunk (none if `aborted`), no finish, no [DONE]."""
    frames = read(body)
    assert "[DONE]" not in {frame.data for frame in frames}, "a broken stream ends with [DONE]"
    if not aborted:
        assert frames, "an empty stream"
        last = frames.pop()
        error = need(last.json, "error", dict, at=last)
        need_text(error, "type", at=last)
        need_error(error, at=last)
    stream = _Stream(include_usage=False)
    for frame in frames:
        _check_frame(stream, frame)
    for index, choice in stream.choices.items():
        assert choice.finish is None, f"choice {index} of a broken stream has a finish_reason"
