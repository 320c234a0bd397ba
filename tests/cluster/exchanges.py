"""Requests of the trial's clients through the balancer, each with its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from tests.cluster.nodes import Balancer
from tests.kit import asking
from tests.kit.raw_client import Answer, begin

REQUEST_SECONDS = 45.0
KEY = "k-trial"
"""Key of a client without limits."""
# Every protocol has its text in a field of this name; the ends of a Responses stream repeat it.
_TEXT = re.compile(r'"(?:content|delta|text)":\s*"((?:[^"\\]|\\.)*)"')
_CODE = re.compile(rb'"code":\s*"([a-z_]+)"')


@dataclass
class Exchange:
    """A request and its outcome; `status` 0: no answer came. `end` is when the last byte did."""

    number: int
    session: str
    protocol: str
    stream: bool
    begin: float
    end: float = 0.0
    node: str = ""
    status: int = 0
    is_complete: bool = False
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.is_complete

    @property
    def target(self) -> str:
        return self.headers.get("x-routecodex-target", "")

    @property
    def notices(self) -> str:
        return unquote(self.headers.get("x-routecodex-notice", ""))

    @property
    def text(self) -> str:
        """The text of the answer, as far as it came."""
        return "".join(_TEXT.findall(self.body.decode(errors="replace")))

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        found = _CODE.search(self.body)
        return found[1].decode() if found else ""


class Pace:
    """Lets one request begin at a time, at most `rate` per second over all clients, and none while closed."""

    def __init__(self, rate: float) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._step = 1 / rate
        self._next = 0.0

    async def turn(self) -> None:
        await self.is_open.wait()
        now = time.monotonic()
        self._next = max(now, self._next + self._step)
        await asyncio.sleep(self._next - now)


class TrialClient:
    """Sends requests to the balancer and keeps every exchange."""

    def __init__(self, balancer: Balancer, *, rate: float) -> None:
        self.exchanges: list[Exchange] = []
        self.pace = Pace(rate)
        self._balancer = balancer
        self._numbers = itertools.count(1)
        self._active = 0

    async def ask(
        self,
        text: str,
        *,
        session: str = "",
        protocol: str = "chat",
        stream: bool = False,
        more: dict[str, Any] | None = None,
        key: str = KEY,
        is_paced: bool = True,
    ) -> Exchange:
        """Send one user message; the answer may be an error or break off."""
        if is_paced:
            await self.pace.turn()
        number = next(self._numbers)
        body = asking.body(protocol, f"{text} [q{number}]", stream=stream, model="auto")
        path = asking.path(protocol, stream=stream, model="auto")
        exchange = Exchange(number, session, protocol, stream, time.monotonic())
        self.exchanges.append(exchange)
        headers = {"authorization": f"Bearer {key}", **({"x-session-id": session} if session else {})}
        self._active += 1
        try:
            await asyncio.wait_for(
                self._receive(exchange, path, {**body, **(more or {})}, headers), REQUEST_SECONDS
            )
        except (OSError, EOFError, TimeoutError):
            exchange.is_complete = False
        finally:
            self._active -= 1
            exchange.end = time.monotonic()
        return exchange

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Let no request of a conversation begin, and wait for those under way."""
        self.pace.is_open.clear()
        try:
            while self._active:
                await asyncio.sleep(0.02)
            yield
        finally:
            self.pace.is_open.set()

    async def _receive(self, exchange: Exchange, path: str, body: Any, headers: dict[str, str]) -> None:
        request = await begin(self._balancer.port, path, body, headers=headers)
        answer = request.answer
        try:
            await request.head()
            exchange.status, exchange.headers = answer.status, answer.headers
            exchange.node = self._balancer.node_of(answer.headers.get("x-trial-node", ""))
            await request.rest()
            exchange.is_complete = answer.complete
        finally:
            exchange.body = answer.body
            await request.close()

    def of(self, session: str) -> Sequence[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.session == session]


def as_answer(exchange: Exchange) -> Answer:
    return Answer(exchange.status, exchange.headers, exchange.body, exchange.is_complete)
