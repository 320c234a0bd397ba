"""A gateway with one provider of each protocol, and what it does with a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from tests.kit import answers
from tests.kit.gateway import NO_HEALTH, Running, provider, serving
from tests.kit.raw_client import Answer, begin
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
SECONDS = 20.0
_VARIABLE = ("request_id", "id", "created", "created_at")


class _Problems(logging.Handler):
    """Collects what the gateway logs as an error: a traceback above all."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@dataclass
class Exchanges:
    """A running gateway; `call` sends one request and returns the answer."""

    gateway: Running
    upstreams: dict[str, Upstream]
    problems: list[str] = field(default_factory=list)

    async def call(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; TimeoutError if there is no answer."""
        request = await begin(self.gateway.port, path, body, headers=headers)
        try:
            return await asyncio.wait_for(request.rest(), SECONDS)
        finally:
            await request.close()

    def sent(self) -> list[Request]:
        """Return the requests that providers got since the last call."""
        requests = [request for upstream in self.upstreams.values() for request in upstream.requests]
        for upstream in self.upstreams.values():
            upstream.requests.clear()
        return requests


def _answer(protocol: str, request: Request) -> Json | Sse:
    streams = "stream" in request.path if protocol == "gemini" else b'"stream":true' in request.body
    return answers.text(protocol, "Fine.", streams)


@contextlib.asynccontextmanager
async def exchanging(config: str = "") -> AsyncIterator[Exchanges]:
    """Run a gateway whose providers `chat`, `responses`, `messages` and `gemini` always answer."""
    problems = _Problems()
    logging.getLogger("routecodex").addHandler(problems)
    async with contextlib.AsyncExitStack() as stack:
        upstreams = {
            name: await stack.enter_async_context(Upstream(partial(_answer, name))) for name in PROTOCOLS
        }
        providers = "".join(provider(name, name, upstream) for name, upstream in upstreams.items())
        head = f"[server]\nport = 0\ndrain_seconds = 1\n{NO_HEALTH}"
        text = f'{head}{providers}[routing]\ndefault = ["chat.m"]\n{config}'
        gateway = await stack.enter_async_context(serving(text))
        try:
            yield Exchanges(gateway, upstreams, problems.lines)
        finally:
            logging.getLogger("routecodex").removeHandler(problems)


def comparable(answer: Answer, sent: list[Request]) -> list[Any]:
    """Return what two gateways must agree on: the status, the error, and what the provider got."""
    error = None if answer.status == 200 else _without_variable(answer.body)
    return [answer.status, error, [[request.method, request.path, request.body.hex()] for request in sent]]


def _without_variable(body: bytes) -> Any:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.hex()
    return (
        {name: inner for name, inner in value.items() if name not in _VARIABLE}
        if isinstance(value, dict)
        else value
    )
