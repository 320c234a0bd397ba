"""Failed requests leave no reference cycles for the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

import pytest

from routecodex.gateway.request import ClientRequest
from routecodex.server.http import HttpRequest
from tests.kit import answers, asking
from tests.kit.gateway import NO_HEALTH, Running, one_target, provider, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import CloseClean, CutOff, Hang, Json, Raw, Send, Sse, Steps, Wait
from tests.kit.upstream import Request, Upstream

SSE_HEAD = {"content-type": "text/event-stream"}
Body = dict[str, Any]
CHAT = asking.path("chat", stream=False)


@dataclass(frozen=True)
class Case:
    """A request that fails with this status, or breaks off after a 200, and its cause."""

    status: int
    script: Callable[[Request], UpstreamAnswer] | None = None
    client: str = "chat"
    stream: bool = False
    upstream_protocol: str = "chat"
    path: str = ""
    body: Body | bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    server: str = ""
    more: str = NO_HEALTH

    @property
    def request(self) -> tuple[str, Body | bytes]:
        path = self.path or asking.path(self.client, stream=self.stream)
        return path, self.body or asking.body(self.client, stream=self.stream)


def refused(protocol: str, status: int) -> Callable[[Request], UpstreamAnswer]:
    return lambda request: answers.error(protocol, status)


def breaks_off(protocol: str) -> Callable[[Request], UpstreamAnswer]:
    return lambda request: answers.cut_off(protocol, "half of it")


def fails_within(protocol: str) -> Callable[[Request], UpstreamAnswer]:
    return lambda request: answers.stream_error(protocol, "half of it")


def hangs_up(request: Request) -> UpstreamAnswer:
    return Steps((CutOff(),), headers=SSE_HEAD)


def breaks_off_its_refusal(request: Request) -> UpstreamAnswer:
    return Steps((Send(b'{"error":'), CutOff()), status=500)


def answers_once(request: Request) -> UpstreamAnswer:
    if b"go on" in request.body:
        return answers.error("chat", 500)
    return answers.text("chat", "half of it", answers.wants_stream(request))


def second_answers(request: Request) -> UpstreamAnswer:
    if request.headers["authorization"] == "Bearer secret-up":
        return answers.error("chat", 500)
    return answers.text("chat", "here I am", answers.wants_stream(request))


KEYS = 'client_keys = [{ name = "a", key = "sk-client" }]'
STOP = '<**stopMessage:"go on",50**>Hello'

CASES: dict[str, Case] = {
    "no key": Case(401, server=KEYS),
    "no such path": Case(404, path="/nowhere"),
    "a foreign host name": Case(403, headers={"host": "evil.example"}),
    "another method": Case(405, path="/v1/models"),
    "no JSON": Case(400, body=b"nope" * 1000),
    "a wrong field": Case(400, body={"model": "up.m", "messages": "none"}),
    "a wrong field of messages": Case(400, client="messages", body={"model": "up.m", "messages": [5]}),
    "a wrong field of responses": Case(400, client="responses", body={"model": "up.m", "input": 5}),
    "a wrong field of gemini": Case(400, client="gemini", body={"contents": 5}),
    "no such provider": Case(404, body=asking.body("chat", "<**nobody**>Hello", stream=False)),
    "no such answer": Case(
        400, client="responses", body={"model": "up.m", "input": "Hello", "previous_response_id": "resp_1"}
    ),
    "the provider rejects it": Case(400, refused("chat", 400)),
    "the provider rejects it, converted": Case(400, refused("chat", 400), client="messages"),
    "the provider rejects a stream": Case(
        400, refused("messages", 400), stream=True, upstream_protocol="messages"
    ),
    "the provider fails": Case(502, refused("chat", 500)),
    "the provider fails at a stream": Case(502, refused("chat", 500), stream=True),
    "the provider is overloaded": Case(
        529, refused("messages", 529), client="messages", upstream_protocol="messages"
    ),
    "the provider limits it": Case(429, refused("chat", 429)),
    "the provider refuses our key": Case(424, refused("chat", 401)),
    "the provider breaks off its refusal": Case(502, breaks_off_its_refusal),
    "the provider hangs up": Case(502, hangs_up, stream=True),
    "the provider sends no JSON": Case(502, lambda request: Json(200, b"nope")),
    "the next one answers": Case(200, second_answers, body=asking.body("chat", stream=False, model="x")),
    "the next one answers a stream": Case(
        200, second_answers, client="messages", body=asking.body("messages", stream=True, model="x")
    ),
    "embeddings": Case(
        502, refused("chat", 500), path="/v1/embeddings", body={"model": "up.m", "input": "Hello"}
    ),
    "a count": Case(400, client="messages", path="/v1/messages/count_tokens", body={"model": "up.m"}),
    "server tools, no round": Case(502, refused("chat", 500), body=asking.body("chat", STOP, stream=False)),
    "server tools, half a round": Case(
        200, breaks_off("chat"), stream=True, body=asking.body("chat", STOP, stream=True)
    ),
    "server tools, one round": Case(
        200, answers_once, body=asking.body("chat", STOP, stream=False), headers={"x-session-id": "s-1"}
    ),
    **{
        f"{client} of {upstream_protocol} breaks off": Case(
            200,
            breaks_off(upstream_protocol),
            client=client,
            stream=True,
            upstream_protocol=upstream_protocol,
        )
        for client in ("chat", "responses", "messages", "gemini")
        for upstream_protocol in ("chat", "responses", "messages", "gemini")
    },
    **{
        f"{client} of {upstream_protocol} fails within": Case(
            200,
            fails_within(upstream_protocol),
            client=client,
            stream=True,
            upstream_protocol=upstream_protocol,
        )
        for client in ("chat", "messages")
        for upstream_protocol in ("chat", "responses", "messages", "gemini")
    },
}


def configuration(case: Case, up: Upstream) -> str:
    """Return a configuration with `up.m`, and a second target where the case needs one."""
    other = provider("other", case.upstream_protocol, up) if case.script is second_answers else ""
    pool = '[routing]\ndefault = [{ mode = "priority", targets = ["up.m", "other.m"] }]\n'
    alone = one_target(case.upstream_protocol, up, server=case.server)
    return (alone.replace('[routing]\ndefault = ["up.m"]\n', other + pool) if other else alone) + case.more


@contextlib.contextmanager
def only_counted() -> Iterator[list[str]]:
    """Collect the names of frames and objects of the package that only the garbage collector could free."""
    left: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield left
        left.extend(_alive())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.extend(sorted({name for found in gc.garbage if (name := _own_name(found))}))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _alive() -> list[str]:
    """Return the answered requests that are still referenced."""
    kinds = (HttpRequest, ClientRequest)
    return [f"a live {type(found).__name__}" for found in gc.get_objects() if isinstance(found, kinds)]


def _own_name(found: object) -> str:
    if isinstance(found, FrameType):
        return found.f_code.co_name if "/routecodex/" in found.f_code.co_filename else ""
    kind = type(found)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith("routecodex.") else ""


async def left_by(gateway: Running, send: Callable[[], Awaitable[None]]) -> list[str]:
    """Return the leftovers of the second of two requests; the first one fills every cache."""
    await send()
    await settled(gateway)
    with only_counted() as left:
        await send()
        await settled(gateway)
    return left


async def settled(gateway: Running) -> None:
    """Wait until the server has no connection."""
    async with asyncio.timeout(10):
        while gateway.service.connections:
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", CASES)
async def test_nothing_is_left_of_a_request_that_failed(name: str) -> None:
    case = CASES[name]

    async def send() -> None:
        path, body = case.request
        assert (await call(gateway.port, path, body, headers=case.headers)).status == case.status

    async with Upstream(case.script) as up, serving(configuration(case, up)) as gateway:
        assert await left_by(gateway, send) == []


async def test_nothing_is_left_of_a_stream_that_fails_after_it_was_kept_alive() -> None:
    async def send() -> None:
        go_on = asyncio.Event()
        up.queue(Steps((Wait(go_on), CutOff()), headers=SSE_HEAD))
        under_way = await begin(gateway.port, CHAT, asking.body("chat", stream=True))
        await under_way.head()
        assert await under_way.piece() == b": keep-alive\n\n"
        go_on.set()
        assert b'data: {"error":' in (await under_way.rest()).body
        await under_way.close()

    alive = "keepalive_ms = 30"
    async with Upstream() as up, serving(one_target("chat", up, server=alive) + NO_HEALTH) as gateway:
        assert await left_by(gateway, send) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_left_of_a_request_whose_client_disconnects(stream: bool) -> None:
    async def send() -> None:
        up.queue(Sse(hello.frames[:2], end=Hang()))
        under_way = await begin(gateway.port, CHAT, asking.body("chat", stream=stream))
        request = await up.received(len(up.requests) + 1)
        if stream:
            await under_way.head()
        await under_way.leave()
        await request.gone.wait()

    hello = answers.cut_off("chat", "Hello")
    async with Upstream() as up, serving(one_target("chat", up) + NO_HEALTH) as gateway:
        assert await left_by(gateway, send) == []


async def test_nothing_is_left_of_an_attempt_on_a_connection_that_was_gone() -> None:
    """The provider closes an idle connection at the next request, which is then sent on a new one."""

    async def send() -> None:
        up.queue(hello, Raw([CloseClean()]), hello)
        for _ in range(2):
            assert (await call(gateway.port, CHAT, asking.body("chat", stream=False))).status == 200

    hello = answers.text("chat", "Hello", False)
    async with Upstream() as up, serving(one_target("chat", up) + NO_HEALTH) as gateway:
        assert await left_by(gateway, send) == []
    assert len(up.requests) == 6


async def test_nothing_is_left_of_a_handler_that_broke(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged all the same."""

    async def send() -> None:
        answer = await call(gateway.port, CHAT, asking.body("chat", stream=False))
        assert (answer.status, b"internal error" in answer.body) == (500, True)

    def breaks() -> NoReturn:
        errors.append(broken := LookupError("a bug"))
        raise broken

    errors: list[Exception] = []
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        gateway.service.gateway.services.upstreams = defaultdict(breaks)
        assert await left_by(gateway, send) == []
    assert len(errors) == caplog.text.count("raised LookupError") == caplog.text.count("in breaks") == 2
