"""The grammar of a Gemini stream (`alt=sse`).

Unnamed data frames only, no comment and no [DONE]; finishReason in the last frame with candidates,
usageMetadata in the last frame.
"""

from __future__ import annotations

from typing import Any

from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    ServedFrame,
    need,
    need_count,
    need_error,
    need_objects,
    need_one_of,
    need_text,
    read,
)

FINISH = frozenset(
    {
        "STOP",
        "MAX_TOKENS",
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "OTHER",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MALFORMED_FUNCTION_CALL",
        "IMAGE_SAFETY",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "IMAGE_PROHIBITED_CONTENT",
        "NO_IMAGE",
        "IMAGE_RECITATION",
        "IMAGE_OTHER",
        "CONTINUATION",
        "MALFORMED_RESPONSE",
    }
)
STATUSES = frozenset(
    {
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
    }
)
_SNAKE_CASE = ("finish_reason", "usage_metadata", "model_version", "response_id", "prompt_feedback")
_PARTS = (
    "text",
    "functionCall",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
    "thoughtSignature",
    "toolCall",
    "toolResponse",
)


class _Stream:
    """Checks the frames of one stream one by one."""

    def __init__(self) -> None:
        self.head: tuple[str, str] | None = None
        self.finish: dict[int, str | None] = {}
        self.call_ids: set[str] = set()
        self.blocked = False

    def take(self, chunk: dict[str, Any], *, at: object) -> None:
        if "error" in chunk:
            raise GrammarViolation(f"{at}: an error in a stream that should be complete")
        for name in _SNAKE_CASE:
            if name in chunk:
                raise GrammarViolation(f"{at}: {name!r} is not camelCase")
        head = (need_text(chunk, "responseId", at=at), need_text(chunk, "modelVersion", at=at))
        if self.head not in (None, head):
            raise GrammarViolation(f"{at}: responseId, modelVersion {head} are not {self.head}")
        self.head = head
        self.blocked = self.blocked or _is_blocked(chunk, at=at)
        if "candidates" in chunk:
            for candidate in need_objects(chunk, "candidates", at=at):
                self._candidate(candidate, at=at)

    def _candidate(self, candidate: dict[str, Any], *, at: object) -> None:
        index = need(candidate, "index", int, at=at) if "index" in candidate else 0
        if self.finish.get(index) is not None:
            raise GrammarViolation(f"{at}: candidate {index} goes on after its finishReason")
        self.finish[index] = None
        if "content" in candidate:
            content = need(candidate, "content", dict, at=at)
            need_one_of(content, "role", frozenset({"model"}), at=at)
            for part in need_objects(content, "parts", at=at) if "parts" in content else ():
                self._part(part, at=at)
        if "finishReason" in candidate:
            self.finish[index] = need_one_of(candidate, "finishReason", FINISH, at=at)

    def _part(self, part: dict[str, Any], *, at: object) -> None:
        if not any(key in part for key in _PARTS):
            raise GrammarViolation(f"{at}: a part of unknown kind: {sorted(part)}")
        if "text" in part:
            need(part, "text", str, at=at)
        if "thought" in part:
            need(part, "thought", bool, at=at)
        if "functionCall" not in part:
            return
        call = need(part, "functionCall", dict, at=at)
        need_text(call, "name", at=at)
        if "args" in call:
            need(call, "args", dict, at=at)
        if "id" in call:
            name = need_text(call, "id", at=at)
            if name in self.call_ids:
                raise GrammarViolation(f"{at}: call id {name!r} used twice")
            self.call_ids.add(name)

    def complete(self) -> None:
        if not self.finish and not self.blocked:
            raise GrammarViolation("no candidate in any frame")
        for index, reason in self.finish.items():
            if reason is None:
                raise GrammarViolation(f"candidate {index} has no finishReason")


def _is_blocked(chunk: dict[str, Any], *, at: object) -> bool:
    feedback = need(chunk, "promptFeedback", dict, at=at) if chunk.get("promptFeedback") else {}
    return bool(feedback.get("blockReason"))


def check_whole(value: dict[str, Any], *, at: object) -> None:
    """Check one GenerateContentResponse that is complete in itself."""
    stream = _Stream()
    stream.take(value, at=at)
    stream.complete()
    check_usage(value, at=at)


def check_usage(value: dict[str, Any], *, at: object) -> None:
    """Check that the token counts are there and add up."""
    usage = need(value, "usageMetadata", dict, at=at)
    parts = ("candidatesTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount")
    total = need_count(usage, "promptTokenCount", at=at)
    total += sum(need_count(usage, key, at=at) for key in parts if key in usage)
    reported = need_count(usage, "totalTokenCount", at=at)
    if reported != total:
        raise GrammarViolation(f"{at}: totalTokenCount {reported} is not the sum {total}")


def _frames(body: bytes) -> list[ServedFrame]:
    frames = read(body, comments=False)
    for frame in frames:
        if frame.event:
            raise GrammarViolation(f"{frame}: gemini has no event lines")
        if frame.data == "[DONE]":
            raise GrammarViolation(f"{frame}: gemini has no [DONE]")
    return frames


def check_gemini(body: bytes) -> None:
    """Check a complete stream."""
    frames = _frames(body)
    if not frames:
        raise GrammarViolation("an empty stream")
    stream = _Stream()
    for frame in frames:
        stream.take(frame.json, at=frame)
    stream.complete()
    check_usage(frames[-1].json, at=frames[-1])
    with_candidates = [frame for frame in frames if frame.json.get("candidates")]
    if with_candidates:
        last = with_candidates[-1]
        ends = any("finishReason" in candidate for candidate in last.json["candidates"])
        if not ends:
            raise GrammarViolation(f"{last}: the last frame with candidates has no finishReason")


def check_broken_gemini(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: frames, then an error frame (none if `aborted`), no finishReason."""
    frames = _frames(body)
    if not aborted:
        if not frames:
            raise GrammarViolation("an empty stream")
        last = frames.pop()
        # The Google genai SDK recognises an error frame by its first key.
        if not last.data.startswith('{"error":'):
            raise GrammarViolation(f"the last frame is not an error: {last}")
        check_error_object(last.json, at=last)
    stream = _Stream()
    for frame in frames:
        stream.take(frame.json, at=frame)
    if any(stream.finish.values()):
        raise GrammarViolation(f"a broken stream has a finishReason: {stream.finish}")


def check_error_object(value: dict[str, Any], *, at: object) -> int:
    """Check the envelope `{"error": {"code": …, "message": …, "status": …}}`; return the code."""
    error = need(value, "error", dict, at=at)
    need_one_of(error, "status", STATUSES, at=at)
    need_error(error, at=at)
    return need(error, "code", int, at=at)
