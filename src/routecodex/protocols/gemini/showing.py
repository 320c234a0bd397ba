"""What clients of other protocols get for a part of an answer that only Gemini has."""

from __future__ import annotations

from routecodex.canon.parts import Media, Text
from routecodex.protocols.gemini.chunks import WireAnswerPart
from routecodex.protocols.gemini.media import decode_media

_FENCE = "```"


def placeholder(part: WireAnswerPart) -> Text | Media | None:
    """Code and what it gave as text, media as media; None for what says nothing to others."""
    if part.thought:
        # Drafts of an image come as thoughts, and its final form after them.
        return None
    if part.executable_code is not None:
        language = (part.executable_code.language or "").lower()
        return _fenced(part.executable_code.code, language)
    if part.code_execution_result is not None:
        result = part.code_execution_result
        return _fenced(result.output or result.outcome, "")
    if part.inline_data is not None:
        blob = part.inline_data
        return decode_media({"inlineData": {"mimeType": blob.mime_type, "data": blob.data}})
    if part.file_data is not None:
        file = part.file_data
        return decode_media({"fileData": {"mimeType": file.mime_type, "fileUri": file.file_uri}})
    return None


def _fenced(code: str | None, language: str) -> Text | None:
    """The code between fences that do not occur in it, on lines of its own."""
    if not code:
        return None
    fence = _FENCE
    while fence in code:
        fence += "`"
    return Text(f"\n{fence}{language}\n{code.rstrip()}\n{fence}\n")
