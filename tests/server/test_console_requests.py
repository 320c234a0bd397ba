"""The playground and replay: requests of the console, answered as those of any client."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import provider
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.server.captured import BEARER, admin, ask, capture_of, capturing, config, one

PROTOCOLS = ("chat", "messages", "responses", "gemini")


def asked(
    protocol: str, text: str = "Hello", *, stream: bool, model: str = "up.m", **more: Any
) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "path": asking.path(protocol, stream=stream, model=model),
        "body": asking.body(protocol, text, stream=stream, model=model),
        **more,
    }


def ledger(home: Path) -> list[dict[str, Any]]:
    path = home / "usage" / "main.sqlite"
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM requests ORDER BY id")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", ["chat", "messages"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_answer_of_the_playground_is_that_of_a_client(
    tmp_path: Path, protocol: str, upstream: str, stream: bool
) -> None:
    async with (
        Upstream(lambda _: answers.text(upstream, "Bonjour", stream)) as up,
        capturing(tmp_path, one(upstream, up)) as running,
    ):
        answer = await admin(running, "playground", asked(protocol, stream=stream))
        client = await ask(running, protocol, stream=stream)
        found = await capture_of(running, answer)
        asking.check(protocol, answer, stream=stream)
        assert up.requests[0].body == up.requests[1].body
        assert up.requests[0].headers.keys() == up.requests[1].headers.keys()
    same = ("content-type", "x-routecodex-target", "x-routecodex-route", "x-routecodex-cost")
    assert {name: answer.headers.get(name) for name in same} == {
        name: client.headers.get(name) for name in same
    }
    assert "no-store" in answer.headers["cache-control"]
    assert found["client"]["name"] == "console"
    assert found["client"]["response"].encode() == answer.body


async def test_requests_of_the_playground_are_in_records_and_ledger(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "off"')) as running,
    ):
        answer = await admin(running, "playground", asked("chat", stream=False, session="séance"))
        rows = (await admin(running, "requests")).json["requests"]
    id = answer.headers["x-request-id"]
    assert [(row["request"], row["client"], row["session"]) for row in rows] == [(id, "console", "séance")]
    (row,) = ledger(tmp_path)
    assert (row["id"], row["client"], row["session"], row["status"]) == (id, "console", "séance", 200)


async def test_the_session_of_the_playground_is_that_of_clients(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = config(provider("up", "chat", up), provider("other", "chat", up))
        async with capturing(tmp_path, text) as running:
            await ask(running, "chat", "<**!other**> hi", model="auto", x_session_id="s-1")
            sticky = await admin(
                running, "playground", asked("chat", stream=False, model="auto", session="s-1")
            )
            fresh = await admin(running, "playground", asked("chat", stream=False, model="auto"))
    assert [reply.headers["x-routecodex-target"] for reply in (sticky, fresh)] == [
        "other.primary.m",
        "up.primary.m",
    ]


async def test_a_body_may_be_given_as_text(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        body = '{"model": "up.m",  "messages": [{"role": "user", "content": "caf\\u00e9"}]}'
        call = {"protocol": "chat", "path": "/v1/chat/completions", "body": body}
        answer = await admin(running, "playground", call)
        found = await capture_of(running, answer)
    assert (answer.status, found["client"]["body"]) == (200, body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_error_is_that_of_the_protocol_and_is_recorded_once(tmp_path: Path, protocol: str) -> None:
    async with (
        Upstream(lambda _: answers.error("chat", 400, "no such thing")) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "off"')) as running,
    ):
        answer = await admin(running, "playground", asked(protocol, stream=False))
        client = await ask(running, protocol)
        wrong = await admin(running, "playground", asked(protocol, stream=False) | {"body": []})
        rows = (await admin(running, "requests")).json["requests"]
    assert (answer.status, answer.json) == (client.status, client.json)
    assert "x-routecodex-target" in answer.headers
    assert wrong.status == 400
    assert [row.get("client") for row in rows] == ["console", None, "console"]
    assert [row["status"] for row in rows] == [400, 400, 400]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"path": "/v1/responses"}, "path"),
        ({"path": "/admin/status"}, "path"),
        ({"path": "/v1/models"}, "path"),
        ({"path": "http://127.0.0.1/v1/chat/completions"}, "path"),
        ({"path": "/v1/%zz/chat/completions"}, "path"),
        ({"path": ""}, "path"),
        ({"session": " "}, "session"),
        ({"session": "s" * 300}, "session"),
        ({"protocol": "grpc"}, "protocol"),
    ],
)
async def test_a_wrong_call_is_a_400_that_names_the_field(
    tmp_path: Path, change: dict[str, str], param: str
) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up)) as running:
        answer = await admin(running, "playground", asked("chat", stream=False) | change)
        assert up.requests == []
    assert (answer.status, answer.json["error"].get("param")) == (400, param)


async def test_a_page_that_leaves_aborts_the_provider(tmp_path: Path) -> None:
    sse = answers.text("chat", "Hello", True)
    assert isinstance(sse, Sse)
    async with (
        Upstream(lambda _: Sse(sse.frames, pace={len(sse.frames) - 1: asyncio.Event()})) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        page = await begin(running.port, "/admin/playground", asked("chat", stream=True), headers=BEARER)
        head = await page.head()
        first = await page.piece()
        assert first.startswith(b"data: ")
        await page.leave()
        await asyncio.wait_for(up.requests[0].gone.wait(), 5)
        found = await capture_of(running, head)
        rows = (await admin(running, "requests")).json["requests"]
    assert found["client"]["response"].encode().startswith(first)
    assert [row["status"] for row in rows] == [499]


async def test_the_playground_needs_no_client_key(tmp_path: Path) -> None:
    keys = 'client_keys = [{ name = "laptop", key = "key-of-laptop" }]'
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, server=keys)) as running,
    ):
        answer = await admin(running, "playground", asked("chat", stream=False))
    assert answer.status == 200


async def replay(running: Any, answer: Answer, **to: str) -> Answer:
    return await admin(running, f"requests/{answer.headers['x-request-id']}/replay", to)


def named(request: Request) -> str:
    return str(request.path if "/models/" in request.path else request.json["model"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_captured_request_is_sent_to_another_target(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "first", stream)) as up,
        Upstream(lambda _: answers.text(protocol, "second", stream)) as other,
    ):
        text = config(provider("up", "chat", up), provider("other", protocol, other))
        async with capturing(tmp_path, text) as running:
            answer = await ask(running, protocol, "a question", stream=stream, x_session_id="s-1")
            again = await replay(running, answer, target="other.m")
            found = await capture_of(running, again)
            asking.check(protocol, again, stream=stream)
            assert "a question" in other.requests[0].body.decode()
    assert again.headers["x-routecodex-target"] == "other.primary.m"
    assert again.headers["x-request-id"] != answer.headers["x-request-id"]
    assert found["client"]["name"] == "console"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_captured_request_is_sent_to_another_model(tmp_path: Path, protocol: str) -> None:
    async with Upstream(lambda _: answers.text(protocol, "hi", False)) as up:
        text = config(
            provider("up", protocol, up), provider("other", protocol, up), more='[models]\n"big" = "other.m"'
        )
        async with capturing(tmp_path, text) as running:
            again = await replay(running, await ask(running, protocol), model="big")
    assert (again.status, again.headers["x-routecodex-target"]) == (200, "other.primary.m")


async def test_a_target_wins_over_the_session_the_operator_and_aliases(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        rows = [provider(name, "chat", up) for name in ("up", "other", "third")]
        async with capturing(tmp_path, config(*rows, more='[models]\n"*" = "third.m"')) as running:
            answer = await ask(running, "chat", "<**!up**> hi", x_session_id="s-1")
            await admin(running, "routing", {"sticky": "up.m"})
            again = await replay(running, answer, target="other.m")
            key = await replay(running, answer, target="other.primary.m")
            after = await ask(running, "chat", model="auto", x_session_id="s-1")
    assert [reply.headers["x-routecodex-target"] for reply in (again, key, after)] == [
        "other.primary.m",
        "other.primary.m",
        "up.primary.m",
    ]


async def test_a_replay_keeps_the_headers_of_the_client_and_sends_no_placeholder(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("messages", "hi", False)) as up:
        keys = 'client_keys = [{ name = "laptop", key = "key-of-laptop" }]'
        async with capturing(tmp_path, one("messages", up, server=keys)) as running:
            answer = await ask(
                running, "messages", x_api_key="key-of-laptop", anthropic_beta="tools-1", cookie="a=bcdefgh"
            )
            again = await replay(running, answer, target="up.m")
            found = await capture_of(running, again)
    assert again.status == 200, again.body
    first, second = up.requests
    assert second.headers["anthropic-beta"] == first.headers["anthropic-beta"] == "tools-1"
    assert second.body == first.body
    assert not [value for value in found["client"]["headers"].values() if "***" in value]


@pytest.mark.parametrize("to", [{}, {"target": "up.m", "model": "up.m"}, {"target": ""}, {"model": ""}])
async def test_a_replay_names_one_goal(tmp_path: Path, to: dict[str, str]) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        again = await replay(running, await ask(running, "chat"), **to)
        assert len(up.requests) == 1
    assert again.status == 400
    assert "name either a target or a model" in again.json["error"]["message"]


async def test_an_unknown_target_is_the_error_that_a_client_would_get(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        again = await replay(running, await ask(running, "chat"), target="nowhere.m")
    assert again.status in (400, 404, 503)
    assert "nowhere" in again.json["error"]["message"]


async def test_a_request_that_was_cut_is_not_sent_again(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "all"\nmax_body_kb = 1')) as running,
    ):
        again = await replay(running, await ask(running, "chat", "x" * 5000), target="up.m")
        assert len(up.requests) == 1
    assert (again.status, again.json["error"]["code"]) == (409, "capture_incomplete")
    assert "capture.max_body_kb" in again.json["error"]["message"]


async def test_token_counts_and_embeddings_are_replayed_too(tmp_path: Path) -> None:
    def reply(request: Request) -> Json:
        return Json(200, {"input_tokens": 7}) if "count" in request.path else Json(200, {"data": []})

    async with (
        Upstream(reply) as up,
        capturing(tmp_path, config(provider("up", "messages", up), provider("e", "chat", up))) as running,
    ):
        body = asking.body("messages", stream=False)
        del body["stream"]
        counted = await call(running.port, "/v1/messages/count_tokens", body)
        embedded = await call(running.port, "/v1/embeddings", {"model": "e.m", "input": "x"})
        again = [
            await replay(running, counted, target="up.m"),
            await replay(running, embedded, model="e.m"),
        ]
    assert [reply.json for reply in again] == [{"input_tokens": 7}, {"data": []}]
