"""Claude Code and Codex requests: the body that reaches the upstream and the answer they get back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.protocols.grammar import check_json, check_messages, check_responses
from tests.clients.agent_requests import (
    CLAUDE_BETA,
    CLAUDE_HEADERS,
    CLAUDE_TOOLS,
    CODEX_HEADERS,
    SESSION,
    claude_code,
    codex,
)
from tests.clients.gateway import Gateway
from tests.clients.model import REASONING, SIGNATURE
from tests.clients.raw import Answer, call
from tests.kit.answers import PROTOCOLS

MODELS = {name: f"up_{name}.model-x" for name in PROTOCOLS}
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
foreign = pytest.mark.parametrize(
    "upstream", [pytest.param(name, id=f"to-{name}") for name in ("chat", "messages", "gemini")]
)
PATCH = 'apply_patch this:\n*** Begin Patch\n*** Add File: a "quoted" name\n+tab\there\n*** End Patch'


def send_claude_code(gateway: Gateway, body: dict[str, Any]) -> Answer:
    answer = call(gateway, "POST", "/v1/messages?beta=true", body=body, headers=CLAUDE_HEADERS)
    assert answer.status == 200, answer.body
    return answer


def content_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the blocks of a streamed message as the agent builds them."""
    blocks: list[dict[str, Any]] = []
    for frame in answer.frames:
        event = frame.json
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            kind = delta.pop("type").removesuffix("_delta").replace("input_json", "json")
            blocks[-1][kind] += next(iter(delta.values()))
    return [_closed(block) for block in blocks]


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop("json")
    return {**block, "input": msgspec.json.decode(text)} if block["type"] == "tool_use" else block


@upstreams
def test_claude_code_runs_a_tool_loop(gateway: Gateway, upstream: str) -> None:
    body = claude_code(MODELS[upstream], "use Bash to list the files")
    assert len(msgspec.json.encode(body)) > 100_000
    first = send_claude_code(gateway, body)
    check_messages(first.body, message_stop_after_calls=True)
    blocks = content_of(first)
    (use,) = [block for block in blocks if block["type"] == "tool_use"]
    assert (use["name"], "use Bash to list the files" in use["input"]["command"]) == ("Bash", True)
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny.txt", "is_error": False}
    history = [
        *body["messages"],
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
    ]
    done = send_claude_code(gateway, body | {"messages": history})
    check_messages(done.body)
    assert content_of(done)[-1]["text"] == "The tool says: sunny.txt"


def test_claude_code_reaches_a_messages_upstream_unchanged(gateway: Gateway) -> None:
    body = claude_code(MODELS["messages"], "hello")
    send_claude_code(gateway, body)
    request = gateway.last_request("messages")
    assert request.json == body | {"model": "model-x"}
    assert request.headers["anthropic-beta"] == CLAUDE_BETA
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "x-claude-code-session-id" not in request.headers


def test_claude_code_reaches_a_chat_upstream_whole(gateway: Gateway) -> None:
    body = claude_code(MODELS["chat"], "use Bash to list the files")
    send_claude_code(gateway, body)
    sent = gateway.last_request("chat").json
    assert [tool["function"]["name"] for tool in sent["tools"]] == list(CLAUDE_TOOLS)
    assert sent["tools"][0]["function"]["description"] == body["tools"][0]["description"]
    system = [message for message in sent["messages"] if message["role"] == "system"]
    assert "You are an agent for coding." in msgspec.json.encode(system).decode()
    assert sent["messages"][-1]["role"] == "user"
    assert sent["stream"] is True
    assert sent["reasoning_effort"] == "high"
    assert sent["max_completion_tokens"] == 32000
    # Anthropic's fields, which chat upstreams do not know.
    foreign_fields = {"thinking", "context_management", "system", "max_tokens", "cache_control"}
    assert foreign_fields & sent.keys() == set()
    assert b"cache_control" not in gateway.last_request("chat").body
    assert "anthropic-beta" not in gateway.last_request("chat").headers


@upstreams
def test_claude_code_gets_thinking_blocks_and_sends_them_back(gateway: Gateway, upstream: str) -> None:
    body = claude_code(MODELS[upstream], "think first, then look_up")
    blocks = content_of(send_claude_code(gateway, body))
    assert blocks[0]["thinking"] == REASONING
    (use,) = [block for block in blocks if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "sunny"}]}
    history = [
        *body["messages"],
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
    ]
    done = send_claude_code(gateway, body | {"messages": history})
    assert content_of(done)[-1]["text"] == "The tool says: sunny"
    assert (SIGNATURE.encode() in gateway.last_request(upstream).body) == (upstream != "chat")


@upstreams
def test_claude_code_may_retry_without_a_stream(gateway: Gateway, upstream: str) -> None:
    body = claude_code(MODELS[upstream], "use Bash", stream=False, max_tokens=64000)
    answer = send_claude_code(gateway, body)
    check_json("messages", answer.body)
    assert answer.json["stop_reason"] == "tool_use"


def test_claude_code_counts_its_tokens(gateway: Gateway) -> None:
    names = ("model", "messages", "tools", "system")
    body = {name: value for name, value in claude_code(MODELS["chat"], "hello").items() if name in names}
    path = "/v1/messages/count_tokens?beta=true"
    answer = call(gateway, "POST", path, body=body, headers=CLAUDE_HEADERS)
    assert answer.status == 200
    assert answer.json["input_tokens"] > 20_000


def test_claude_code_can_probe_the_gateway(gateway: Gateway) -> None:
    answer = call(gateway, "HEAD", "/", headers={"user-agent": "Bun/1.3"})
    assert (answer.status, answer.body) == (200, b"")


