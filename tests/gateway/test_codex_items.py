"""Codex's own tools and items: as they came for OpenAI, in plain form for everyone else."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols.codecs import CODECS
from routecodex.protocols.grammar import frames
from tests.gateway.test_codex_tools import declaration, user
from tests.kit import answers, asking
from tests.kit.gateway import NO_HEALTH, one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": {"type": "text"}}
SPAWN = {"type": "function", "name": "spawn", "parameters": SCHEMA}
WAIT = {"type": "function", "name": "wait", "parameters": SCHEMA}
TEAM = {"type": "namespace", "name": "collaboration", "description": "", "tools": [SPAWN]}
DEFAULTS = {"type": "namespace", "name": "functions", "description": "", "tools": [WAIT]}
FOUND = {"type": "function", "name": "issues", "description": "Lists issues.", "parameters": SCHEMA}
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds more tools.",
    "parameters": QUERY,
}
PASSTHROUGH = "internal_chat_message_metadata_passthrough"
HISTORY: list[dict[str, Any]] = [
    declaration(PATCH, TEAM, DEFAULTS),
    {**user("go"), PASSTHROUGH: {"k": "v"}},
    {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "c1",
        "name": "apply_patch",
        "input": "*** Begin",
    },
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    {
        "type": "function_call",
        "call_id": "c2",
        "name": "spawn",
        "namespace": "collaboration",
        "arguments": "{}",
        "encrypted_function_args": "gAAA",
    },
    {"type": "function_call_output", "call_id": "c2", "output": "spawned"},
    {"type": "tool_search_call", "call_id": "c3", "execution": "client", "arguments": {"query": "issues"}},
    {"type": "tool_search_output", "call_id": "c3", "execution": "client", "tools": [FOUND]},
    {
        "type": "agent_message",
        "author": "worker",
        "recipient": "main",
        "content": [{"type": "input_text", "text": "All found."}],
    },
    user("again"),
]
BODY: dict[str, Any] = {
    "model": "up.m",
    "input": HISTORY,
    "tools": [SEARCH],
    "client_metadata": {"session_id": "s"},
    "store": False,
}
CALLS = (
    answers.Call("apply_patch", {"input": "*** End"}, "d1"),
    answers.Call("collaboration__spawn", {"cmd": "x"}, "d2"),
    answers.Call("wait", {"cmd": "y"}, "d3"),
    answers.Call("tool_search", {"query": "mail"}, "d4"),
    answers.Call("issues", {"cmd": "z"}, "d5"),
)
CALLED = [
    {"type": "custom_tool_call", "call_id": "d1", "name": "apply_patch", "input": "*** End"},
    {"type": "function_call", "call_id": "d2", "name": "spawn", "namespace": "collaboration"},
    {"type": "function_call", "call_id": "d3", "name": "wait", "namespace": "functions"},
    {"type": "tool_search_call", "call_id": "d4", "execution": "client", "arguments": {"query": "mail"}},
    {"type": "function_call", "call_id": "d5", "name": "issues"},
]
PLAIN_CALLS = ["apply_patch", "collaboration__spawn", "tool_search"]
CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"


async def ask(upstream: str, reply: Any, *, stream: bool = False, more: str = "", head: str = "") -> Any:
    """Return the answer to a Codex client, and the requests that the provider received."""
    async with Upstream() as up:
        up.answer_with(reply if callable(reply) else lambda _: reply)
        async with serving(head + one_target(upstream, up, more=more) + NO_HEALTH) as gateway:
            answer = await call(gateway.port, "/v1/responses", {**BODY, "stream": stream})
    return answer, up.requests


def made_calls(answer: Answer, *, stream: bool) -> list[dict[str, Any]]:
    """Return the calls of an answer, with the fields that Codex reads."""
    body = frames.read(answer.body)[-1].json["response"] if stream else answer.json
    kept = ("type", "call_id", "name", "namespace", "execution", "input")
    calls = [item for item in body["output"] if item["type"].endswith("_call")]
    return [
        {name: item[name] for name in kept if name in item}
        | ({"arguments": item["arguments"]} if item["type"] == "tool_search_call" else {})
        for item in calls
    ]


def declared(protocol: str, request: Request) -> dict[str, Any]:
    """Return the tools of a provider's request: names and kinds with their parameters."""
    fields = {"model": "m", "stream": False} if protocol == "gemini" else {}
    decoded = CODECS[protocol].decode_request(CODECS[protocol].validate(request.body, **fields))
    return {tool.name: (tool.kind, tool.namespace, tool.parameters) for tool in decoded.tools}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("armed", ["", CLOCK])
