"""Clients with keys of their own: what one stores, no other reads, continues, changes or deletes."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.process import serve
from tests.gateway.clock_gateway import command, now_ms, task_item
from tests.gateway.continuation_gateway import PROTOCOLS, GatewayHarness
from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream
from tests.server.test_reload import serving_file

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
worker_counts = pytest.mark.parametrize("workers", ["1", "2"])
ALICE = {"authorization": "Bearer key-alice"}
BOB = {"authorization": "Bearer key-bob"}
SESSION = {"x-session-id": "s-1"}
OPERATOR = {"authorization": "Bearer operator"}
HOUR = 3_600_000
TWO = ("alice", "bob")
CLOCK = '[server_tools.clock]\nenabled = true\nntp = { enabled = false }\ntime_tag = "off"\nhold_max_ms = 0\n'


def server_lines(clients: tuple[str, ...]) -> str:
    rows = ", ".join(f'{{ name = "{name}", key = "key-{name}" }}' for name in clients)
    return f'admin_token = "operator"\nclient_keys = [{rows}]\n'


def configuration(
    protocol: str, upstream: Upstream, folder: Path, *, clients: tuple[str, ...] = TWO, more: str = ""
) -> str:
    store = f'[store]\nurl = "file:{folder}"\n{more}\n'
    return store + one_target(protocol, upstream, server=server_lines(clients))


@contextlib.asynccontextmanager
async def two_clients(
    protocol: str, folder: Path, *, upstream_protocol: str = "", more: str = ""
) -> AsyncIterator[GatewayHarness]:
    """Run a gateway with the clients alice and bob; its upstream answers every request with `ok`."""
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, upstream_protocol or protocol, folder, upstream)
        upstream.answer_with(lambda request: harness.text_answer("ok", request))
        async with serving(configuration(harness.upstream_protocol, upstream, folder, more=more)) as gateway:
            harness.port = gateway.port
            yield harness


async def say(harness: GatewayHarness, client: Mapping[str, str], text: str) -> str:
    """Send a text of this client in the session s-1; return the text of the answer."""
    answer = await harness.send(text, headers={**client, **SESSION})
    return harness.answer_text(answer, stream=False)


@protocols
async def test_the_same_session_id_of_two_clients_is_two_sessions(tmp_path: Path, protocol: str) -> None:
    async with two_clients(protocol, tmp_path) as harness:
        confirmed = await say(harness, ALICE, "<**!up.m**>")
        assert "up.m" in confirmed
        alice, bob = [await say(harness, client, "<**status**>") for client in (ALICE, BOB)]
        assert "up.m" in alice
        assert "nothing is set" in bob
        assert alice.splitlines()[0] == bob.splitlines()[0] == "[RouteCodex] status of session:s-1"
        await say(harness, BOB, "<**clear**>")
        assert await say(harness, ALICE, "<**status**>") == alice


@worker_counts
async def test_a_stop_message_of_one_client_is_not_used_by_another(tmp_path: Path, workers: str) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        upstream.answer_with(lambda request: harness.text_answer(f"part {len(upstream.requests)}", request))
        config = configuration("chat", upstream, harness.folder)
        async with serve(tmp_path, config, "--workers", workers) as process:
            harness.port = await process.port()
            await say(harness, ALICE, '<**stopMessage:"go on",3**>')
            for _ in range(4):
                await say(harness, BOB, "Hello")
            assert len(upstream.requests) == 4
            await say(harness, BOB, "<**stopMessage:clear**>")
            await say(harness, ALICE, "Hello")
    assert len(upstream.requests) == 8


@worker_counts
async def test_clock_tasks_belong_to_their_client(tmp_path: Path, workers: str) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        due = now_ms() + HOUR

        def answer(request: Request) -> Any:
            last = request.json["messages"][-1]
            if last["role"] == "tool":
                return harness.text_answer("done", request)
            items = [task_item(due)] if last["content"] == "schedule" else []
            return answers.tool_call(
                "chat", "clock", command(last["content"], *items), "call_0", stream=False
            )

        upstream.answer_with(answer)
        config = configuration("chat", upstream, harness.folder, more=CLOCK)
        async with serve(tmp_path, config, "--workers", workers) as process:
            harness.port = await process.port()
            await say(harness, ALICE, "schedule")
            for client in (ALICE, BOB):
                await say(harness, client, "list")
            found = [
                msgspec.json.decode(message["content"])["items"]
                for request in upstream.requests
                for message in request.json["messages"]
                if message["role"] == "tool" and '"items"' in message["content"]
            ]
            assert [len(items) for items in found] == [1, 0]
            assert "water the plants" in await say(harness, ALICE, "<**status**>")
            assert "There are no clock tasks." in await say(harness, BOB, "<**status**>")
            await say(harness, BOB, "<**clock:clear**>")
            assert "water the plants" in await say(harness, ALICE, "<**status**>")


async def test_a_reminder_is_delivered_to_the_client_that_set_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with two_clients("chat", tmp_path, more=CLOCK) as harness:

        def answer(request: Request) -> Any:
            if b"please schedule" in request.body and b'"role":"tool"' not in request.body:
                ordered = command("schedule", task_item(now_ms()))
                return answers.tool_call("chat", "clock", ordered, "call_0", stream=False)
            return harness.text_answer("ok", request)

        harness.upstream.answer_with(answer)
        await say(harness, ALICE, "please schedule")
        await say(harness, BOB, "Hello")
        await say(harness, ALICE, "Hello")
        reminded = [b"scheduled task" in request.body for request in harness.upstream.requests]
    assert reminded == [False, False, False, True]
    assert "1 due tasks of session 's-1' injected" in caplog.text
    assert "client~" not in caplog.text


async def responses_call(
    harness: GatewayHarness,
    client: Mapping[str, str],
    path: str = "",
    *,
    method: str = "GET",
    body: Any = None,
) -> Answer:
    return await call(harness.port, f"/v1/responses{path}", body, method=method, headers=client)


async def stored_response(harness: GatewayHarness, client: Mapping[str, str]) -> Any:
    """Return an answer that is stored for this client."""
    body = asking.body("responses", "my secret", stream=False)
    return (await responses_call(harness, client, method="POST", body=body)).json


NOT_HERE = [("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/submit_tool_outputs")]


@worker_counts
@pytest.mark.parametrize("upstream_protocol", ["chat", "responses"])
async def test_a_stored_response_of_another_client_does_not_exist(
    tmp_path: Path, upstream_protocol: str, workers: str
) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("responses", upstream_protocol, tmp_path / "state", upstream)
        upstream.answer_with(lambda request: harness.text_answer("ok", request))
        config = configuration(upstream_protocol, upstream, harness.folder)
        async with serve(tmp_path, config, "--workers", workers) as process:
            harness.port = await process.port()
            stored = await stored_response(harness, ALICE)
            for method, suffix in NOT_HERE:
                path = f"/{stored['id']}{suffix}"
                body: Any = {"tool_outputs": []} if method == "POST" else None
                answer = await responses_call(harness, BOB, path, method=method, body=body)
                assert (answer.status, answer.json["error"]["code"]) == (404, "response_not_found"), path
            continued = asking.body("responses", "and?", stream=False) | {
                "previous_response_id": stored["id"]
            }
            refused = await responses_call(harness, BOB, method="POST", body=continued)
            assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")
            assert len(upstream.requests) == 1
            for path in (f"/{stored['id']}", f"/{stored['id']}/input_items"):
                assert (await responses_call(harness, ALICE, path)).status == 200
            assert (await responses_call(harness, ALICE, method="POST", body=continued)).status == 200
            deleted = await responses_call(harness, ALICE, f"/{stored['id']}", method="DELETE")
            assert deleted.status == 200
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("upstream_protocol", ["chat", "responses"])
async def test_an_item_of_another_client_does_not_exist(tmp_path: Path, upstream_protocol: str) -> None:
    async with two_clients("responses", tmp_path, upstream_protocol=upstream_protocol) as harness:
        stored = await stored_response(harness, ALICE)
        reference = {"type": "item_reference", "id": stored["output"][0]["id"]}
        body = {"model": "up.m", "input": [reference, {"role": "user", "content": "and?"}]}
        refused = await responses_call(harness, BOB, method="POST", body=body)
        assert (refused.status, refused.json["error"]["code"]) == (400, "item_not_found")
        assert (await responses_call(harness, ALICE, method="POST", body=body)).status == 200
    assert len(harness.upstream.requests) == 2


async def test_an_unknown_response_is_passed_on_for_a_single_client_only(tmp_path: Path) -> None:
    """With several clients it may be another client's, made before this gateway or forgotten by it."""
    async with Upstream() as upstream:
        harness = GatewayHarness("responses", "responses", tmp_path, upstream)
        upstream.answer_with(lambda request: harness.text_answer("ok", request))
        body = asking.body("responses", "and?", stream=False) | {"previous_response_id": "resp_elsewhere"}
        statuses = []
        for clients in (("alice",), TWO):
            async with serving(configuration("responses", upstream, tmp_path, clients=clients)) as gateway:
                harness.port = gateway.port
                statuses.append((await responses_call(harness, ALICE, method="POST", body=body)).status)
    assert (statuses, len(upstream.requests)) == ([200, 400], 1)