def send_codex(gateway: Gateway, body: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """Return the answer and the response object of its last event."""
    answer = call(gateway, "POST", "/v1/responses", body=body, headers=CODEX_HEADERS)
    assert answer.status == 200, answer.body
    check_responses(answer.body)
    last = answer.frames[-1].json
    assert last["type"] == "response.completed"
    return answer, last["response"]


def done_items(answer: Answer) -> list[dict[str, Any]]:
    events = [frame.json for frame in answer.frames]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


@upstreams
def test_a_patch_comes_back_as_the_custom_call_it_was_offered_as(gateway: Gateway, upstream: str) -> None:
    answer, response = send_codex(gateway, codex(MODELS[upstream], PATCH))
    (call_item,) = done_items(answer)
    assert (call_item["type"], call_item["name"]) == ("custom_tool_call", "apply_patch")
    assert call_item["input"].endswith(PATCH)
    assert response["output"] == [call_item]
    kinds = [frame.event for frame in answer.frames]
    assert "response.custom_tool_call_input.done" in kinds
    assert "response.function_call_arguments.done" not in kinds
    result = {"type": "custom_tool_call_output", "call_id": call_item["call_id"], "output": "sunny: Done!"}
    _, done = send_codex(gateway, codex(MODELS[upstream], PATCH, call_item, result))
    assert done["output"][-1]["content"][0]["text"] == "The tool says: sunny: Done!"


@foreign
def test_a_namespaced_call_comes_back_with_its_namespace(gateway: Gateway, upstream: str) -> None:
    text = "mcp__files__fetch the file"
    answer, _ = send_codex(gateway, codex(MODELS[upstream], text))
    (item,) = done_items(answer)
    assert {name: item.get(name) for name in ("type", "namespace", "name")} == {
        "type": "function_call",
        "namespace": "mcp__files",
        "name": "fetch",
    }
    assert msgspec.json.decode(item["arguments"])["path"].endswith(text)
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "a sunny file"}
    _, done = send_codex(gateway, codex(MODELS[upstream], text, item, result))
    assert done["output"][-1]["content"][0]["text"] == "The tool says: a sunny file"
    # The history uses the same tool name as the tool list.
    assert gateway.last_request(upstream).body.count(b'"mcp__files__fetch"') >= 2
    assert b'"fetch"' not in gateway.last_request(upstream).body


@upstreams
def test_codex_runs_a_command_and_gets_its_output_quoted(gateway: Gateway, upstream: str) -> None:
    text = "exec_command ls please"
    answer, _ = send_codex(gateway, codex(MODELS[upstream], text))
    (item,) = done_items(answer)
    assert (item["type"], item["name"], item.get("namespace")) == ("function_call", "exec_command", None)
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny.txt"}
    _, done = send_codex(gateway, codex(MODELS[upstream], text, item, result))
    assert done["output"][-1]["content"][0]["text"] == "The tool says: sunny.txt"


def test_codex_reaches_a_responses_upstream_without_its_internals(gateway: Gateway) -> None:
    body = codex(MODELS["responses"], "exec_command ls")
    send_codex(gateway, body)
    del body["client_metadata"]
    assert gateway.last_request("responses").json == body | {"model": "model-x"}


def test_codex_reaches_a_chat_upstream_with_tools_it_can_take(gateway: Gateway) -> None:
    body = codex(MODELS["chat"], "exec_command ls")
    answer, _ = send_codex(gateway, body)
    sent = gateway.last_request("chat").json
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sent["tools"]}
    own = ["exec_command", "apply_patch", "mcp__files__fetch", "mcp__files__erase"]
    assert list(tools) == [*own, "web_search"]
    assert tools["apply_patch"]["properties"].keys() == {"input"}
    assert {tool["type"] for tool in sent["tools"]} == {"function"}
    roles = [message["role"] for message in sent["messages"]]
    assert roles[0] == "system"
    assert set(roles[1:]) <= {"system", "user"}
    assert body["instructions"].strip() in msgspec.json.encode(sent["messages"][0]).decode()
    assert b"The sandbox is read-only." in gateway.last_request("chat").body
    assert sent["reasoning_effort"] == "medium"
    assert sent["prompt_cache_key"] == SESSION
    assert {"store", "include", "client_metadata", "instructions", "input"} & sent.keys() <= {"store"}
    assert "no search provider is configured" in answer.headers["x-routecodex-notice"]


@pytest.mark.parametrize("upstream", ["responses", "messages", "gemini"], ids="to-{}".format)
def test_codex_gets_encrypted_reasoning_and_sends_it_back(gateway: Gateway, upstream: str) -> None:
    body = codex(MODELS[upstream], "think first")
    answer, _ = send_codex(gateway, body)
    items = done_items(answer)
    assert items[0]["summary"][0]["text"] == REASONING
    assert items[0]["encrypted_content"]
    (item,) = [item for item in items if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
    _, done = send_codex(gateway, codex(MODELS[upstream], "think first", *items, result))
    assert done["output"][-1]["content"][0]["text"] == "The tool says: sunny"
    assert f'"{SIGNATURE}"'.encode() in gateway.last_request(upstream).body


def test_the_probe_for_websockets_is_answered_with_use_post(gateway: Gateway) -> None:
    headers = {
        **CODEX_HEADERS,
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "openai-beta": "responses_websockets=2026-02-06",
    }
    answer = call(gateway, "GET", "/v1/responses", headers=headers)
    assert answer.status == 426
    assert "POST" in answer.json["error"]["message"]
