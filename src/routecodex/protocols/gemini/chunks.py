"""What a provider sends: whole answers and pieces of them, read tolerantly; usage and logprobs, both ways."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.parts import Json
from routecodex.canon.usage import Usage
from routecodex.protocols.gemini.schema import Blob, FileData, WireStruct
from routecodex.wire import json
from routecodex.wire.json import ABSENT


class CalledFunction(WireStruct):
    name: str | None = None
    id: str | None = None
    args: Raw = ABSENT


class ExecutableCode(WireStruct):
    language: str | None = None
    code: str | None = None


class CodeResult(WireStruct):
    outcome: str | None = None
    output: str | None = None


class WireAnswerPart(WireStruct):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: CalledFunction | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    executable_code: ExecutableCode | None = None
    code_execution_result: CodeResult | None = None
    tool_call: Any = None
    tool_response: Any = None

    @property
    def is_known(self) -> bool:
        """Whether canon has a word for it; else the part is opaque, its signature with it."""
        if self.text is not None or self.function_call is not None:
            return True
        return self.thought_signature is not None and not any(getattr(self, name) for name in _OPAQUE)


_OPAQUE = (
    "inline_data",
    "file_data",
    "executable_code",
    "code_execution_result",
    "tool_call",
    "tool_response",
)


class WireAnswerContent(WireStruct):
    parts: list[WireAnswerPart] | None = None


class Candidate(WireStruct):
    content: WireAnswerContent | None = None
    finish_reason: str | None = None
    index: int | None = None
    finish_message: Any = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    url_context_metadata: Any = None
    logprobs_result: Any = None

    @property
    def parts(self) -> list[WireAnswerPart]:
        return (self.content.parts if self.content else None) or []


class WireUsage(WireStruct):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    total_token_count: int | None = None


class PromptFeedback(WireStruct):
    block_reason: str | None = None


class StreamChunk(WireStruct):
    """A GenerateContentResponse: the whole answer, or one piece of a stream."""

    candidates: list[Candidate] | None = None
    usage_metadata: WireUsage | None = None
    model_version: str | None = None
    response_id: str | None = None
    prompt_feedback: PromptFeedback | None = None
    error: Any = None

    @property
    def candidate(self) -> Candidate | None:
        """The first candidate: the answer."""
        for candidate in self.candidates or ():
            if not candidate.index:
                return candidate
        return None

    @property
    def block_reason(self) -> str | None:
        return self.prompt_feedback.block_reason if self.prompt_feedback else None


_chunk = Decoder(StreamChunk)


def read_chunk(data: bytes) -> StreamChunk | None:
    """The chunk, its oddly typed fields bent right (`"12"` for 12); None when it is none."""
    chunk = json.try_read(data, _chunk)
    if chunk is not None:
        return chunk
    try:
        return msgspec.convert(json.decode(data), StreamChunk, strict=False)
    except (ValueError, msgspec.ValidationError):
        return None


def raw_parts(data: bytes) -> list[dict[str, Json]]:
    """The parts of the first candidate as they came."""
    for candidate in json.decode(data).get("candidates") or ():
        if not candidate.get("index"):
            return (candidate.get("content") or {}).get("parts") or []
    return []


def decode_usage(counted: WireUsage) -> Usage:
    """The counts in canon: tool-use prompts are input, thoughts are output."""
    thoughts = counted.thoughts_token_count or 0
    prompt = (counted.prompt_token_count or 0) + (counted.tool_use_prompt_token_count or 0)
    written = counted.candidates_token_count
    if written is None:
        written = max(0, (counted.total_token_count or 0) - prompt - thoughts)
    return Usage(
        input=prompt,
        output=written + thoughts,
        cache_read=counted.cached_content_token_count or 0,
        reasoning=thoughts,
    )


def encode_usage(usage: Usage) -> dict[str, Json]:
    """The counts as Google gives them."""
    counted = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counted["thoughtsTokenCount"] = usage.reasoning
    if usage.cache_read:
        counted["cachedContentTokenCount"] = usage.cache_read
    return counted


def decode_logprobs(result: Json) -> tuple[Json, ...]:
    """Google's logprobs as chat's entries, one per token."""
    tops = _listed(result, "topCandidates")
    entries = []
    for at, token in enumerate(_listed(result, "chosenCandidates")):
        others = _listed(tops[at], "candidates") if at < len(tops) else []
        entries.append({**_entry(token), "top_logprobs": [_entry(other) for other in others]})
    return tuple(entries)


def _listed(value: Json, field: str) -> list[Json]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _entry(token: Json) -> dict[str, Json]:
    told = token if isinstance(token, dict) else {}
    text, logprob = told.get("token"), told.get("logProbability")
    text = text if isinstance(text, str) else ""
    spelled = list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob if isinstance(logprob, int | float) else 0.0, "bytes": spelled}


def encode_logprobs(entries: tuple[Json, ...]) -> dict[str, Json]:
    """Chat's entries as Google's logprobs."""
    return {
        "chosenCandidates": [_token(entry) for entry in entries],
        "topCandidates": [
            {"candidates": [_token(other) for other in _listed(entry, "top_logprobs")]} for entry in entries
        ],
    }


def _token(entry: Json) -> dict[str, Json]:
    told = entry if isinstance(entry, dict) else {}
    return {"token": told.get("token", ""), "logProbability": told.get("logprob", 0.0)}
