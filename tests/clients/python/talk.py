"""What every SDK is asked to do in these tests, whatever its own words for it are."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel


class Weather(BaseModel):
    """What a structured answer is parsed into."""

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
    """The bytes as a `data:` URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class Called:
    """A tool call as the SDK gave it."""

    id: str | None
    name: str
    arguments: Any


@dataclass
class Reply:
    """An answer as the SDK gave it; `pieces` counts the pieces of text a stream came in."""

    text: str = ""
    calls: list[Called] = field(default_factory=list)
    thought: str = ""
    end: str | None = None
    usage: tuple[int, int] | None = None
    cached: int | None = None
    pieces: int = 0
    parsed: Any = None


@dataclass(frozen=True)
class Wish:
    """What a conversation asks for beyond words."""

    tools: bool = False
    forbidden: bool = False
    system: bool = False
    thinking: bool = False
    structured: bool = False


class Conversation(Protocol):
    """One conversation, its history in the SDK's own types."""

    def say(self, text: str, *, attached: str = "") -> Reply:
        """Speaks as the user, with an attachment: `image`, `image URL` or `PDF`."""
        ...

    def give(self, *results: str) -> Reply:
        """Answers the calls of the last reply, in order."""
        ...


ENDS: dict[str, dict[str, str]] = {
    "chat": {"stop": "stop", "length": "length", "tools": "tool_calls"},
    "responses": {"stop": "completed", "length": "incomplete: max_output_tokens", "tools": "completed"},
    "messages": {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"},
    "gemini": {"stop": "STOP", "length": "MAX_TOKENS", "tools": "STOP"},
}
"""How each client protocol says that an answer ended."""
