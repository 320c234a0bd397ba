"""Gateways that share a Redis store, in front of one upstream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream

OPERATOR = {"authorization": "Bearer operator"}
TIMEOUT_MS = 500

Reply = Callable[[Request], UpstreamAnswer]


def config(
    up: Upstream,
    server: RedisServer,
    *,
    number: int = 0,
    timeout_ms: int = TIMEOUT_MS,
    store: str = "",
    more: str = "",
) -> str:
    """Two targets with one model each; `first` comes first."""
    return (
        f'[server]\nid = "gw-{number}"\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n'
        f'[store]\nurl = "{server.url}"\ntimeout_ms = {timeout_ms}\n{store}'
        + provider("first", "chat", up)
        + provider("second", "chat", up)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + ("" if "[routing_options]" in more else "[routing_options]\nmax_wait_ms = 0\n")
        + more
    )


def hello(request: Request) -> UpstreamAnswer:
    return answers.text("chat", "hi", answers.wants_stream(request))


@contextlib.asynccontextmanager
async def node(
    up: Upstream, server: RedisServer, *, number: int = 0, homes: Path | None = None, **settings: Any
) -> AsyncIterator[Running]:
    home = None if homes is None else homes / f"gw-{number}"
    async with serving(config(up, server, number=number, **settings), home=home) as running:
        yield running


@contextlib.asynccontextmanager
async def cluster(
    server: RedisServer, count: int, *, reply: Reply = hello, **settings: Any
) -> AsyncIterator[tuple[Upstream, list[Running]]]:
    """Run gateways that share the store, each a node of its own, with these settings of `node`."""
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(Upstream(reply))
        nodes = [
            await stack.enter_async_context(node(up, server, number=number, **settings))
            for number in range(count)
        ]
        yield up, nodes


async def ask(
    running: Running,
    text: str = "hi",
    *,
    protocol: str = "chat",
    stream: bool = False,
    session: str = "s",
    key: str = "",
) -> Answer:
    body = asking.body(protocol, text, stream=stream, model="auto")
    path = asking.path(protocol, stream=stream, model="auto")
    headers = {"x-session-id": session} if session else {}
    return await call(
        running.port, path, body, headers={**headers, **({"authorization": f"Bearer {key}"} if key else {})}
    )


async def admin(running: Running, path: str, body: object = None) -> Answer:
    method = "GET" if body is None else "POST"
    return await call(running.port, f"/admin/{path}", body, method=method, headers=OPERATOR)


async def ready(running: Running) -> tuple[int, Any]:
    answer = await call(running.port, "/health/ready", method="GET")
    return answer.status, answer.json


def target(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers.get("x-routecodex-target", "")


def notices(answer: Answer) -> list[str]:
    return list(filter(None, unquote(answer.headers.get("x-routecodex-notice", "")).split("; ")))