def script_mixed_calls(harness: GatewayHarness) -> None:
    """Answer the first request with a call of the clock and one of the client, the others with a text."""

    def call_of(name: str, arguments: dict[str, Any], id: str) -> dict[str, Any]:
        function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        return {"id": id, "type": "function", "function": function}

    def answer(request: Request) -> Any:
        if len(harness.upstream.requests) > 1:
            return harness.text_answer("ok", request)
        calls = [call_of("clock", command("get"), "call_1"), call_of("get_weather", {"city": "x"}, "call_2")]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return Json(
            200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    harness.upstream.answer_with(answer)


@pytest.mark.parametrize("session", [SESSION, {}], ids=["session", "no-session"])
async def test_hidden_calls_are_put_back_for_their_client_only(
    tmp_path: Path, session: dict[str, str]
) -> None:
    async with two_clients("chat", tmp_path, more=CLOCK) as harness:
        script_mixed_calls(harness)
        first = asking.body("chat", "weather?", stream=False, tools=True)
        answer = await harness.send(body=first, headers={**ALICE, **session})
        message = answer.json["choices"][0]["message"]
        assert [one["id"] for one in message["tool_calls"]] == ["call_2"]
        result = {"role": "tool", "tool_call_id": "call_2", "content": "sunny"}
        second = {**first, "messages": [*first["messages"], message, result]}
        for client in (BOB, ALICE):
            await harness.send(body=second, headers={**client, **session})
        seen = [b"call_1" in request.body for request in harness.upstream.requests]
    assert seen == [False, False, True]


THINKING = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "alice is worried", "signature": "sig-1"},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "x"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


