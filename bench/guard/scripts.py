"""Pieces of the hot path that are counted: the work for one request, one stream, one message."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench import requests
from bench.guard.counting import Step
from routecodex.config import Config, loads
from routecodex.gateway import build
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContextBuilder
from routecodex.gateway.request import ClientRequest
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols.codec import Codec, EncodeOptions, ReplyContext, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.translation import Translation
from routecodex.routing.instructions import parse, strip
from routecodex.routing.pools import RoundRobin
from routecodex.routing.registry import Target
from routecodex.routing.roles import RoleTable
from routecodex.routing.route_plan import RouteQuery
from routecodex.routing.router import Router
from routecodex.routing.state import ForcedTarget, ServerState, SessionState, StopMessageState
from routecodex.stores.memory import MemoryStore

STREAMS = Path(__file__).parent / "streams"
PROTOCOLS = ("chat", "messages", "responses", "gemini")
SIZES = ("1k", "100k")

TRANSLATED = (("messages", "chat"), ("responses", "messages"), ("chat", "gemini"), ("chat", "responses"))
"""Client and provider protocols, as in the cells; every codec has both roles."""
NOW = 1_760_000_000.0
OPTIONS = EncodeOptions(model="upstream-model", provider="up")
TAGGED = (
    'Please look at `<**not this**>` first.\n<**!alpha.model-1**> Then go on: <**stopMessage:"go on",3**> '
    "the parser reads past its end, and nobody closed the file before opening another one. <**#beta.1**>"
)
CONFIG = """
[providers.alpha]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
auth = [{ alias = "one", value = "k1" }, { alias = "two", value = "k2" }]
models = { "model-1" = {}, "model-2" = {} }

[providers.beta]
protocol = "messages"
base_url = "http://127.0.0.1:9"
auth = [{ alias = "one", value = "k3" }]
models = { "model-3" = {} }

