"""Every way of talking with an official Python SDK, by a readable name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.gateway import Gateway
from tests.clients.python.anthropic_messages import Messages
from tests.clients.python.google_genai import Gemini
from tests.clients.python.openai_chat import Chat
from tests.clients.python.openai_responses import Responses
from tests.clients.python.sdks import Sdks
from tests.clients.python.talk import Conversation, Wish

_OPEN: dict[str, tuple[Callable[[Sdks, str, str], Any], Callable[..., Conversation]]] = {
    "chat": (Sdks.openai, Chat),
    "responses": (Sdks.openai, Responses),
    "messages": (Sdks.anthropic, Messages),
    "gemini": (Sdks.google, Gemini),
}


@dataclass(frozen=True)
class Speaker:
    """A client protocol and how its SDK is used: `whole`, `stream`, or the SDK's stream `helper`."""

    protocol: str
    mode: str

    @property
    def streams(self) -> bool:
        return self.mode != "whole"

    def open(self, sdks: Sdks, gateway: Gateway, model: str, *, key: str, wish: Wish) -> Conversation:
        """Begins a conversation with the model, under a client key."""
        client, conversation = _OPEN[self.protocol]
        return conversation(client(sdks, gateway.url, key), model, mode=self.mode, wish=wish)

    def talk(self, sdks: Sdks, gateway: Gateway, model: str, **wish: bool) -> Conversation:
        """Begins a conversation with the model."""
        return self.open(sdks, gateway, model, key="any", wish=Wish(**wish))


SPEAKERS = {
    "openai-chat-create": Speaker("chat", "whole"),
    "openai-chat-create-stream": Speaker("chat", "stream"),
    "openai-chat-stream-helper": Speaker("chat", "helper"),
    "openai-responses-create": Speaker("responses", "whole"),
    "openai-responses-create-stream": Speaker("responses", "stream"),
    "openai-responses-stream-helper": Speaker("responses", "helper"),
    "anthropic-create": Speaker("messages", "whole"),
    "anthropic-create-stream": Speaker("messages", "stream"),
    "anthropic-stream-helper": Speaker("messages", "helper"),
    "google-genai": Speaker("gemini", "whole"),
    "google-genai-stream": Speaker("gemini", "stream"),
}
