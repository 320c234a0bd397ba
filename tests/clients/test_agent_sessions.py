"""The session of each coding agent's request, from its own headers and body as they come in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.canon.request import ProtocolName
from routecodex.gateway.context.identity import Scope, identify
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.control_fields import read_control_fields
from tests.clients.agent_requests import CLAUDE_HEADERS, CODEX_HEADERS, SESSION, claude_code, codex


def scope_of(protocol: ProtocolName, headers: dict[str, str], body: dict[str, Any]) -> Scope:
    raw = msgspec.json.encode(body)
    wire = CODECS[protocol].validate(raw, model=str(body.get("model", "m")), stream=True)
    return identify(protocol, headers, read_control_fields(wire), chain=None, request_id="req-1")


HELLO = [{"role": "user", "content": "hello"}]
EXPECTED = Scope("session", SESSION)
CLAUDE = claude_code("claude-sonnet-4-5", "hello")
CODEX = codex("gpt-5", "hello")
WAYS: dict[str, tuple[ProtocolName, dict[str, str], dict[str, Any]]] = {
    "claude code": ("messages", CLAUDE_HEADERS, CLAUDE),
    "claude code by its body": ("messages", {}, CLAUDE),
    "claude code by its headers": (
        "messages",
        CLAUDE_HEADERS,
        {"model": "m", "max_tokens": 9, "messages": HELLO},
    ),
    "codex": ("responses", CODEX_HEADERS, CODEX),
    "codex by its body": ("responses", {}, CODEX),
    "codex by its headers": ("responses", CODEX_HEADERS, {"model": "m", "input": "hello"}),
    "qwen code": (
        "chat",
        {"user-agent": "QwenCode/0.14.0 (linux; x64)"},
        {"model": "m", "messages": HELLO, "metadata": {"sessionId": SESSION, "promptId": "p1"}},
    ),
    "opencode": (
        "chat",
        {"x-session-affinity": SESSION, "x-session-id": SESSION},
        {"model": "m", "messages": HELLO},
    ),
    "a responses conversation": (
        "responses",
        {},
        {"model": "m", "input": "hello", "conversation": {"id": SESSION}},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_is_identified_by_its_own_fields(way: str) -> None:
    assert scope_of(*WAYS[way]) == EXPECTED


def test_the_text_of_a_conversation_never_names_a_session() -> None:
    text = f'session_{SESSION} session_id: {SESSION} {{"session_id": "{SESSION}"}}'
    body = claude_code("m", text, metadata={"user_id": "alice"})
    assert scope_of("messages", {}, body) == Scope("request", "req-1")
