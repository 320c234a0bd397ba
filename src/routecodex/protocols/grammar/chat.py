"""The grammar of a chat completions stream.

chunk* with role first, one finish_reason per choice, then the usage chunk exactly if requested, then [DONE].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    ServedFrame,
    need,
    need_count,
    need_error,
    need_json_object,
    need_objects,
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

    def delta(self, delta: dict[str, Any], *, at: ServedFrame) -> None:
        for key in ("content", "refusal", "reasoning_content"):
            if delta.get(key) is not None:
                need(delta, key, str, at=at)
        if delta.get("tool_calls") is not None:
            for entry in need_objects(delta, "tool_calls", at=at):
                self._call(entry, at=at)

    def _call(self, entry: dict[str, Any], *, at: ServedFrame) -> None:
        index = need(entry, "index", int, at=at)
        if not 0 <= index <= len(self.calls):
            raise GrammarViolation(f"{at}: tool call index {index} after {len(self.calls)} calls")
        if index == len(self.calls):
            self._open(entry, at=at)
        else:
            self._continued(entry, at=at)
        self.calls[index].text += _input_text(entry, at=at)

    def _open(self, entry: dict[str, Any], *, at: ServedFrame) -> None:
        kind = need_one_of(entry, "type", frozenset({"function", "custom"}), at=at)
        call = _Call(need_text(entry, "id", at=at), kind)
        if call.id in {c.id for c in self.calls}:
            raise GrammarViolation(f"{at}: tool call id {call.id!r} used twice")
        body = need(entry, kind, dict, at=at)
        need_text(body, "name", at=at)
        need(body, "arguments" if kind == "function" else "input", str, at=at)
        self.calls.append(call)

    def _continued(self, entry: dict[str, Any], *, at: ServedFrame) -> None:
        # Clients concatenate repeated fields: an id or a name sent again would be doubled.
        if entry.get("id"):
            raise GrammarViolation(f"{at}: the id of a tool call is sent again")
        function = need(entry, "function", dict, at=at) if entry.get("function") else {}
        if function.get("name"):
            raise GrammarViolation(f"{at}: the name of a tool call is sent again")

    def end(self, reason: str, *, at: ServedFrame) -> None:
        self.finish = reason
        if reason == "tool_calls":
            if not self.calls:
                raise GrammarViolation(f"{at}: finish_reason tool_calls without any tool call")
            for call in self.calls:
                if call.type == "function":
                    need_json_object(call.text, at=f"tool call {call.id}")
        elif self.calls and reason != "length":
            raise GrammarViolation(f"{at}: finish_reason {reason!r} though there are tool calls")


def _input_text(entry: dict[str, Any], *, at: ServedFrame) -> str:
    for kind, name in (("function", "arguments"), ("custom", "input")):
        body = need(entry, kind, dict, at=at) if entry.get(kind) else {}
        if body.get(name):
            return need_text(body, name, at=at)
    return ""


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

    def chunk(self, chunk: dict[str, Any], *, at: ServedFrame) -> None:
        if self.usage:
            raise GrammarViolation(f"{at}: a chunk after the usage chunk")
        self._head(chunk, at=at)
        choices = need_objects(chunk, "choices", at=at)
        if not choices:
            self._usage(chunk, at=at)
            return
        counted = chunk.get("usage") is not None
        # Mistral and others send usage with the finish or in every chunk; it stays there if not requested.
        if counted and self.include_usage:
            raise GrammarViolation(f"{at}: usage in a chunk with choices")
        for choice in choices:
            if not (counted and choice.get("delta") == {} and choice.get("finish_reason") is None):
                self._choice(choice, at=at)

    def _head(self, chunk: dict[str, Any], *, at: ServedFrame) -> None:
        need_one_of(chunk, "object", frozenset({"chat.completion.chunk"}), at=at)
        created = need(chunk, "created", int, at=at)
        head = (need_text(chunk, "id", at=at), created, need_text(chunk, "model", at=at))
        if self.head not in (None, head):
            raise GrammarViolation(f"{at}: id, created, model {head} are not the first's {self.head}")
        self.head = head

    def _choice(self, choice: dict[str, Any], *, at: ServedFrame) -> None:
        index = need(choice, "index", int, at=at)
        delta = need(choice, "delta", dict, at=at)
        known = self.choices.get(index)
        if known is None:
            known = self.choices[index] = _Choice()
            if delta.get("role") != "assistant":
                raise GrammarViolation(f"{at}: the first delta has no role")
        if known.finish is not None:
            raise GrammarViolation(f"{at}: choice {index} goes on after its finish_reason")
        known.delta(delta, at=at)
        if choice.get("finish_reason") is not None:
            known.end(need_one_of(choice, "finish_reason", FINISH, at=at), at=at)

    def _usage(self, chunk: dict[str, Any], *, at: ServedFrame) -> None:
        if not self.finished:
            raise GrammarViolation(f"{at}: the usage chunk comes before the finish_reason")
        check_usage(need(chunk, "usage", dict, at=at), at=at)
        self.usage = True


def check_usage(usage: dict[str, Any], *, at: object) -> None:
    """Check that the token counts of a chat answer add up."""
    prompt = need_count(usage, "prompt_tokens", at=at)
    completion = need_count(usage, "completion_tokens", at=at)
    total = need_count(usage, "total_tokens", at=at)
    if total != prompt + completion:
        raise GrammarViolation(f"{at}: total_tokens {total} is not {prompt} + {completion}")


def check_chat(body: bytes, *, include_usage: bool) -> None:
    """Check a complete stream; the usage chunk is there exactly when requested."""
    frames = read(body)
    if not frames:
        raise GrammarViolation("an empty stream")
    if frames[-1].data != "[DONE]":
        raise GrammarViolation(f"the last frame is not [DONE]: {frames[-1]}")
    stream = _Stream(include_usage=include_usage)
    for frame in frames[:-1]:
        _check_frame(stream, frame)
    if not stream.choices:
        raise GrammarViolation("no choice in any chunk")
    for index, choice in stream.choices.items():
        if not choice.finish:
            raise GrammarViolation(f"choice {index} has no finish_reason")
    if stream.usage != include_usage:
        raise GrammarViolation(f"usage chunk: {stream.usage}, requested: {include_usage}")


def _check_frame(stream: _Stream, frame: ServedFrame) -> None:
    if frame.event:
        raise GrammarViolation(f"{frame}: chat has no event lines")
    if frame.data == "[DONE]":
        raise GrammarViolation(f"{frame}: [DONE] is not last")
    chunk = frame.json
    if "error" in chunk:
        raise GrammarViolation(f"{frame}: an error in a stream that should be complete")
    stream.chunk(chunk, at=frame)


def check_broken_chat(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: chunks, an error chunk (none if `aborted`), no finish, no [DONE]."""
    frames = read(body)
    if "[DONE]" in {frame.data for frame in frames}:
        raise GrammarViolation("a broken stream ends with [DONE]")
    if not aborted:
        if not frames:
            raise GrammarViolation("an empty stream")
        last = frames.pop()
        error = need(last.json, "error", dict, at=last)
        need_text(error, "type", at=last)
        need_error(error, at=last)
    stream = _Stream(include_usage=False)
    for frame in frames:
        _check_frame(stream, frame)
    for index, choice in stream.choices.items():
        if choice.finish is not None:
            raise GrammarViolation(f"choice {index} of a broken stream has a finish_reason")
