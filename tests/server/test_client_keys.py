"""Client keys over HTTP: who is refused, with which code, in every protocol; and clients without a key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Send, Steps, Wait
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
CLIENTS = """
[clients.good]
key = "key-good"
[clients.blocked]
key = "key-blocked"
blocked = true
[clients.old]
key = "key-old"
expires = "2020-01-01T00:00:00Z"
[clients.narrow]
key = "key-narrow"
allow = { models = ["up.other"] }
"""
OPERATOR = {"authorization": "Bearer operator"}
ADMIN = 'admin_token = "operator"'

# Status, top-level code, and type and code inside the error object.
ERRORS: dict[str, tuple[str, int, str, dict[str, tuple[str, str | None]]]] = {
    "unknown": (
        "key-wrong",
        401,
        "invalid_api_key",
        {
            "chat": ("invalid_request_error", "invalid_api_key"),
            "messages": ("authentication_error", None),
            "gemini": ("UNAUTHENTICATED", None),
        },
    ),
    "expired": (
        "key-old",
        401,
        "key_expired",
        {
            "chat": ("invalid_request_error", "invalid_api_key"),
            "messages": ("authentication_error", None),
            "gemini": ("UNAUTHENTICATED", None),
        },
    ),
    "blocked": (
        "key-blocked",
        403,
        "key_blocked",
        {
            "chat": ("permission_error", "key_blocked"),
            "messages": ("permission_error", None),
            "gemini": ("PERMISSION_DENIED", None),
        },
    ),
    "not allowed": (
        "key-narrow",
        403,
        "not_allowed",
        {
            "chat": ("permission_error", "not_allowed"),
            "messages": ("permission_error", None),
            "gemini": ("PERMISSION_DENIED", None),
        },
    ),
}


def text(up: Upstream, clients: str = CLIENTS) -> str:
    return one_target("chat", up, server=ADMIN) + clients


async def ask(port: int, key: str | None, protocol: str = "chat", *, stream: bool = False) -> Answer:
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    return await call(
        port, asking.path(protocol, stream=stream), asking.body(protocol, stream=stream), headers=headers
    )


async def admin(port: int, path: str, body: Any = None) -> Answer:
    method = "GET" if body is None else "POST"
    return await call(port, f"/admin/{path}", body, method=method, headers=OPERATOR)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", ERRORS)
async def test_a_refused_key_has_its_code_in_every_protocol_and_is_not_retried(
    case: str, protocol: str, stream: bool
) -> None:
    key, status, code, rows = ERRORS[case]
    async with Upstream() as up:
        async with serving(text(up)) as gateway:
            answer = await ask(gateway.port, key, protocol, stream=stream)
        assert up.requests == []
    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"
    assert isinstance(answer.json["details"], dict)
    grammar.check_error(protocol, status, answer.body)
    kind, inner = rows["chat" if protocol == "responses" else protocol]
    error = answer.json["error"]
    assert error["status" if protocol == "gemini" else "type"] == kind
    if inner is not None:
        assert error["code"] == inner


async def test_a_revoked_key_is_called_so() -> None:
    async with Upstream() as up, serving(text(up)) as gateway:
        made = (await admin(gateway.port, "clients", {"name": "gone"})).json
        await admin(gateway.port, "clients/gone/revoke", {})
        answer = await ask(gateway.port, made["key"])
    assert (answer.status, answer.json["code"], answer.json["error"]["code"]) == (
        *(401, "key_revoked", "invalid_api_key"),
    )
    assert answer.json["details"] == {"client": "gone"}
    assert answer.headers["x-should-retry"] == "false"


async def test_a_refused_key_is_told_before_the_body_is_read() -> None:
    async with Upstream() as up, serving(text(up)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: key-blocked\r\n"
            b"content-type: application/json\r\ncontent-length: 100000\r\nexpect: 100-continue\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        writer.close()
        await writer.wait_closed()


ANONYMOUS = '[clients.anonymous]\nallow = { models = ["up.m"] }\ninstructions = "none"\n'


async def test_requests_without_a_key_are_anonymous_and_bad_keys_are_not() -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(text(up, CLIENTS + ANONYMOUS)) as gateway:
            assert (await ask(gateway.port, None)).status == 200
            codes = [(await ask(gateway.port, key)).status for key in ("key-wrong", "key-old", "key-blocked")]
            row = (await admin(gateway.port, "clients/anonymous")).json["client"]
        assert codes == [401, 401, 403]
        assert len(up.requests) == 1
    assert (row["keys"], row["source"], row["last_used_at"] is not None) == ([], "file", True)


async def test_the_last_use_of_a_client_is_shown() -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up, serving(text(up)) as gateway:
        for _ in range(2):
            asking.check("chat", await ask(gateway.port, "key-good"), stream=False)
        row = (await admin(gateway.port, "clients/good")).json["client"]
    assert (row["name"], row["in_flight"], row["last_used_at"] is not None) == ("good", 0, True)


async def in_flight(gateway: Running, name: str) -> int:
    return int((await admin(gateway.port, f"clients/{name}")).json["client"]["in_flight"])


async def test_a_request_is_in_flight_until_its_answer_ends() -> None:
    release = asyncio.Event()
    body = answers.text("chat", "hi", False)
    assert isinstance(body, Json)
    steps = Steps((Wait(release), Send(body.data)), headers={"content-type": "application/json"})
    async with Upstream(lambda _: steps) as up, serving(text(up)) as gateway:
        asked = asyncio.ensure_future(ask(gateway.port, "key-good"))
        await up.received()
        assert [await in_flight(gateway, name) for name in ("good", "narrow")] == [1, 0]
        release.set()
        asking.check("chat", await asked, stream=False)
        assert await in_flight(gateway, "good") == 0


async def test_an_open_address_whose_last_client_is_gone_refuses_every_request() -> None:
    server = f'host = "0.0.0.0"\nallowed_hosts = ["*"]\n{ADMIN}'
    async with Upstream() as up:
        clients = '[clients.last]\nkey = "key-last"\n'
        async with serving(one_target("chat", up, server=server) + clients) as gateway:
            running = gateway.service.gateway
            running.clients.configure(replace(running.config, clients={}))
            assert [(await ask(gateway.port, key)).status for key in (None, "any", "key-last")] == [401] * 3
