"""The four codecs by name."""

from __future__ import annotations

from routecodex.protocols import chat, gemini, messages, responses
from routecodex.protocols.codec import Codec

CODECS: dict[str, Codec] = {
    codec.name: codec for codec in (chat.CODEC, responses.CODEC, messages.CODEC, gemini.CODEC)
}