[routing]
default = ["alpha.model-1", "beta.model-3"]
tools = ["alpha.model-2"]
"""
STATES = {
    "sticky": SessionState(sticky="beta.model-3"),
    "rules": SessionState(allow=("alpha", "beta"), disable=("alpha.1",)),
    "stop message": SessionState(stop_message=StopMessageState(text="go on")),
    "forced": SessionState(force=ForcedTarget("alpha.2.model-1", "turn")),
}


class AllHealthy:
    """Health of targets that can all be used."""

    quiet = True

    def until(self, target: Target, now: float) -> float:
        return 0.0

    def why(self, target: Target, now: float) -> str:
        return ""

    def is_limit(self, target: Target, now: float) -> bool:
        return False


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


def config() -> Config:
    """Return a configuration with two providers and two routes."""
    return loads(CONFIG, environ={})


def read(protocol: str, size: str, *, content: bytes | None = None) -> WireRequest:
    """Validate a streaming request as its endpoint does."""
    body = content or requests.body(protocol, size, stream=True)
    if protocol == "gemini":
        return CODECS[protocol].validate(body, model="client-model", stream=True)
    return CODECS[protocol].validate(body)


def reply(request: WireRequest) -> ReplyContext:
    """Return the client facts that an encoder needs."""
    return ReplyContext(id="0" * 24, created=int(NOW), model="client-model", provider="up", view=request.view)


def requests_read() -> Iterator[tuple[str, Step]]:
    """Validate and rewrite one request for a provider of the same protocol."""

    def step(protocol: str, size: str, content: bytes) -> None:
        CODECS[protocol].rewrite(read(protocol, size, content=content), OPTIONS)

    for protocol in PROTOCOLS:
        for size in SIZES:
            content = requests.body(protocol, size, stream=True)
            yield f"rewrite {protocol} {size}", partial(step, protocol, size, content)


def requests_converted() -> Iterator[tuple[str, Step]]:
    """Convert one request for a provider of another protocol."""

    def step(client: Codec, provider: Codec, request: WireRequest) -> None:
        provider.encode_request(client.decode_request(request), OPTIONS)

    for client, provider in TRANSLATED:
        request = read(client, "100k")
        yield f"convert {client} to {provider}", partial(step, CODECS[client], CODECS[provider], request)


def pieces(stream: bytes) -> list[bytes]:
    """Split the stream into events."""
    end = b"\r\n\r\n" if b"\r\n\r\n" in stream else b"\n\n"
    return [piece + end for piece in stream.split(end) if piece]


def streams_relayed() -> Iterator[tuple[str, Step]]:
    """Relay one stream to a client of the same protocol: in one write, and in one write per event."""

    def step(codec: Codec, request: WireRequest, writes: list[bytes]) -> None:
        pipe = codec.relay(reply(request))
        for data in writes:
            pipe.feed(data)
        pipe.close()
        assert pipe.outcome.finish is not None

    for protocol in PROTOCOLS:
        stream = (STREAMS / f"{protocol}.sse").read_bytes()
        request = read(protocol, "1k")
        for how, writes in (("whole", [stream]), ("by event", pieces(stream))):
            yield f"relay {protocol} {how}", partial(step, CODECS[protocol], request, writes)


def streams_translated() -> Iterator[tuple[str, Step]]:
    """Translate one stream for a client of another protocol."""

    def step(client: Codec, provider: Codec, request: WireRequest, stream: bytes) -> None:
        context = reply(request)
        context.request = client.decode_request(request)
        pipe = Translation(provider.stream_decoder(), client.stream_encoder(context))
        pipe.feed(stream)
        pipe.close()
        assert pipe.outcome.finish is not None

    for client, provider in TRANSLATED:
        stream = (STREAMS / f"{provider}.sse").read_bytes()
        request = read(client, "1k")
        codecs = CODECS[client], CODECS[provider]
        yield f"translate {provider} to {client}", partial(step, *codecs, request, stream)


def plans() -> Iterator[tuple[str, Step]]:
    """Plan one request, without state and with it."""
    router = Router(build.registry(config()))
    next_turn = RoundRobin().peek

    def step(session: SessionState, turn: str | None) -> None:
        query = RouteQuery(model="client-model", route="tools", turn=turn)
        router.plan(
            query, session=session, server=ServerState(), health=AllHealthy(), now=NOW, next_turn=next_turn
        )

    yield "plan without state", partial(step, SessionState(), None)
    for name in ("sticky", "rules", "forced"):
        yield f"plan with state: {name}", partial(step, STATES[name], "turn")


async def _nothing_to_clear(_scope: Scope) -> None:
    return None


def _replace_state(state: SessionState, _before: SessionState) -> SessionState:
    return state


def routing_contexts() -> Iterator[tuple[str, Step]]:
    """Build the routing context of one request: without state, with state, with instructions."""
    settings, store = config(), MemoryStore(clock=lambda: NOW)
    router, sessions = Router(build.registry(settings)), Sessions(store, clock=lambda: NOW)
    contexts = RoutingContextBuilder(
        router,
        sessions=sessions,
        operator=OperatorState(store),
        options=build.classifier_options(settings),
        affinity=True,
        max_wait=0.0,
        user_dir=Path("unused"),
        clock=lambda: NOW,
        roles=RoleTable(),
        where="anywhere",
        clear_clock=_nothing_to_clear,
    )

    def step(request: WireRequest, headers: dict[str, str]) -> None:
        codec = CODECS[request.protocol]
        ask = ClientRequest(
            id="req_0", codec=codec, wire=request, headers=headers, arrived=0.0, created=int(NOW)
        )
        done(contexts.build(ask))

    plain = read("chat", "1k")
    tagged = read("chat", "1k", content=requests.body("chat", "1k", stream=True, last_words=TAGGED))
    yield "context without state", partial(step, plain, {})
    yield "context of 100 KB", partial(step, read("chat", "100k"), {})
    for name in ("sticky", "stop message"):
        done(sessions.change(Scope("session", name.replace(" ", "-")), partial(_replace_state, STATES[name])))
        yield f"context with state: {name}", partial(step, plain, {"x-session-id": name.replace(" ", "-")})
    yield "context with instructions", partial(step, tagged, {"x-session-id": "tagged"})


def instructions() -> Iterator[tuple[str, Step]]:
    """Parse and strip one message with tags, and the same without."""
    for name, text in (("tagged", TAGGED), ("plain", TAGGED.replace("<**", "(").replace("**>", ")"))):
        yield f"parse {name} message", partial(parse, text)
        yield f"strip {name} message", partial(strip, text)


GROUPS = (
    requests_read,
    requests_converted,
    streams_relayed,
    streams_translated,
    plans,
    routing_contexts,
    instructions,
)


def scripts() -> dict[str, Step]:
    """Return every piece by name."""
    return {name: step for group in GROUPS for name, step in group()}
