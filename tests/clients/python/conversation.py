"""The interface that these tests use for every SDK, and the values they send."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel


class Weather(BaseModel):
    """The type that a structured answer is parsed into."""

    city: str
    sky: str


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Which city"}},
    "required": ["city"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "sky": {"type": "string"}},
    "required": ["city", "sky"],
    "additionalProperties": False,
}
SYSTEM = "You speak of nothing but the sky."
IMAGE_URL = "https://images.example/sky.png"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\0"))
    + _chunk(b"IEND", b"")
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def data_url(kind: str, data: bytes) -> str:
    """Return the bytes as a `data:` URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class ReceivedCall:
    """A tool call as the SDK returned it."""

    id: str | None
    name: str
    arguments: Any


@dataclass
class Reply:
    """An answer as the SDK returned it; `pieces` is the number of text deltas of a stream."""

    text: str = ""
    calls: list[ReceivedCall] = field(default_factory=list)
    reasoning: str = ""
    end: str | None = None
    usage: tuple[int, int] | None = None
    cached: int | None = None
    pieces: int = 0
    parsed: Any = None


@dataclass(frozen=True)
class ConversationOptions:
    """Options of a conversation beyond plain text."""

    tools: bool = False
    forbidden: bool = False
    system: bool = False
    thinking: bool = False
    structured: bool = False


class Conversation(Protocol):
    """One conversation, its history in the SDK's own types."""

    def send(self, text: str, *, attached: str = "") -> Reply:
        """Send a user message, with an attachment: `image`, `image URL` or `PDF`."""
        ...

    def send_results(self, *results: str) -> Reply:
        """Send the results of the calls in the last reply, in order."""
        ...


FINISH_REASONS: dict[str, dict[str, str]] = {
    "chat": {"stop": "stop", "length": "length", "tools": "tool_calls"},
    "responses": {"stop": "completed", "length": "incomplete: max_output_tokens", "tools": "completed"},
    "messages": {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"},
    "gemini": {"stop": "STOP", "length": "MAX_TOKENS", "tools": "STOP"},
}
"""Finish reasons of each client protocol."""
