"""One attempt at one target: the request encoded for it, sent, and its answer opened.

A failure before the answer has content is raised, and the next target may be tried. A later failure ends the
stream with the protocol's own error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import TypeAlias

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import Event, Usage
from routecodex.canon.request import Request
from routecodex.canon.response import fold
from routecodex.gateway.answer.answer_stream import AnswerStream, RelayedStream, WholeAnswer
from routecodex.gateway.answer.captured_answer import CapturingPipe, captured_events
from routecodex.gateway.answer.event_stream import (
    EventStream,
    FirstContentBuffer,
    collect_events,
    iterate,
    read_first_content,
    response_batches,
    single_event_batches,
)
from routecodex.gateway.answer.failover import EmptyAnswer
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.services import GatewayServices
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.protocols.codec import AnswerOutcome, Codec, EncodedRequest, Pipe, ReplyContext
from routecodex.protocols.responses.codex_items import holds_codex_items
from routecodex.protocols.translation import Translation, estimated_usage, replace_foreign_parts
from routecodex.providers.http import HttpResponse
from routecodex.providers.rate_limit_headers import rate_limit_headers
from routecodex.providers.upstream import ANSWER_LIMIT, trace_headers
from routecodex.routing.registry import PlanStep
from routecodex.server_tools.empty_reply import has_no_cause, is_empty
from routecodex.telemetry.request_trace import CapturedContent

_REJECTED = (400, 422)
_GONE = 499

OpenedAnswer: TypeAlias = AnswerStream | WholeAnswer


class Attempt:
    """One attempt at one target; tokens of an answer that cannot be used are counted in the record."""

    __slots__ = ("_content", "_context", "_pipe", "_plain", "_record", "_request", "_services", "_target")

    def __init__(
        self,
        services: GatewayServices,
        request: ClientRequest,
        context: RoutingContext,
        step: PlanStep,
        *,
        record: RequestRecord,
    ) -> None:
        self._record = record
        self._pipe: Pipe | None = None
        self._content: CapturedContent | None = None
        self._services = services
        self._request = request
        self._context = context
        self._target = step.target
        self._plain = False
        """Codex's own tools and items are sent as functions and messages, so that no bytes can be relayed."""

    async def open(self) -> OpenedAnswer:
        """Open the target's answer in the client's protocol; UpstreamError: the next target may be tried."""
        services, request = self._services, self._request
        reply = services.reply_context(request, self._target)
        prepared = services.prepare(self._target)
        trace = self._record.trace
        if trace is not None and trace.captures:
            self._content = trace.capture(request.canonical(), len(request.wire.body))
        if not isinstance(prepared, PreparedTarget):
            events = prepared(request.canonical())
            if self._content is not None:
                events = captured_events(events, self._content)
            return self._not_empty(await open_events(services, request, reply, events))
        if prepared.upstream.codex_items == "plain":
            self._plain = prepared.codec is not request.codec or holds_codex_items(request.wire.body)
        if prepared.codec is not request.codec or self._plain:
            await self._learn_reasoning(request.canonical())
        encoded = self._encode(prepared) if prepared.options.vision else await self._encode_blind(prepared)
        owners = services.reasoning.owners
        if owners.has_unknown and await owners.learn():
            encoded = await self._encode_again(prepared)
        stream = request.wire.stream
        try:
            response = await self._send(prepared, encoded, stream=stream)
            if response.status in _REJECTED and self._may_send_plain(prepared, encoded):
                response.close()
                self._plain = True
                await self._learn_reasoning(request.canonical())
                encoded = await self._encode_again(prepared)
                response = self._keep_plain(prepared, await self._send(prepared, encoded, stream=stream))
            limits = rate_limit_headers(response.headers)
            if limits or self._record.upstream_limits:
                self._note_rate_limits(prepared, response, limits)
            try:
                if not 200 <= response.status < 300:
                    raise await prepared.upstream.error_of(response)
                if stream:
                    return self._not_empty(await self._open_stream(response, prepared, reply))
                return self._not_empty(await self._read_whole(response, prepared, reply))
            except UpstreamError as error:
                response.close()
                prepared.upstream.sanitize(error)
                self._count_failed(self._pipe.observed() if self._pipe is not None else None)
                raise
            except BaseException:
                response.close()
                raise
        except asyncio.CancelledError:
            self._count_left(self._pipe.observed() if self._pipe is not None else None)
            raise

    def _count_failed(self, usage: Usage | None) -> None:
        """Count a call that failed before its answer had content, if the provider has reported tokens."""
        if usage is not None and not usage.estimated:
            self._services.count_call(self._record, self._target, usage, kind="attempt", certainty="observed")

    def _count_left(self, usage: Usage | None) -> None:
        """Count a call whose client disconnected before the answer had content: its input is billed."""
        if usage is None:
            usage = Usage(input=self._request.estimate_input(), estimated=True)
        self._services.count_call(self._record, self._target, usage, certainty="observed", status=_GONE)

    async def open_events(self, canonical: Request) -> FirstContentBuffer:
        """Open the target's answer to a canonical request as events; UpstreamError as for `open`."""
        target, prepared = self._target, self._services.prepare(self._target)
        trace = self._record.trace
        if trace is not None and trace.captures:
            trace.capture(canonical, len(self._request.wire.body))
        if not isinstance(prepared, PreparedTarget):
            batches = single_event_batches(prepared(canonical))
            return await read_first_content(batches, provider=target.provider)
        if not prepared.options.vision:
            canonical = await self._describe_images(canonical)
        self._plain = prepared.upstream.codex_items == "plain"
        await self._learn_reasoning(canonical)
        encoded = self._encode_canonical(canonical, prepared)
        owners = self._services.reasoning.owners
        if owners.has_unknown and await owners.learn():
            encoded = self._encode_canonical(canonical, prepared)
        decoder = prepared.codec.stream_decoder()
        try:
            response = await self._send(prepared, encoded, stream=canonical.stream)
            if response.status in _REJECTED and self._may_send_plain(prepared, encoded):
                response.close()
                self._plain = True
                encoded = self._encode_canonical(canonical, prepared)
                sent = await self._send(prepared, encoded, stream=canonical.stream)
                response = self._keep_plain(prepared, sent)
            limits = rate_limit_headers(response.headers)
            if limits or self._record.upstream_limits:
                self._note_rate_limits(prepared, response, limits)
            batches = response_batches(response, prepared, decoder)
            return await read_first_content(batches, provider=target.provider, reported=decoder.reported)
        except UpstreamError:
            self._count_failed(decoder.reported())
            raise
        except asyncio.CancelledError:
            self._count_left(decoder.reported())
            raise

    def _note_rate_limits(
        self, prepared: PreparedTarget, response: HttpResponse, found: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Read what the provider says is left of its limits; a client of its protocol may get it too.

        The headers of an attempt before this one are not those of the answer.
        """
        answers = response.status < 400
        is_same = prepared.codec is self._request.codec
        self._record.upstream_limits = found if answers and is_same else ()
        if found and answers:
            self._services.note_rate_limits(self._target, found)

    def _encode(self, prepared: PreparedTarget) -> EncodedRequest:
        request = self._request
        if prepared.codec is not request.codec or self._plain:
            return self._encode_canonical(request.canonical(), prepared)
        # A provider that stores the conversation itself gets the request as it came.
        held = request.original is not None and request.is_held_by(prepared.target)
        wire = request.original if held and request.original else request.wire
        return request.codec.rewrite(wire, prepared.options)

    async def _encode_again(self, prepared: PreparedTarget) -> EncodedRequest:
        return self._encode(prepared) if prepared.options.vision else await self._encode_blind(prepared)

    async def _encode_blind(self, prepared: PreparedTarget) -> EncodedRequest:
        """Encode for a model without vision: images are replaced by descriptions."""
        canonical = self._request.canonical()
        described = await self._describe_images(canonical)
        if described is canonical:
            return self._encode(prepared)
        await self._learn_reasoning(described)
        return self._encode_canonical(described, prepared)

    async def _learn_reasoning(self, canonical: Request) -> None:
        """Read the reasoning behind calls that another worker answered, or an earlier run of this one."""
        reasoning, owner = self._services.reasoning, self._request.owner
        unknown = reasoning.unknown_calls(canonical, owner)
        if unknown:
            await reasoning.learn(unknown, owner)

    def _encode_canonical(self, canonical: Request, prepared: PreparedTarget) -> EncodedRequest:
        recalled = self._services.reasoning.recall(canonical, prepared.target.provider, self._request.owner)
        options = prepared.plain_options if self._plain else prepared.options
        return prepared.codec.encode_request(prepared.fit(recalled), options)

    def _may_send_plain(self, prepared: PreparedTarget, encoded: EncodedRequest) -> bool:
        """Whether a provider may have rejected a request because it does not know Codex's tools and items."""
        upstream = prepared.upstream
        return (
            upstream.codex_items == "kept"
            and upstream.codec.name == "responses"
            and not self._plain
            and holds_codex_items(encoded.body)
        )

    def _keep_plain(self, prepared: PreparedTarget, response: HttpResponse) -> HttpResponse:
        """Remember that the provider takes only the plain form, if that was the reason."""
        if response.status not in _REJECTED:
            prepared.upstream.codex_items = "plain"
        return response

    async def _describe_images(self, canonical: Request) -> Request:
        request = self._request
        if request.image_descriptions is None:
            request.image_descriptions = self._services.describe_images(request, self._context, self._record)
        descriptions = request.image_descriptions
        return (
            canonical
            if descriptions is None
            else await descriptions.replace_images(canonical, target=str(self._target))
        )

    def _send(
        self, prepared: PreparedTarget, encoded: EncodedRequest, *, stream: bool
    ) -> Awaitable[HttpResponse]:
        request = self._request
        if encoded.notices:
            request.notices.add(*encoded.notices)
        same = prepared.codec is request.codec
        return prepared.send(
            encoded.body,
            stream=stream,
            headers=request.headers if same else None,
            query=request.query if same else "",
            trace=trace_headers(request.headers) if request.trace is None else request.trace.lines(),
        )

    async def _open_stream(
        self, response: HttpResponse, prepared: PreparedTarget, reply: ReplyContext
    ) -> OpenedAnswer:
        services, request, codec = self._services, self._request, prepared.codec
        # Some upstreams stream under a content type of their own; only JSON is surely not a stream.
        if (response.header(b"content-type") or b"").startswith(b"application/json"):
            body = await response.read(ANSWER_LIMIT)
            self._capture(codec, body, is_stream=False)
            events = codec.decode_response(body)
            response.close()
            return await open_events(services, request, reply, iterate(events), codec=codec)
        recorder: ReasoningRecorder | None = None
        if codec is request.codec and not self._plain:
            pipe: Pipe = codec.relay(reply)
        else:
            recorder = ReasoningRecorder(services.reasoning, reply.provider, request.owner)
            pipe = _translation(request, codec, reply, recorder)
        if self._content is not None:
            self._capture(codec, b"", is_stream=True)
            pipe = CapturingPipe(pipe, self._content)
        stream = RelayedStream(response, pipe, prepared.upstream, recorder)
        self._pipe = pipe
        await stream.open()
        return stream

    async def _read_whole(
        self, response: HttpResponse, prepared: PreparedTarget, reply: ReplyContext
    ) -> WholeAnswer:
        codec = prepared.codec
        body = await response.read(ANSWER_LIMIT)
        streamed = (response.header(b"content-type") or b"").startswith(b"text/event-stream")
        self._capture(codec, body, is_stream=streamed)
        response.close()
        if streamed:
            decoder = codec.stream_decoder()
            return _encode_whole(
                self._services, self._request, reply, [*decoder.feed(body), *decoder.close()]
            )
        if codec is self._request.codec and not self._plain:
            return WholeAnswer(*codec.relay_response(body, reply))
        return _encode_whole(self._services, self._request, reply, codec.decode_response(body))

    def _capture(self, codec: Codec, body: bytes, *, is_stream: bool) -> None:
        """Keep the bytes of an answer, if its content is wanted."""
        content = self._content
        if content is not None:
            content.protocol, content.is_stream = codec.name, is_stream
            content.add(body)

    def _not_empty(self, answer: OpenedAnswer) -> OpenedAnswer:
        """Reject an empty answer once: the client has not got any of it, so the attempt can be repeated."""
        request = self._request
        outcome = answer.outcome if isinstance(answer, WholeAnswer) else answer.pipe.outcome
        if not outcome.empty or request.retried_empty or not self._services.retries_empty:
            return answer
        if not has_no_cause(outcome.finish):
            return answer
        request.retried_empty = True
        usage = outcome.usage
        if usage is None and not isinstance(answer, WholeAnswer):
            usage = answer.pipe.observed()
        if usage is not None:
            self._services.count_call(self._record, self._target, usage, kind="attempt")
        raise EmptyAnswer


async def open_events(
    services: GatewayServices,
    request: ClientRequest,
    reply: ReplyContext,
    events: AsyncGenerator[Event, None],
    *,
    codec: Codec | None = None,
) -> OpenedAnswer:
    """Open an answer that comes as events in the client's protocol: of a built-in provider or the gateway."""
    if not request.wire.stream:
        return _encode_whole(services, request, reply, await collect_events(events))
    recorder = ReasoningRecorder(services.reasoning, reply.provider, request.owner)
    stream = EventStream(events, _translation(request, codec or request.codec, reply, recorder), recorder)
    await stream.open()
    return stream


def _translation(
    request: ClientRequest, codec: Codec, reply: ReplyContext, recorder: ReasoningRecorder
) -> Translation:
    reply.request = request.canonical()
    client = request.codec
    return Translation(
        codec.stream_decoder(),
        client.stream_encoder(reply),
        watch=recorder,
        client=client,
        input_tokens=reply.input_tokens,
    )


def _encode_whole(
    services: GatewayServices, request: ClientRequest, reply: ReplyContext, events: Sequence[Event]
) -> WholeAnswer:
    reply.request = request.canonical()
    recorder = ReasoningRecorder(services.reasoning, reply.provider, request.owner)
    for event in events:
        recorder(event)
    response, lost = replace_foreign_parts(fold(events), request.codec)
    request.notices.add(*lost)
    body = request.codec.encode_response(response, reply)
    usage = response.usage or estimated_usage(reply.input_tokens, response.written)
    outcome = AnswerOutcome(
        model=response.model, response_id=response.id, finish=response.finish, usage=usage, body=body
    )
    outcome.empty = services.retries_empty and is_empty(response)
    return WholeAnswer(body, outcome, recorder=recorder)
