"""What a client says of its user."""

from __future__ import annotations

from msgspec import Struct


class AnthropicUser(Struct):
    """What an Anthropic client may say of its user."""

    session_id: str | None = None
