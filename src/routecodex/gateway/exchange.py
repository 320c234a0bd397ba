"""One request: the plan, the attempts in order, the answer to the client."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from routecodex.canon import finish
from routecodex.canon.errors import (
    GatewayError,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamRejected,
)
from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.canon.response import fold
from routecodex.gateway import answer
from routecodex.gateway.answer import EventSource, HttpSource, KeepAlive, Source
from routecodex.gateway.ask import Ask, Client, Headers, Record
from routecodex.gateway.memory import Memory, Watch
from routecodex.protocols.codec import Aim, Codec, Encoded, Inbound, Outcome, ReplyTo
from routecodex.protocols.translation import Translation
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import ANSWER_LIMIT, Upstream
from routecodex.routing.plan import Plan, Step
from routecodex.routing.registry import Registry, Target

_JSON = (b"content-type", b"application/json")
_SSE = (b"content-type", b"text/event-stream; charset=utf-8")
_NO_CACHE = (b"cache-control", b"no-cache")

Performer = Callable[[Request], AsyncGenerator[Event, None]]


class Parts(Protocol):
    """What an exchange needs of the gateway."""

    @property
    def registry(self) -> Registry: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    @property
    def performers(self) -> dict[str, Performer]: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def keep_alive_seconds(self) -> float: ...
    def reply_to(self, ask: Ask, target: Target) -> ReplyTo: ...
    async def remember(self, ask: Ask, target: Target, outcome: Outcome) -> None: ...


class Exchange:
    """Answers one request; its `record` tells afterwards what happened."""

    def __init__(self, parts: Parts, ask: Ask, client: Client, *, record: Record) -> None:
        self._parts = parts
        self._ask = ask
        self._client = client
        self.record = record
        self._request: Request | None = None
        self._notices: dict[str, None] = dict.fromkeys(ask.notices)

    async def run(self, plan: Plan) -> None:
        """Tries the plan's targets in order until one answers."""
        self.record.route, self.record.reason = plan.route, plan.reason
        self._notices.update(dict.fromkeys(plan.notices))
        keep_alive = self._keep_alive() if self._ask.inbound.stream else None
        try:
            await self._try_all(plan.steps[: self._parts.max_attempts], keep_alive)
        finally:
            if keep_alive is not None:
                keep_alive.stop()

    async def _try_all(self, steps: Sequence[Step], keep_alive: KeepAlive | None) -> None:
        failures: list[UpstreamError] = []
        for step in steps:
            self.record.target = step.target
            self.record.attempts += 1
            try:
                await self._attempt(step.target, keep_alive)
            except UpstreamRejected:
                raise
            except UpstreamError as error:
                failures.append(error)
            else:
                return
        raise worst(failures)

    async def _attempt(self, target: Target, keep_alive: KeepAlive | None) -> None:
        reply = self._parts.reply_to(self._ask, target)
        performer = self._parts.performers.get(target.provider)
        if performer is not None:
            reply.request = self._canonical(self._ask.inbound)
            await self._perform(performer(reply.request), target, reply, keep_alive)
            return
        upstream = self._parts.upstreams[target.provider]
        inbound = self._inbound_for(target)
        same = upstream.codec is self._ask.codec
        encoded = self._encoded(inbound, upstream, target, same=same)
        if not same:
            reply.request = self._canonical(inbound)
        response = await self._send(upstream, target, encoded, same=same)
        try:
            await self._deliver(response, upstream.codec, target, reply=reply, keep_alive=keep_alive)
        except UpstreamError as error:
            error.provider = error.provider or target.provider
            raise
        finally:
            response.close()

    def _inbound_for(self, target: Target) -> Inbound:
        """The request as this target takes it: a provider that holds the history itself gets the original."""
        ask = self._ask
        if ask.original is not None and ask.native_provider == target.provider:
            return ask.original
        return ask.inbound

    def _canonical(self, inbound: Inbound) -> Request:
        if self._request is None:
            self._request = self._ask.codec.decode_request(inbound)
        return self._request

    def _encoded(self, inbound: Inbound, upstream: Upstream, target: Target, *, same: bool) -> Encoded:
        model = self._parts.registry.model(target)
        aim = Aim(
            model=model.id,
            provider=target.provider,
            dialect=upstream.dialect,
            max_output_tokens=model.max_output_tokens,
            vision=model.vision,
            is_ours=self._parts.memory.is_ours(target.provider),
        )
        if same:
            encoded = self._ask.codec.rewrite(inbound, aim)
        else:
            request = self._parts.memory.recall(self._canonical(inbound), target.provider)
            encoded = upstream.codec.encode_request(request, aim)
        self._notices.update(dict.fromkeys(encoded.notices))
        return encoded

    async def _send(
        self, upstream: Upstream, target: Target, encoded: Encoded, *, same: bool
    ) -> HttpResponse:
        stream = self._ask.inbound.stream
        return await upstream.send(
            encoded.body,
            key=target.key,
            path=upstream.path(self._parts.registry.model(target).id, stream=stream),
            accept=b"text/event-stream" if stream else b"application/json",
            passed=upstream.passed(self._ask.headers) if same else b"",
        )

    async def _deliver(
        self,
        response: HttpResponse,
        codec: Codec,
        target: Target,
        *,
        reply: ReplyTo,
        keep_alive: KeepAlive | None,
    ) -> None:
        speaks_sse = (response.header(b"content-type") or b"").startswith(b"text/event-stream")
        if keep_alive is None:
            await self._whole(response, codec, target, reply=reply, from_stream=speaks_sse)
            return
        if codec is self._ask.codec and speaks_sse:
            await self._stream(HttpSource(response, codec.relay(reply)), target, keep_alive)
            return
        pipe, watch = self._translation(codec, target, reply)
        if speaks_sse:
            await self._stream(HttpSource(response, pipe), target, keep_alive, watch=watch)
            return
        events = codec.decode_response(await response.read(ANSWER_LIMIT))
        await self._stream(EventSource(_told(events), pipe), target, keep_alive, watch=watch)

    def _translation(self, codec: Codec, target: Target, reply: ReplyTo) -> tuple[Translation, Watch]:
        if reply.request is None:
            reply.request = self._canonical(self._ask.inbound)
        watch = Watch(self._parts.memory, target.provider)
        return Translation(codec.stream_decoder(), self._ask.codec.stream_encoder(reply), watch=watch), watch

    async def _stream(
        self, source: Source, target: Target, keep_alive: KeepAlive, *, watch: Watch | None = None
    ) -> None:
        async def settle(outcome: Outcome) -> None:
            await self._settle(target, outcome, watch)

        try:
            await answer.stream(
                source,
                self._client,
                head=lambda: self._headers(target, _SSE),
                keep_alive=keep_alive,
                settle=settle,
                abort_after_error=self._ask.codec.abort_after_error,
            )
        finally:
            await source.close()

    async def _perform(
        self,
        events: AsyncGenerator[Event, None],
        target: Target,
        reply: ReplyTo,
        keep_alive: KeepAlive | None,
    ) -> None:
        """A built-in provider answers in events, without a wire."""
        if keep_alive is not None:
            pipe, watch = self._translation(self._ask.codec, target, reply)
            await self._stream(EventSource(events, pipe), target, keep_alive, watch=watch)
            return
        try:
            told = [event async for event in events]
        finally:
            await events.aclose()
        await self._answer_whole(told, target, reply)

    async def _whole(
        self, response: HttpResponse, codec: Codec, target: Target, *, reply: ReplyTo, from_stream: bool
    ) -> None:
        body = await response.read(ANSWER_LIMIT)
        if from_stream:
            decoder = codec.stream_decoder()
            await self._answer_whole([*decoder.feed(body), *decoder.close()], target, reply)
        elif codec is self._ask.codec:
            passed, outcome = codec.pass_response(body, reply)
            await self._settle(target, outcome, None)
            await self._client.send(200, self._headers(target, _JSON), passed)
        else:
            await self._answer_whole(codec.decode_response(body), target, reply)

    async def _answer_whole(self, events: Sequence[Event], target: Target, reply: ReplyTo) -> None:
        if reply.request is None:
            reply.request = self._canonical(self._ask.inbound)
        watch = Watch(self._parts.memory, target.provider)
        for event in events:
            watch(event)
        response = fold(events)
        body = self._ask.codec.encode_response(response, reply)
        outcome = Outcome(model=response.model, response_id="", finish=response.finish, usage=response.usage)
        outcome.body = body
        await self._settle(target, outcome, watch)
        await self._client.send(200, self._headers(target, _JSON), body)

    async def _settle(self, target: Target, outcome: Outcome, watch: Watch | None) -> None:
        """What must be kept is kept before the client sees the end."""
        record = self.record
        record.usage = outcome.usage
        record.finish = outcome.finish.reason if outcome.finish is not None else ""
        record.error = outcome.error
        record.status = 200
        if outcome.error is not None:
            return
        if outcome.finish is not None:
            sent = outcome.sent_finish or finish.express(self._ask.codec.name, outcome.finish)
            finish.trace(self._ask.id, outcome.finish, sent)
        for signature in outcome.signatures:
            self._parts.memory.made(target.provider, signature)
        if watch is not None:
            watch.settle()
        await self._parts.remember(self._ask, target, outcome)

    def _keep_alive(self) -> KeepAlive:
        def head() -> Headers:
            assert self.record.target is not None
            return self._headers(self.record.target, _SSE)

        codec = self._ask.codec
        return KeepAlive(
            self._client, seconds=self._parts.keep_alive_seconds, comment=codec.keep_alive, head=head
        )

    def _headers(self, target: Target, kind: tuple[bytes, bytes]) -> Headers:
        self.record.first_byte = self.record.first_byte or time.monotonic()
        self.record.notices = tuple(self._notices)
        headers = [kind, (b"x-request-id", self._ask.id.encode())]
        if kind is _SSE:
            headers.append(_NO_CACHE)
        headers.extend(_routing_headers(self.record.route, target, self.record.reason))
        if self._notices:
            headers.append((b"x-routecodex-notice", header_text("; ".join(self._notices))))
        return headers


async def _told(events: Sequence[Event]) -> AsyncGenerator[Event, None]:
    for event in events:
        yield event


@functools.lru_cache(maxsize=1024)
def _routing_headers(route: str, target: Target, reason: str) -> Headers:
    return (
        (b"x-routecodex-route", header_text(route)),
        (b"x-routecodex-target", header_text(str(target))),
        (b"x-routecodex-reason", header_text(reason)),
    )


def header_text(text: str) -> bytes:
    """Text as a header value: one line of printable ASCII, of bounded length."""
    line = "".join(sign if " " <= sign <= "~" else "?" for sign in text)
    return line[:2000].encode("ascii")


def worst(failures: Sequence[UpstreamError]) -> GatewayError:
    """What to tell a client when every target failed: a limit only if all were limited."""
    if not failures:
        return UpstreamFailed("no target was tried", code="no_targets")
    limited = [error for error in failures if isinstance(error, UpstreamLimited)]
    if len(limited) == len(failures):
        return min(limited, key=lambda error: error.retry_after or 60.0)
    return next(error for error in reversed(failures) if not isinstance(error, UpstreamLimited))
