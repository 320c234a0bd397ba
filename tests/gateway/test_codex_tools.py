"""Codex with newer models: tools in an input item `additional_tools`, messages between its agents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.canon.parts import Text
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.grammar import frames
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Request, Upstream

SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript.", "format": {"type": "text"}}
WAIT = {"type": "function", "name": "wait", "description": "old", "parameters": SCHEMA}
NEW_WAIT = {**WAIT, "description": "new"}
SPAWN = {"type": "function", "name": "spawn", "parameters": SCHEMA}


def declaration(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


NOTES = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
TEAM = {"type": "namespace", "name": "collaboration", "description": "", "tools": [SPAWN]}
INPUT = [declaration(EXEC, WAIT, TEAM), NOTES, user("one"), declaration(NEW_WAIT), user("two")]


async def ask(upstream: str, reply: Any, *, stream: bool = False, more: str = "") -> tuple[Answer, Request]:
    sent = {"model": "up.m", "input": INPUT, "instructions": "You are Codex.", "stream": stream}
    async with Upstream(lambda _: reply) as up, serving(more + one_target(upstream, up)) as gateway:
        answer = await call(gateway.port, "/v1/responses", sent)
        asking.check("responses", answer, stream=stream)
        return answer, up.requests[0]


@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_tools_in_an_item_are_the_tools_of_the_request(upstream: str) -> None:
    answer, request = await ask(upstream, answers.text(upstream, "fine", False))
    path_fields = {"model": "m", "stream": False} if upstream == "gemini" else {}
    decoded = CODECS[upstream].decode_request(CODECS[upstream].validate(request.body, **path_fields))
    names = [(tool.name, "new" in (tool.description or "")) for tool in decoded.tools]
    assert names == [("exec", False), ("wait", True), ("collaboration__spawn", False)]
    assert "".join(text.text for text in decoded.system).replace("\n", "") == "You are Codex.Be brief."
    assert [message.role for message in decoded.messages if message.role != "user"] == []
    assert "x-routecodex-notice" not in answer.headers


@pytest.mark.parametrize("clock", ["", "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"])
async def test_a_responses_provider_gets_the_item_as_it_came(clock: str) -> None:
    _, request = await ask("responses", answers.text("responses", "fine", False), more=clock)
    assert [item for item in request.json["input"] if item["type"] == "additional_tools"] == [
        INPUT[0],
        INPUT[3],
    ]
    assert request.json["input"][:3] == INPUT[:3]
    assert [tool["name"] for tool in request.json.get("tools", ())] == (["clock"] if clock else [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_calls_come_back_in_the_form_of_their_declaration(upstream: str, stream: bool) -> None:
    calls = (
        answers.Call("exec", {"input": "1 + 1"}, "c1"),
        answers.Call("collaboration__spawn", {"cmd": "x"}, "c2"),
    )
    answer, _ = await ask(upstream, answers.tool_calls(upstream, *calls, stream=stream), stream=stream)
    assert b'"custom_tool_call"' in answer.body
    assert b'"namespace":"collaboration"' in answer.body


async def test_the_tools_of_an_item_count_for_routing() -> None:
    codec = CODECS["responses"]
    search = {"type": "web_search"}
    request = codec.validate(codec_body([declaration(WAIT, search), NOTES, user("hi")]))
    features = codec.features(request)
    assert (features.has_tools, features.offers_search, features.has_answer, features.newest) == (
        True,
        True,
        False,
        "user",
    )


def codec_body(items: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"model": "m", "input": items})


async def test_a_wrong_tool_in_an_item_is_named() -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        sent = {"model": "up.m", "input": [declaration({"type": "function"}), user("hi")]}
        answer = await call(gateway.port, "/v1/responses", sent)
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].tools[0].name")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_a_plain_tool_and_a_namespaced_one_of_the_same_flat_name_stay_apart(
    upstream: str, stream: bool
) -> None:
    plain = {**SPAWN, "name": "collaboration__spawn"}
    called = {"type": "function_call", "call_id": "c0", "arguments": "{}", "name": "spawn"}
    history = [
        {**called, "namespace": "collaboration"},
        {"type": "function_call_output", "call_id": "c0", "output": "done"},
    ]
    seen: list[str] = []

    def script(request: Request) -> Any:
        seen.extend(declared_names(upstream, request.body))
        calls = (answers.Call(seen[0], {}, "c1"), answers.Call(seen[1], {}, "c2"))
        return answers.tool_calls(upstream, *calls, stream=stream)

    sent = {"model": "up.m", "input": [user("go"), *history, user("again")], "stream": stream}
    async with Upstream(script) as up, serving(one_target(upstream, up)) as gateway:
        answer = await call(gateway.port, "/v1/responses", {**sent, "tools": [TEAM, plain]})
    asking.check("responses", answer, stream=stream)
    assert len(set(seen)) == 2
    assert seen[1] == "collaboration__spawn"
    assert up.requests[0].body.count(f'"name":"{seen[0]}"'.encode()) >= 2
    body = answer.json if not stream else frames.read(answer.body)[-1].json["response"]
    made = [
        (item["name"], item.get("namespace")) for item in body["output"] if item["type"] == "function_call"
    ]
    assert made == [("spawn", "collaboration"), ("collaboration__spawn", None)]


def declared_names(protocol: str, body: bytes) -> list[str]:
    path_fields = {"model": "m", "stream": False} if protocol == "gemini" else {}
    decoded = CODECS[protocol].decode_request(CODECS[protocol].validate(body, **path_fields))
    return [tool.name for tool in decoded.tools]


TASK: dict[str, Any] = {
    "type": "agent_message",
    "author": "/root",
    "recipient": "/root/task_1",
    "content": [
        {"type": "input_text", "text": "Message Type: NEW_TASK\nPayload:\n"},
        {"type": "encrypted_content", "encrypted_content": "look into it"},
    ],
}
HEAD = "[message from agent /root to agent /root/task_1]\nMessage Type: NEW_TASK\nPayload:\n"


async def send_messages(upstream: str, *items: dict[str, Any], more: str = "") -> tuple[Answer, Request]:
    reply = answers.text(upstream, "fine", False)
    async with Upstream(lambda _: reply) as up, serving(more + one_target(upstream, up)) as gateway:
        return await call(
            gateway.port, "/v1/responses", {"model": "up.m", "input": list(items)}
        ), up.requests[0]


@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_a_message_between_agents_is_a_user_message(upstream: str) -> None:
    answer, request = await send_messages(upstream, user("go"), TASK)
    path_fields = {"model": "m", "stream": False} if upstream == "gemini" else {}
    decoded = CODECS[upstream].decode_request(CODECS[upstream].validate(request.body, **path_fields))
    parts = [part for message in decoded.messages for part in message.parts]
    texts = [part.text for part in parts if isinstance(part, Text)]
    assert texts == ["go", f"{HEAD}look into it"]
    assert "x-routecodex-notice" not in answer.headers


async def test_an_encrypted_message_between_agents_is_named_as_such() -> None:
    sealed = {"type": "encrypted_content", "encrypted_content": "gAAAAABsealed"}
    item = {**TASK, "content": [TASK["content"][0], sealed]}
    _, request = await send_messages("chat", user("go"), item)
    assert request.json["messages"][-1]["content"] == f"{HEAD}(encrypted)"


@pytest.mark.parametrize("clock", ["", "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"])
async def test_a_responses_provider_gets_a_message_between_agents_as_it_came(clock: str) -> None:
    _, request = await send_messages("responses", user("go"), TASK, user("on"), more=clock)
    assert [item for item in request.json["input"] if item["type"] == "agent_message"] == [TASK]


@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_a_tag_between_agents_is_removed_and_not_applied(upstream: str) -> None:
    head, payload = TASK["content"]
    tagged = {**payload, "encrypted_content": "look <**up.unknown**>into it"}
    item = {**TASK, "content": [{**head, "text": "Message <**clear**>Type"}, tagged]}
    answer, request = await send_messages(upstream, user("go"), item)
    assert answer.status == 200
    assert b"<**" not in request.body
    assert (b"look into it" in request.body, b"Message Type" in request.body) == (True, True)
