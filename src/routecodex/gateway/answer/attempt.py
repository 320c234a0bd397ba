"""One attempt at a request: to one target, and its answer to the client.

Whatever fails before an answer has content may be tried on the next target; afterwards the stream ends with
the protocol's own error event. Writes are awaited one after the other, so that a client that reads slowly
pauses the upstream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError, UpstreamError
from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.canon.response import fold
from routecodex.gateway.answer.answer_stream import AnswerStream, EventStream, RelayedStream
from routecodex.gateway.answer.event_stream import closing, collect_events, told
from routecodex.gateway.answer.keep_alive import KeepAlive, KeepAlives
from routecodex.gateway.answer.prepared_target import BuiltinProvider, PreparedTarget
from routecodex.gateway.answer.writer import JSON, SSE, answer_headers
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import ClientConnection, ClientRequest, Headers, RequestRecord
from routecodex.gateway.state.reasoning_cache import ReasoningCache, ReasoningRecorder
from routecodex.protocols.codec import AnswerOutcome, Codec, EncodedRequest, ReplyContext
from routecodex.protocols.translation import Translation, replace_foreign_parts
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import ANSWER_LIMIT
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan
from routecodex.server_tools.empty_reply import has_no_cause, is_empty
from routecodex.server_tools.vision import ImageDescriptions


class AttemptServices(Protocol):
    """What an exchange needs of the gateway."""

    @property
    def memory(self) -> ReasoningCache: ...
    @property
    def keep_alives(self) -> KeepAlives: ...
    @property
    def asks_again(self) -> bool: ...
    def lane(self, target: Target) -> PreparedTarget | BuiltinProvider: ...
    def reply_to(self, ask: ClientRequest, target: Target | None) -> ReplyContext: ...
    async def remember(self, ask: ClientRequest, target: Target | None, outcome: AnswerOutcome) -> None: ...
    def sight(self, ask: ClientRequest, course: RoutingContext) -> ImageDescriptions | None: ...


class EmptyAnswer(Exception):
    """An answer ended without a word, and the client has seen nothing of it."""


class Attempt:
    """Answers one request; its `record` tells afterwards what happened."""

    __slots__ = (
        "_ask",
        "_asks_again",
        "_course",
        "_notices",
        "_parts",
        "_request",
        "_sight",
        "_target",
        "client",
        "record",
    )

    def __init__(
        self,
        parts: AttemptServices,
        ask: ClientRequest,
        client: ClientConnection,
        *,
        record: RequestRecord,
        course: RoutingContext,
    ) -> None:
        self._parts = parts
        self._ask = ask
        self.client = client
        self._request: Request | None = None
        self._target: Target | None = None
        self._notices = ask.notices
        self._course = course
        self._sight: ImageDescriptions | None = None
        self._asks_again = parts.asks_again
        self.record = record

    async def attempt(self, step: PlanStep, keep_alive: KeepAlive | None) -> None:
        """Answers from this target; raises UpstreamError while another one may be tried."""
        record = self.record
        self._target = record.target = step.target
        record.route = step.route
        record.attempts += 1
        try:
            await self._attempt(step.target, keep_alive)
            return
        except EmptyAnswer:
            pass
        except UpstreamError as error:
            error.provider = error.provider or step.target.provider
            raise
        await self._again(step, keep_alive)

    async def _again(self, step: PlanStep, keep_alive: KeepAlive | None) -> None:
        """Asks the same target once more; what it answers now is told as it is."""
        self._asks_again = False
        self.record.failures.append(f"{step.target}: an empty answer")
        self._notices.append(f"{step.target} gave an empty answer and was asked again")
        await self.attempt(step, keep_alive)

    def note(self, plan: RoutePlan) -> None:
        """Notes the plan that the next attempts follow."""
        self.record.route, self.record.reason = plan.route, plan.reason
        if plan.notices:
            self._notices.extend(line for line in plan.notices if line not in self._notices)

    async def perform(self, events: AsyncGenerator[Event, None]) -> None:
        """The gateway answers by itself, without a provider."""
        keep_alive = self.keep_alive()
        reply = self._parts.reply_to(self._ask, None)
        try:
            await self._perform(events, reply, keep_alive)
        finally:
            if keep_alive is not None:
                keep_alive.stop()

    async def _attempt(self, target: Target, keep_alive: KeepAlive | None) -> None:
        ask = self._ask
        reply = self._parts.reply_to(ask, target)
        lane = self._parts.lane(target)
        if not isinstance(lane, PreparedTarget):
            reply.request = self._canonical()
            await self._perform(lane(reply.request), reply, keep_alive)
            return
        same = lane.codec is ask.codec
        encoded = self._encoded(lane, same=same) if lane.aim.vision else await self._in_words(lane, same=same)
        makers = self._parts.memory.makers
        if makers.asked_in_vain and await makers.learn():
            encoded = (
                self._encoded(lane, same=same) if lane.aim.vision else await self._in_words(lane, same=same)
            )
        if encoded.notices:
            self._notices.extend(line for line in encoded.notices if line not in self._notices)
        response = await lane.send(
            encoded.body,
            stream=keep_alive is not None,
            headers=ask.headers if same else None,
            query=ask.query if same else "",
        )
        try:
            if not 200 <= response.status < 300:
                raise await lane.upstream.error_of(response)
            if keep_alive is None:
                await self._whole(response, lane, reply)
            else:
                await self._streamed(response, lane, reply, keep_alive)
        except UpstreamError as error:
            lane.upstream.sanitize(error)
            raise
        finally:
            response.close()

    def _encoded(self, lane: PreparedTarget, *, same: bool) -> EncodedRequest:
        ask = self._ask
        if same:
            # A provider that holds the conversation itself is sent the request as it came.
            held = ask.original is not None and ask.is_held_by(lane.target)
            return ask.codec.rewrite(ask.original if held and ask.original else ask.inbound, lane.aim)
        return self._rendered(self._canonical(), lane)

    def _rendered(self, request: Request, lane: PreparedTarget) -> EncodedRequest:
        recalled = self._parts.memory.recall(request, lane.target.provider)
        return lane.codec.encode_request(recalled, lane.aim)

    async def _in_words(self, lane: PreparedTarget, *, same: bool) -> EncodedRequest:
        """The request for a target that does not see: its images are told in words."""
        sight = self.sight()
        if sight is None:
            return self._encoded(lane, same=same)
        request = await sight.replace_images(self._canonical(), target=str(lane.target))
        unchanged = request is self._request
        return self._encoded(lane, same=same) if unchanged else self._rendered(request, lane)

    def sight(self) -> ImageDescriptions | None:
        """Words for the images of this request, made once; None when it holds none."""
        if self._sight is None:
            self._sight = self._parts.sight(self._ask, self._course)
        return self._sight

    def _canonical(self) -> Request:
        if self._request is None:
            self._request = self._ask.codec.decode_request(self._ask.inbound)
        return self._request

    async def _streamed(
        self, response: HttpResponse, lane: PreparedTarget, reply: ReplyContext, keep_alive: KeepAlive
    ) -> None:
        codec = lane.codec
        # Some upstreams stream under a content type of their own; only JSON says that this is no stream.
        speaks_sse = not (response.header(b"content-type") or b"").startswith(b"application/json")
        if codec is self._ask.codec and speaks_sse:
            await self._stream(RelayedStream(response, codec.relay(reply), lane.upstream), keep_alive, None)
            return
        pipe, watch = self._translation(codec, reply)
        if speaks_sse:
            await self._stream(RelayedStream(response, pipe, lane.upstream), keep_alive, watch)
            return
        events = told(codec.decode_response(await response.read(ANSWER_LIMIT)))
        await closing(events, self._stream(EventStream(events, pipe), keep_alive, watch))

    def _translation(self, codec: Codec, reply: ReplyContext) -> tuple[Translation, ReasoningRecorder]:
        reply.request = self._canonical()
        watch = ReasoningRecorder(self._parts.memory, reply.provider)
        client = self._ask.codec
        pipe = Translation(codec.stream_decoder(), client.stream_encoder(reply), watch=watch, client=client)
        return pipe, watch

    async def _stream(
        self, source: AnswerStream, keep_alive: KeepAlive, watch: ReasoningRecorder | None
    ) -> None:
        """Carries the source to the client; raises UpstreamError while another target may be tried."""
        pipe, client = source.pipe, self.client
        out = b""
        while not (pipe.started or pipe.ended):
            out = await source.pull()
        self._refuse_empty(pipe.outcome)
        if not client.started:
            client.start(200, self._headers(SSE))
        try:
            if not pipe.ended:
                if out:
                    await client.write(out)
                    keep_alive.touch()
                out = await source.carry(client, keep_alive)
        except UpstreamError as error:
            out = pipe.fail(error.detached())
        if pipe.outcome.error is None and self._settle(pipe.outcome, watch):
            await self._remember(pipe.outcome)
        await self._end_stream(out, pipe.outcome.error, source)

    async def _end_stream(self, out: bytes, error: GatewayError | None, source: AnswerStream) -> None:
        self.record.status = 200
        if error is not None:
            out = source.redacted(out)
            source.hide(error)
            self.record.error = error
        if error is not None and self._ask.codec.abort_after_error:
            await self.client.write(out)
            self.client.abort()
        else:
            await self.client.end(out)

    async def _perform(
        self, events: AsyncGenerator[Event, None], reply: ReplyContext, keep_alive: KeepAlive | None
    ) -> None:
        """A built-in provider answers in events, without a wire."""
        if keep_alive is not None:
            pipe, watch = self._translation(self._ask.codec, reply)
            await closing(events, self._stream(EventStream(events, pipe), keep_alive, watch))
            return
        await self._answer_whole(await collect_events(events), reply)

    async def _whole(self, response: HttpResponse, lane: PreparedTarget, reply: ReplyContext) -> None:
        codec = lane.codec
        body = await response.read(ANSWER_LIMIT)
        if (response.header(b"content-type") or b"").startswith(b"text/event-stream"):
            decoder = codec.stream_decoder()
            await self._answer_whole([*decoder.feed(body), *decoder.close()], reply)
        elif codec is self._ask.codec:
            passed, outcome = codec.relay_response(body, reply)
            self._refuse_empty(outcome)
            if self._settle(outcome, None):
                await self._remember(outcome)
            await self.client.send(200, self._headers(JSON), passed)
        else:
            await self._answer_whole(codec.decode_response(body), reply)

    async def _answer_whole(self, events: Sequence[Event], reply: ReplyContext) -> None:
        reply.request = self._canonical()
        watch = ReasoningRecorder(self._parts.memory, reply.provider)
        for event in events:
            watch(event)
        response, lost = replace_foreign_parts(fold(events), self._ask.codec)
        self._notices.extend(line for line in lost if line not in self._notices)
        body = self._ask.codec.encode_response(response, reply)
        outcome = AnswerOutcome(model=response.model, finish=response.finish, usage=response.usage, body=body)
        outcome.empty = self._asks_again and is_empty(response)
        self._refuse_empty(outcome)
        if self._settle(outcome, watch):
            await self._remember(outcome)
        await self.client.send(200, self._headers(JSON), body)

    def _refuse_empty(self, outcome: AnswerOutcome) -> None:
        """Of an empty answer the client has seen nothing yet: it may be asked for once more."""
        if outcome.empty and self._asks_again and self._target is not None and has_no_cause(outcome.finish):
            raise EmptyAnswer

    def _settle(self, outcome: AnswerOutcome, watch: ReasoningRecorder | None) -> bool:
        """Notes how the answer ended; whether it must be kept, before the client sees its end."""
        record, ask = self.record, self._ask
        record.status = 200
        record.usage = outcome.usage
        end = outcome.finish
        if end is not None:
            record.finish = end.reason
            if finish.tracing():
                finish.trace(ask.id, end, outcome.sent_finish or finish.encode(ask.codec.name, end))
        if self._target is not None:
            for signature in outcome.signatures:
                self._parts.memory.makers.made(self._target.provider, signature)
        if watch is not None:
            watch.settle()
        return outcome.body is not None and ask.codec.name == "responses"

    async def _remember(self, outcome: AnswerOutcome) -> None:
        await self._parts.remember(self._ask, self._target, outcome)

    def keep_alive(self) -> KeepAlive | None:
        """Watches over the stream, if it is one; the caller stops it."""
        if not self._ask.inbound.stream:
            return None
        return self._parts.keep_alives.watch(
            self.client, comment=self._ask.codec.keep_alive, head=self._stream_head
        )

    def _stream_head(self) -> Headers:
        return self._headers(SSE)

    def _headers(self, kind: bytes) -> Headers:
        return answer_headers(self._ask, self.record, kind)
