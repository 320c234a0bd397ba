"""The grammar of a Gemini stream (`alt=sse`).

Unnamed data frames only, no comment and no [DONE]; finishReason in the last frame with candidates,
usageMetadata in the last frame.
"""

from __future__ import annotations

from typing import Any

from tests.kit.grammar.frames import Frame, need, need_count, need_error, need_one_of, need_text, read

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
        assert "error" not in chunk, f"{at}: an error in a stream that should be complete"
        for name in _SNAKE_CASE:
            assert name not in chunk, f"{at}: {name!r} is not camelCase"
        head = (need_text(chunk, "responseId", at=at), need_text(chunk, "modelVersion", at=at))
        assert self.head in (None, head), f"{at}: responseId, modelVersion {head} are not {self.head}"
        self.head = head
        self.blocked = self.blocked or bool((chunk.get("promptFeedback") or {}).get("blockReason"))
        if "candidates" in chunk:
            for candidate in need(chunk, "candidates", list, at=at):
                self._candidate(candidate, at=at)

    def _candidate(self, candidate: dict[str, Any], *, at: object) -> None:
        index = need(candidate, "index", int, at=at) if "index" in candidate else 0
        assert self.finish.get(index) is None, f"{at}: candidate {index} goes on after its finishReason"
        self.finish[index] = None
        if "content" in candidate:
            content = need(candidate, "content", dict, at=at)
            need_one_of(content, "role", frozenset({"model"}), at=at)
            for part in need(content, "parts", list, at=at) if "parts" in content else ():
                self._part(part, at=at)
        if "finishReason" in candidate:
            self.finish[index] = need_one_of(candidate, "finishReason", FINISH, at=at)

    def _part(self, part: dict[str, Any], *, at: object) -> None:
        assert any(key in part for key in _PARTS), f"{at}: a part of unknown kind: {sorted(part)}"
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
            assert name not in self.call_ids, f"{at}: call id {name!r} used twice"
            self.call_ids.add(name)

    def complete(self) -> None:
        assert self.finish or self.blocked, "no candidate in any frame"
        for index, reason in self.finish.items():
            assert reason is not None, f"candidate {index} has no finishReason"


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
    assert reported == total, f"{at}: totalTokenCount {reported} is not the sum {total}"


def _frames(body: bytes) -> list[Frame]:
    frames = read(body, comments=False)
    for frame in frames:
        assert not frame.event, f"{frame}: gemini has no event lines"
        assert frame.data != "[DONE]", f"{frame}: gemini has no [DONE]"
    return frames


def check_gemini(body: bytes) -> None:
    """Check a complete stream."""
    frames = _frames(body)
    assert frames, "an empty stream"
    stream = _Stream()
    for frame in frames:
        stream.take(frame.json, at=frame)
    stream.complete()
    check_usage(frames[-1].json, at=frames[-1])
    with_candidates = [frame for frame in frames if frame.json.get("candidates")]
    if with_candidates:
        last = with_candidates[-1]
        ends = any("finishReason" in candidate for candidate in last.json["candidates"])
        assert ends, f"{last}: the last frame with candidates has no finishReason"


def check_broken_gemini(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: frames, then an error frame (none if `aborted`), no finishReason."""
    frames = _frames(body)
    if not aborted:
        assert frames, "an empty stream"
        last = frames.pop()
        # The Google genai SDK recognises an error frame by its first key.
        assert last.data.startswith('{"error":'), f"the last frame is not an error: {last}"
        check_error_object(last.json, at=last)
    stream = _Stream()
    for frame in frames:
        stream.take(frame.json, at=frame)
    assert not any(stream.finish.values()), f"a broken stream has a finishReason: {stream.finish}"


def check_error_object(value: dict[str, Any], *, at: object) -> int:
    """Check the envelope `{"error": {"code": …, "message": …, "status": …}}`; return the code."""
    error = need(value, "error", dict, at=at)
    need_one_of(error, "status", STATUSES, at=at)
    need_error(error, at=at)
    return need(error, "code", int, at=at)
