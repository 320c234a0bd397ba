"""What one protocol has and another has not is named, whichever the other is."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, ProtocolName, Request
from routecodex.protocols.codec import Aim
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.notices import HINTS

OWN: dict[str, dict[str, Any]] = {
    "chat": {"logit_bias": {"1": 1}, "prediction": {}, "prompt_cache_retention": "24h"},
    "responses": {"truncation": "auto", "conversation": "conv_1", "max_tool_calls": 3, "prompt": {"id": "p"}},
    "messages": {"context_management": {"edits": []}, "mcp_servers": [], "container": "c"},
    "gemini": {"safetySettings": [], "labels": {"a": "b"}, "cachedContent": "cachedContents/1"},
}
PAIRS = [(source, target) for source in get_args(ProtocolName) for target in CODECS if source != target]


def notices(source: Any, target: str, **more: Any) -> str:
    request = Request(
        model="m", source=source, messages=(Message("user", (Text("Hi"),)),), max_tokens=100, **more
    )
    return "; ".join(CODECS[target].encode_request(request, Aim(model="m", provider="p")).notices)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_field_without_a_home_is_named(source: Any, target: str) -> None:
    told = notices(source, target, extras=OWN[source])
    assert [name for name in OWN[source] if f"dropped {name}:" not in told] == []


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_what_only_speaks_to_its_own_server_is_not(source: Any, target: str) -> None:
    assert notices(source, target, extras=dict.fromkeys(HINTS, True)) == ""


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
def test_cache_hints_that_are_lost_are_named(target: str) -> None:
    told = notices("messages", target, system=(Text("s", cache={"type": "ephemeral"}),))
    assert "dropped cache_control:" in told