@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_other_protocols_get_functions_and_codex_its_own_items(
    upstream: str, armed: str, stream: bool
) -> None:
    reply = answers.tool_calls(upstream, *CALLS, stream=stream)
    answer, (request,) = await ask(upstream, reply, stream=stream, head=armed)
    asking.check("responses", answer, stream=stream)
    assert made_calls(answer, stream=stream) == CALLED
    tools = declared(upstream, request)
    assert set(tools) - {"clock"} == {"apply_patch", "collaboration__spawn", "wait", "tool_search", "issues"}
    assert {kind for kind, _, _ in tools.values()} == {"function"}
    assert tools["tool_search"][2] == QUERY
    # Gemini has no field for `strict` of the clock.
    assert armed or "x-routecodex-notice" not in answer.headers
    for internal in (PASSTHROUGH, "encrypted_function_args", "client_metadata"):
        assert internal.encode() not in request.body
    for told in ("Lists issues.", "All found.", "worker"):
        assert told.encode() in request.body


def function_calls(request: Request) -> list[str]:
    assert all(item["type"] in PLAIN_ITEMS for item in request.json["input"])
    return [item["name"] for item in request.json["input"] if item["type"] == "function_call"]


PLAIN_ITEMS = ("message", "function_call", "function_call_output")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("armed", ["", CLOCK])
async def test_a_plain_responses_provider_gets_functions_only(armed: str, stream: bool) -> None:
    reply = answers.tool_calls("responses", *CALLS, stream=stream)
    more = 'codex_items = "plain"\n'
    answer, (request,) = await ask("responses", reply, stream=stream, more=more, head=armed)
    asking.check("responses", answer, stream=stream)
    assert made_calls(answer, stream=stream) == CALLED
    tools = declared("responses", request)
    assert set(tools) - {"clock"} == {"apply_patch", "collaboration__spawn", "wait", "tool_search", "issues"}
    assert {(kind, namespace) for kind, namespace, _ in tools.values()} == {("function", None)}
    assert function_calls(request) == PLAIN_CALLS
    assert b"ctc_1" not in request.body
    assert "client_metadata" not in request.json
    assert b"worker" in request.body


@pytest.mark.parametrize("armed", ["", CLOCK])
async def test_a_native_provider_gets_everything_as_it_came(armed: str) -> None:
    reply = answers.text("responses", "fine", False)
    _, (request,) = await ask("responses", reply, more='codex_items = "native"\n', head=armed)
    sent = request.json
    assert sent["input"][: len(HISTORY)] == HISTORY
    assert sent["client_metadata"] == BODY["client_metadata"]
    assert sent["tools"][0] == SEARCH


def without_internals(item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in item.items() if name not in (PASSTHROUGH, "encrypted_function_args")
    }


@pytest.mark.parametrize("armed", ["", CLOCK])
async def test_other_responses_providers_get_it_without_the_internals(armed: str) -> None:
    answer, (request,) = await ask("responses", answers.text("responses", "fine", False), head=armed)
    sent = request.json
    assert sent["input"][: len(HISTORY)] == [without_internals(item) for item in HISTORY]
    assert "client_metadata" not in sent
    assert sent["tools"][0] == SEARCH
    assert "x-routecodex-notice" not in answer.headers


