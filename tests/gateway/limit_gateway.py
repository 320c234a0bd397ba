"""A gateway with limited clients in front of a scripted upstream whose answers cost 30 tokens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

PRICE = "price = { input = 1000, output = 1000 }\n"
"""A tenth of a cent for each token: an answer of 21 + 9 tokens costs 3 cents."""
COST = 0.03
KEY = {"authorization": "Bearer key-laptop"}
OTHER_KEY = {"authorization": "Bearer key-ci"}


def client(name: str, lines: str) -> str:
    """Return the table of a client with the key `key-NAME`."""
    return f'[clients.{name}]\nkey = "key-{name}"\n{lines}\n'


@dataclass
class LimitedGateway:
    """A running gateway, and the protocol that clients and upstream speak."""

    protocol: str
    upstream: Upstream
    gateway: Running
    bodies: dict[str, Any] = field(default_factory=dict)

    def body(self, text: str = "Hello", *, stream: bool = False, model: str = "up.m") -> dict[str, Any]:
        return {**asking.body(self.protocol, text, stream=stream, model=model), **self.bodies}

    async def ask(
        self,
        *,
        stream: bool = False,
        key: Mapping[str, str] = KEY,
        model: str = "up.m",
        text: str = "Hello",
    ) -> Answer:
        """Send one request and read its answer."""
        path = asking.path(self.protocol, stream=stream, model=model)
        return await call(self.gateway.port, path, self.body(text, stream=stream, model=model), headers=key)

    async def begin(self, *, stream: bool = False, key: Mapping[str, str] = KEY) -> Call:
        """Send one request without reading its answer."""
        path = asking.path(self.protocol, stream=stream)
        return await begin(self.gateway.port, path, self.body(stream=stream), headers=key)

    def figures(self, name: str = "laptop") -> list[dict[str, Any]]:
        """Return the limits of a client as they are now."""
        from routecodex.accounting.client_report import limit_figures

        clients = self.gateway.service.gateway.clients
        found = clients.table.clients[name]
        return limit_figures(clients.table.limits_of(found), clients.limit_use)

    def used(self, name: str = "laptop") -> list[float]:
        """Return what is used of each limit; nothing may be reserved."""
        rows = self.figures(name)
        assert [row["reserved"] for row in rows] == [0] * len(rows)
        return [round(row["used"], 9) for row in rows]


def answering(protocol: str, text: str = "hi", **more: Any) -> Callable[[Request], Json | Sse]:
    """Return a script that answers every request with a text, streamed if it asks for that."""

    def answer(request: Request) -> Json | Sse:
        streams = "stream" in request.path if protocol == "gemini" else bool(request.json.get("stream"))
        return answers.text(protocol, text, streams, **more)

    return answer


@contextlib.asynccontextmanager
async def limited(
    clients: str, *, protocol: str = "chat", upstream_protocol: str = "", more: str = "", model: str = PRICE
) -> AsyncIterator[LimitedGateway]:
    """Run a gateway with these clients; its upstream answers every request with `hi`."""
    spoken = upstream_protocol or protocol
    async with Upstream(answering(spoken)) as upstream:
        text = (
            "[server]\nport = 0\ndrain_seconds = 1\n"
            + more
            + clients
            + provider("up", spoken, upstream)
            + model
            + '[routing]\ndefault = ["up.m"]\n'
        )
        async with serving(text) as gateway:
            yield LimitedGateway(protocol, upstream, gateway)
