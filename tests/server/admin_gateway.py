"""A gateway with a user dir, so that it has a usage ledger, and calls of its admin API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from routecodex.config import loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server.serve import Service
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

TOKEN = "operator"
BEARER = {"authorization": f"Bearer {TOKEN}"}
SERVER = f'[server]\nport = 0\nid = "main"\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n'
PRICE = "price = { input = 2.0, output = 10.0, cache_read = 0.5 }\n"
CLIENTS = '[clients.laptop]\nkey = "k-laptop"\n[clients.ci]\nkey = "k-ci"\n'
LAPTOP, CI = {"x-api-key": "k-laptop"}, {"x-api-key": "k-ci"}


def two_targets(up: Upstream, *, more: str = "", mode: str = "priority") -> str:
    """Return the configuration of a gateway with the targets `up.m` and `other.m`."""
    return (
        SERVER
        + provider("up", "chat", up)
        + PRICE
        + provider("other", "chat", up)
        + PRICE
        + f'[routing]\ndefault = [{{ id = "all", mode = "{mode}", targets = ["up.m", "other.m"] }}]\n'
        + more
    )


@contextlib.asynccontextmanager
async def running(text: str, home: Path) -> AsyncIterator[Running]:
    """Run a gateway with this configuration and user dir; its state is in memory."""
    head = "" if "[store]" in text else '[store]\nurl = "memory:"\n'
    head += "" if "[logging]" in text else '[logging]\nlevel = "error"\n'
    config = loads(head + text, environ={}, presets=PRESETS, dialect_type=Dialect)
    service = Service(config, home=home)
    _, port = await service.start()
    try:
        yield Running(port, service)
    finally:
        await service.stop()


@contextlib.asynccontextmanager
async def gateway(
    home: Path, *, more: str = "", mode: str = "priority"
) -> AsyncIterator[tuple[Upstream, int]]:
    """Run a gateway with two targets in front of an upstream that answers."""
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        running(two_targets(up, more=more, mode=mode), home) as found,
    ):
        yield up, found.port


async def get(port: int, path: str) -> Any:
    """Return the answer of a call that must succeed."""
    answer = await call(port, f"/admin/{path}", method="GET", headers=BEARER)
    assert answer.status == 200, answer.body
    return answer.json


async def refused(port: int, path: str) -> tuple[int, str, str]:
    """Return status, code and parameter of a call that must be refused, in the shape of admin errors."""
    answer = await call(port, f"/admin/{path}", method="GET", headers=BEARER)
    return refusal(answer)


def refusal(answer: Answer) -> tuple[int, str, str]:
    error = answer.json["error"]
    assert answer.json["code"] == error["code"], answer.body
    assert error["message"], answer.body
    return answer.status, error["code"] or "", error.get("param") or ""


async def post(port: int, path: str, body: object) -> Answer:
    return await call(port, f"/admin/{path}", body, headers=BEARER)


async def done(port: int, path: str, body: object) -> Any:
    """Return the answer of a change that must succeed."""
    answer = await post(port, path, body)
    assert answer.status == 200, answer.body
    return answer.json


async def chat(port: int, *, model: str = "auto", session: str = "", **headers: str) -> Answer:
    """Send a chat request as a client."""
    named = {"x-session-id": session} if session else {}
    return await call(
        port,
        "/v1/chat/completions",
        asking.body("chat", "hi", stream=False, model=model),
        headers={**named, **{name.replace("_", "-"): value for name, value in headers.items()}},
    )


async def asked(port: int, *, model: str = "auto", session: str = "", **headers: str) -> str:
    """Send a chat request and return its id."""
    return (await chat(port, model=model, session=session, **headers)).headers["x-request-id"]
