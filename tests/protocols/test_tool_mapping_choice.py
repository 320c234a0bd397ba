"""A tool choice by a name that tools of several namespaces have."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.wire import json

TOOLS = (Tool("read", namespace="a"), Tool("read", namespace="b"), Tool("write", namespace="a"))
NO_LIST = "dropped the list of allowed tools: chat upstreams accept one tool or all"


def encoded(protocol: str, choice: ToolChoice) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a request of a Responses client (Codex) for an upstream, and the notices."""
    messages = (Message("user", (Text("hi"),)),)
    request = Request(model="asked", source="responses", messages=messages, tools=TOOLS, tool_choice=choice)
    out = CODECS[protocol].encode_request(request, EncodeOptions(model="m-1", provider="acme"))
    return json.decode(out.body), out.notices


CHOICES = [ToolChoice("tool", ("read",)), ToolChoice("required", ("read",))]


@pytest.mark.parametrize("choice", CHOICES, ids=["tool", "required"])
def test_any_of_the_tools_with_the_chosen_name_may_be_called(choice: ToolChoice) -> None:
    chat, notices = encoded("chat", choice)
    assert (chat["tool_choice"], notices) == ("required", (NO_LIST,))
    messages, notices = encoded("messages", choice)
    assert (messages["tool_choice"], notices) == ({"type": "any"}, ())
    assert [tool["name"] for tool in messages["tools"]] == ["a__read", "b__read"]
    gemini, notices = encoded("gemini", choice)
    calling = {"mode": "ANY", "allowedFunctionNames": ["a__read", "b__read"]}
    assert (gemini["toolConfig"], notices) == ({"functionCallingConfig": calling}, ())


def test_a_name_that_only_one_tool_has_is_forced() -> None:
    choice = ToolChoice("tool", ("write",))
    chat, notices = encoded("chat", choice)
    assert (chat["tool_choice"], notices) == ({"type": "function", "function": {"name": "a__write"}}, ())
    messages, notices = encoded("messages", choice)
    assert (messages["tool_choice"], notices) == ({"type": "tool", "name": "a__write"}, ())
    assert len(messages["tools"]) == 3
    gemini, notices = encoded("gemini", choice)
    assert gemini["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == ["a__write"]