class Refuses:
    """A Responses provider that knows functions only."""

    def __init__(self, status: int, *, stream: bool, always: bool = False) -> None:
        self._status, self._stream, self._always = status, stream, always

    def __call__(self, request: Request) -> Json | Sse:
        if self._always or b"additional_tools" in request.body:
            return Json(self._status, {"error": {"message": "unknown type", "type": "invalid_request_error"}})
        return answers.tool_calls("responses", *CALLS, stream=self._stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("armed", ["", CLOCK])
@pytest.mark.parametrize("status", [400, 422])
async def test_a_provider_that_rejects_it_gets_the_plain_form_from_then_on(
    status: int, armed: str, stream: bool
) -> None:
    provider = Refuses(status, stream=stream)
    async with Upstream(provider) as up, serving(armed + one_target("responses", up)) as gateway:
        for _ in range(2):
            answer = await call(gateway.port, "/v1/responses", {**BODY, "stream": stream})
            asking.check("responses", answer, stream=stream)
            assert made_calls(answer, stream=stream) == CALLED
    assert [b"additional_tools" in request.body for request in up.requests] == [True, False, False]
    assert [function_calls(request) for request in up.requests[1:]] == [PLAIN_CALLS, PLAIN_CALLS]


async def test_a_request_that_is_wrong_in_either_form_leaves_the_provider_as_it_is() -> None:
    provider = Refuses(400, stream=False, always=True)
    async with Upstream(provider) as up, serving(one_target("responses", up) + NO_HEALTH) as gateway:
        answer = await call(gateway.port, "/v1/responses", BODY)
        assert (answer.status, answer.json["error"]["message"]) == (400, "unknown type")
        await call(gateway.port, "/v1/responses", BODY)
    assert [b"additional_tools" in request.body for request in up.requests] == [True, False, True, False]


@pytest.mark.parametrize(("setting", "requests"), [("native", 1), ("auto", 1)])
async def test_a_rejection_without_codex_items_or_from_a_native_provider_is_final(
    setting: str, requests: int
) -> None:
    body = BODY if setting == "native" else {"model": "up.m", "input": 'Say "custom".'}
    async with Upstream(Refuses(400, stream=False, always=True)) as up:
        more = f'codex_items = "{setting}"\n'
        async with serving(one_target("responses", up, more=more)) as gateway:
            assert (await call(gateway.port, "/v1/responses", body)).status == 400
    assert len(up.requests) == requests


async def test_a_choice_of_a_namespaced_tool_names_the_function() -> None:
    async with Upstream(lambda _: answers.text("responses", "fine", False)) as up:
        body = {**BODY, "tool_choice": {"type": "function", "name": "spawn"}}
        async with serving(plain_target(up)) as gateway:
            assert (await call(gateway.port, "/v1/responses", body)).status == 200
    assert up.requests[0].json["tool_choice"] == {"type": "function", "name": "collaboration__spawn"}


def plain_target(upstream: Upstream) -> str:
    return one_target("responses", upstream, more='codex_items = "plain"\n')


@pytest.mark.parametrize("stream", [False, True])
async def test_plain_providers_relay_requests_without_codex_items(stream: bool) -> None:
    reply = answers.text("responses", "fine", stream)
    async with Upstream(lambda _: reply) as up, serving(plain_target(up)) as gateway:
        answer = await call(gateway.port, "/v1/responses", asking.body("responses", stream=stream))
    assert b'"fine"' in answer.body
    assert reply.data.partition(b'"id":"')[2][:12] in answer.body


async def test_a_custom_tool_of_a_chat_client_reaches_a_provider_with_functions_only() -> None:
    tool = {"type": "custom", "custom": {"name": "apply_patch"}}
    messages = [{"role": "user", "content": "go"}]

    def script(request: Request) -> Json | Sse:
        if b'"custom"' in request.body:
            return Json(400, {"error": {"message": "unknown type"}})
        return answers.tool_calls("responses", CALLS[0], stream=False)

    async with Upstream(script) as up, serving(one_target("responses", up)) as gateway:
        body = {"model": "up.m", "messages": messages, "tools": [tool]}
        answer = await call(gateway.port, "/v1/chat/completions", body)
    (made,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert made == {"id": "d1", "type": "custom", "custom": {"name": "apply_patch", "input": "*** End"}}
    assert len(up.requests) == 2


@pytest.mark.parametrize("armed", ["", '<**stopMessage:"go on",3**> '])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_for_tools_of_a_native_provider_is_the_clients_turn(armed: str, stream: bool) -> None:
    """A follow-up of stopMessage would answer in the place of the client."""
    item: dict[str, Any] = {"type": "tool_search_call", "id": "tsc_1", "call_id": "d4", "execution": "client"}
    item |= {"arguments": {"query": "mail"}, "status": "completed"}
    whole = answers.text("responses", "x", False)
    assert isinstance(whole, Json)
    response = {**whole.body, "output": [item]}
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item},
        {"type": "response.completed", "sequence_number": 2, "response": response},
    ]
    sse = [f"event: {event['type']}\ndata: ".encode() + Json(200, event).data + b"\n\n" for event in events]
    reply = Sse(sse) if stream else Json(200, response)
    async with Upstream(lambda _: reply) as up, serving(one_target("responses", up)) as gateway:
        body = {**BODY, "input": [*HISTORY, user(f"{armed}search")], "stream": stream}
        answer = await call(gateway.port, "/v1/responses", body, headers={"x-session-id": "s"})
    assert made_calls(answer, stream=stream) == [CALLED[3]]
    assert len(up.requests) == 1