async def test_reasoning_behind_a_call_is_restored_for_its_client_only(tmp_path: Path) -> None:
    async with two_clients("chat", tmp_path, upstream_protocol="messages") as harness:
        harness.upstream.answer_with(
            lambda request: (
                Json(200, THINKING)
                if len(harness.upstream.requests) == 1
                else harness.text_answer("ok", request)
            )
        )
        first = asking.body("chat", "weather?", stream=False, tools=True) | {"reasoning_effort": "low"}
        answer = await harness.send(body=first, headers=ALICE)
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message["tool_calls"] = answer.json["choices"][0]["message"]["tool_calls"]
        call_id = message["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": call_id, "content": "sunny"}
        second = {**first, "messages": [*first["messages"], message, result]}
        for client in (BOB, ALICE):
            assert (await harness.send(body=second, headers=client)).status == 200
        seen = [b"alice is worried" in request.body for request in harness.upstream.requests]
    assert seen == [False, False, True]


VISION = '[server_tools.vision_auto]\nenabled = true\n[routing]\ndefault = ["blind.m"]\nvision = ["up.m"]\n'


async def test_the_description_of_an_image_is_cached_for_its_client_only(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path, upstream)
        upstream.answer_with(lambda request: harness.text_answer("a cat", request))
        config = configuration("chat", upstream, tmp_path)
        blind = (
            f'[providers.blind]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:{upstream.port}/v1"\n'
            'auth = [{ value = "k" }]\n[providers.blind.models.m]\nvision = false\n'
        )
        config = config.replace('[routing]\ndefault = ["up.m"]\n', blind + VISION)
        image = {"type": "image_url", "image_url": {"url": "https://private.example/1.png"}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
        async with serving(config) as gateway:
            harness.port = gateway.port
            for client in (ALICE, ALICE, BOB):
                body = {"model": "blind.m", "messages": messages}
                assert (await harness.send(body=body, headers=client)).status == 200
        described = [b"private.example" in request.body for request in upstream.requests]
    assert described == [True, False, False, True, False]


async def test_embeddings_follow_the_rules_of_the_session_of_their_client(tmp_path: Path) -> None:
    async with two_clients("chat", tmp_path) as harness:
        vectors = {
            "object": "list",
            "model": "m",
            "data": [{"object": "embedding", "index": 0, "embedding": [1]}],
        }
        harness.upstream.answer_with(
            lambda request: (
                Json(200, vectors) if b'"input"' in request.body else harness.text_answer("ok", request)
            )
        )
        await say(harness, ALICE, "<**#up**>")
        statuses = [
            (
                await call(
                    harness.port,
                    "/v1/embeddings",
                    {"model": "up.m", "input": "x"},
                    headers={**client, **SESSION},
                )
            ).status
            for client in (ALICE, BOB)
        ]
    assert statuses[0] >= 400
    assert statuses[1] == 200


def listing(folder: Path) -> list[str]:
    """Return the stored files of a folder, without the ids that differ from run to run."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*.json"))
    return sorted(re.sub(r"(resp|msg)_[0-9a-z_]+|[0-9a-f]{16,}", "ID", name) for name in names)


async def test_a_single_client_has_the_files_of_a_gateway_without_keys(tmp_path: Path) -> None:
    found = []
    async with Upstream() as upstream:
        upstream.answer_with(lambda request: answers.text("chat", "ok", answers.wants_stream(request)))
        for clients in ((), ("alice",)):
            folder = tmp_path / str(len(clients))
            harness = GatewayHarness("chat", "chat", folder, upstream)
            async with serving(
                configuration("chat", upstream, folder, clients=clients, more=CLOCK)
            ) as gateway:
                harness.port = gateway.port
                await say(harness, ALICE, "<**!up.m**>")
                await harness.send(
                    body=asking.body("chat", "Hello", stream=False, tools=True), headers={**ALICE, **SESSION}
                )
                await stored_response(harness, ALICE)
            found.append(listing(folder))
    assert [name for name in found[1] if not name.startswith("client-use/")] == found[0]
    assert "sessions/session%3as-1.json" in found[0]


async def test_a_second_client_starts_fresh_sessions_and_leaves_those_of_the_first(tmp_path: Path) -> None:
    folder, file = tmp_path / "state", tmp_path / "gateway.toml"
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", folder, upstream)
        upstream.answer_with(lambda request: harness.text_answer("ok", request))
        file.write_text(configuration("chat", upstream, folder, clients=("alice",)))
        async with serving_file(file) as gateway:
            harness.port = gateway.port
            await say(harness, ALICE, "<**!up.m**>")
            stored = await stored_response(harness, ALICE)
            found = []
            for clients in (TWO, ("alice",)):
                file.write_text(configuration("chat", upstream, folder, clients=clients))
                reply = await call(harness.port, "/admin/reload", {}, headers=OPERATOR)
                assert reply.json["reloaded"]
                status = await say(harness, ALICE, "<**status**>")
                response = await responses_call(harness, ALICE, f"/{stored['id']}")
                found.append(("up.m" in status, response.status))
    assert found == [(False, 404), (True, 200)]


@pytest.mark.parametrize("way", ["path", "conversation"])
async def test_however_a_session_is_named_it_belongs_to_its_client(tmp_path: Path, way: str) -> None:
    prefix = "/s/s-1" if way == "path" else ""
    named = {} if prefix else {"x-conversation-id": "s-1"}
    async with two_clients("chat", tmp_path) as harness:

        async def send(client: Mapping[str, str], text: str) -> str:
            body, headers = asking.body("chat", text, stream=False), {**client, **named}
            answer = await call(harness.port, f"{prefix}/v1/chat/completions", body, headers=headers)
            return answer_text("chat", answer, stream=False)

        await send(ALICE, "<**!up.m**>")
        shown = [await send(client, "<**status**>") for client in (ALICE, BOB)]
    assert ["up.m" in text for text in shown] == [True, False]


HOSTILE = [
    "client~alice:session:s-1",
    "client~alice:s-1",
    "session:client~alice:s-1",
    "client~:s-1",
    "alice:s-1",
    "alice/s-1",
    "../alice/s-1",
    "s-1\x00",
    "client%7Ealice:session:s-1",
]


@pytest.mark.parametrize("id", HOSTILE)
async def test_no_session_id_imitates_the_session_of_another_client(tmp_path: Path, id: str) -> None:
    async with two_clients("responses", tmp_path, upstream_protocol="chat") as harness:
        await say(harness, ALICE, "<**!up.m**>")
        body = asking.body("responses", "<**status**>", stream=False) | {"prompt_cache_key": id}
        answer = await harness.send(body=body, headers=BOB)
        assert "nothing is set" in answer_text("responses", answer, stream=False)
