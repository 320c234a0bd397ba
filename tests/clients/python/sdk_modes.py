"""Every way of using an official Python SDK, by a readable name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.gateway import Gateway
from tests.clients.python.anthropic_messages import Messages
from tests.clients.python.conversation import Conversation, ConversationOptions
from tests.clients.python.google_genai import Gemini
from tests.clients.python.openai_chat import Chat
from tests.clients.python.openai_responses import Responses
from tests.clients.python.sdks import Sdks

_OPEN: dict[str, tuple[Callable[[Sdks, str, str], Any], Callable[..., Conversation]]] = {
    "chat": (Sdks.openai, Chat),
    "responses": (Sdks.openai, Responses),
    "messages": (Sdks.anthropic, Messages),
    "gemini": (Sdks.google, Gemini),
}


@dataclass(frozen=True)
class SdkMode:
    """A client protocol and how its SDK is used: `whole`, `stream`, or the SDK's stream `helper`."""

    protocol: str
    mode: str

    @property
    def streams(self) -> bool:
        return self.mode != "whole"

    def open(
        self, sdks: Sdks, gateway: Gateway, model: str, *, key: str, options: ConversationOptions
    ) -> Conversation:
        """Start a conversation with the model, under a client key."""
        client, conversation = _OPEN[self.protocol]
        return conversation(client(sdks, gateway.url, key), model, mode=self.mode, options=options)

    def start(self, sdks: Sdks, gateway: Gateway, model: str, **options: bool) -> Conversation:
        """Start a conversation with the model."""
        return self.open(sdks, gateway, model, key="any", options=ConversationOptions(**options))


SDK_MODES = {
    "openai-chat-create": SdkMode("chat", "whole"),
    "openai-chat-create-stream": SdkMode("chat", "stream"),
    "openai-chat-stream-helper": SdkMode("chat", "helper"),
    "openai-responses-create": SdkMode("responses", "whole"),
    "openai-responses-create-stream": SdkMode("responses", "stream"),
    "openai-responses-stream-helper": SdkMode("responses", "helper"),
    "anthropic-create": SdkMode("messages", "whole"),
    "anthropic-create-stream": SdkMode("messages", "stream"),
    "anthropic-stream-helper": SdkMode("messages", "helper"),
    "google-genai": SdkMode("gemini", "whole"),
    "google-genai-stream": SdkMode("gemini", "stream"),
}
