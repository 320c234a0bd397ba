"""Writes answers to clients: headers, chunks, the end, and errors of a stream that has begun."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from time import monotonic
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from routecodex.accounting.cost import CostKind
from routecodex.canon import finish
from routecodex.canon.errors import ClientDisconnected, GatewayError, UpstreamError
from routecodex.canon.events import (
    AnnotationDelta,
    Event,
    Failed,
    Finished,
    PartStarted,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.response import fold
from routecodex.gateway.answer.answer_stream import AnswerStream, WholeAnswer
from routecodex.gateway.answer.attempt import OpenedAnswer
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.limit_headers import passed_on
from routecodex.gateway.request import (
    ClientConnection,
    ClientRequest,
    Headers,
    RequestRecord,
    interruption,
)
from routecodex.gateway.services import GatewayServices
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.protocols.codec import AnswerOutcome, Pipe, ReplyContext
from routecodex.protocols.translation import (
    note_lost_citation,
    replace_foreign_part,
    replace_foreign_parts,
)
from routecodex.routing.registry import Target

JSON: Final = b"content-type: application/json\r\n"
"""Complete header lines of an answer that does not stream."""

SSE: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
"""Complete header lines of a stream."""

_GONE: Final = 499
_LONGEST_HEADER: Final = 2000
_PLAIN_IN_NOTICES: Final = "".join(map(chr, range(32, 127))).replace("%", "")
_Fields = tuple[tuple[bytes, bytes], ...]


class ClientWriter:
    """Writes one answer: headers, chunks, end, errors.

    A stream is kept alive from the moment the writer is made until it is closed.
    """

    def __init__(
        self,
        services: GatewayServices,
        request: ClientRequest,
        client: ClientConnection,
        record: RequestRecord,
        *,
        comment: bytes | None = None,
    ) -> None:
        self._services = services
        self._request = request
        self._client = client
        self._record = record
        self.keep_alive: KeepAlive | None = None
        if request.wire.stream:
            self.keep_alive = services.keep_alives.watch(
                client,
                comment=request.codec.keep_alive if comment is None else comment,
                # Not a method of this object, which holds it: the cycle would wait for the garbage collector.
                headers=functools.partial(answer_headers, request, record, SSE),
            )

    def close(self) -> None:
        """Stop keeping the stream alive."""
        if self.keep_alive is not None:
            self.keep_alive.stop()

    async def write(self, answer: OpenedAnswer) -> None:
        """Write an opened answer to its end."""
        if not isinstance(answer, WholeAnswer):
            await self._relay(answer)
            return
        body = answer.body
        if self._record.trace is not None:
            self._note_outcome(answer.outcome)
        if answer.outcome.usage is not None:
            self._count(answer.outcome.usage)
        recorder = answer.recorder
        if self._settle(answer.outcome, recorder):
            body = await self._remember(answer.outcome, self._record.target, body)
        if recorder is not None and recorder.is_unsaved:
            await recorder.save()
        elif answer.outcome.signatures:
            await self._save_owners()
        await self._client.send(200, self._headers(JSON), body)

    def _note_outcome(self, outcome: AnswerOutcome) -> None:
        """Keep what the answer says of itself, for its trace."""
        trace = self._record.trace
        if trace is not None and trace.attempt is not None:
            reason = "" if outcome.finish is None else outcome.finish.reason
            trace.attempt.note(model=outcome.model, id=outcome.response_id, finish=reason)

    def _count(self, usage: Usage, certainty: CostKind = "reported", status: int = 200) -> None:
        """Count the answer as a call of its provider; one of the gateway itself costs nothing."""
        record = self._record
        if record.target is None:
            record.usage = usage
        else:
            usage = self._request.complete_usage(usage)
            self._services.count_call(record, record.target, usage, certainty=certainty, status=status)

    def _count_observed(self, pipe: Pipe, status: int) -> None:
        """Count an answer that was cut off."""
        usage = pipe.observed()
        if usage.estimated:
            usage = replace(usage, input=self._request.estimate_input())
        self._count(usage, "observed", status)

    async def _relay(self, stream: AnswerStream) -> None:
        client, pipe = self._client, stream.pipe
        is_counted = False
        try:
            if not client.started:
                client.start(200, self._headers(SSE))
            out = stream.first
            if not pipe.ended:
                assert self.keep_alive is not None
                try:
                    out = await stream.carry(client, self.keep_alive)
                except UpstreamError as error:
                    out = pipe.fail(error.detached())
                except asyncio.CancelledError:
                    stopped = interruption(client)
                    if stopped is None:
                        raise
                    # Nothing of the provider may follow the error.
                    stream.close()
                    out = pipe.fail(stopped)
            outcome = pipe.outcome
            if self._record.trace is not None:
                self._note_outcome(outcome)
            is_counted = True
            if outcome.error is not None:
                self._count_observed(pipe, outcome.error.status)
                out = stream.redacted(out)
                stream.hide(outcome.error)
                await self._fail(out, outcome.error)
                return
            usage = outcome.usage
            self._count(pipe.observed() if usage is None else usage)
            recorder = stream.recorder
            if self._settle(outcome, recorder):
                out = await self._remember(outcome, self._record.target, out)
            if recorder is not None and recorder.is_unsaved:
                await recorder.save()
            elif outcome.signatures:
                await self._save_owners()
            await client.end(out)
        except (ClientDisconnected, asyncio.CancelledError):
            if not is_counted:
                if self._record.trace is not None:
                    self._note_outcome(pipe.outcome)
                self._count_observed(pipe, _GONE)
            raise
        finally:
            stream.close()

    async def _fail(self, out: bytes, error: GatewayError) -> None:
        """End a stream with the bytes of an error event."""
        record = self._record
        record.status, record.error = 200, error
        if record.limits is not None:
            record.limits.close()
        if self._request.codec.abort_after_error:
            await self._client.write(out)
            self._client.abort()
        else:
            await self._client.end(out)

    def _settle(self, outcome: AnswerOutcome, recorder: ReasoningRecorder | None) -> bool:
        """Record how the answer ended; return whether it must be stored before the client sees its end."""
        record, request = self._record, self._request
        record.status = 200
        if record.limits is not None:
            # A client may send its next request as soon as it sees the end.
            record.limits.close()
        end = outcome.finish
        if end is not None:
            record.finish = end.reason
            if finish.tracing():
                sent = outcome.sent_finish or self._services.sent_finish(request, outcome, end)
                finish.trace(request.id, end, sent, end=self._services.stream_end(request, end))
        if outcome.lost is not None:
            request.notices.add(*outcome.lost.lines())
            record.notices = request.notices.lines()
        if outcome.signatures and record.target is not None:
            for signature in outcome.signatures:
                self._services.reasoning.owners.record(record.target.provider, signature)
        if recorder is not None:
            recorder.settle()
        return outcome.body is not None and request.codec.name == "responses"

    async def _save_owners(self) -> None:
        """Let other nodes know the owners of signatures before the client can send them there."""
        owners = self._services.reasoning.owners
        if owners.unsaved:
            await owners.save()

    async def _remember(self, outcome: AnswerOutcome, target: Target | None, out: bytes) -> bytes:
        """Store the answer; return its last bytes, which say so if it could not be stored."""
        if await self._services.responses.remember(self._request, target, outcome):
            return out
        self._record.notices = self._request.notices.lines()
        return self._services.responses.unstored(out, outcome)

    def _headers(self, kind: bytes) -> Headers:
        return answer_headers(self._request, self._record, kind)


class EventWriter(ClientWriter):
    """Writes one answer that comes as events, as a stream or as a whole body at the end.

    `before_end` is awaited before the client can see a whole answer, or the end of a streamed one.
    """

    def __init__(
        self,
        services: GatewayServices,
        request: ClientRequest,
        client: ClientConnection,
        record: RequestRecord,
        *,
        reply: ReplyContext,
        before_end: Callable[[], Awaitable[None]],
    ) -> None:
        encoder = request.codec.stream_encoder(reply) if request.wire.stream else None
        comment = encoder.keep_alive if encoder is not None else None
        super().__init__(services, request, client, record, comment=comment)
        self._encoder = encoder
        self._reply = reply
        self._before_end = before_end
        self._events: list[Event] = []
        self._outcome = AnswerOutcome()

    async def write_events(self, events: Sequence[Event]) -> None:
        """Send events; without a stream, collect them until the end."""
        for event in events:
            self._note(event)
        if self._encoder is None:
            self._events.extend(events)
            return
        out = self._encode_all(events)
        if out:
            self._begin()
            await self._client.write(out)
            if self.keep_alive is not None:
                self.keep_alive.touch()

    async def end(self, events: Sequence[Event]) -> None:
        """Send the last events; the answer is settled before the client sees its end."""
        for event in events:
            self._note(event)
        if self._encoder is None:
            await self._end_whole(events)
            return
        out = b"".join(map(self._encode, events))
        self._outcome.body = self._encoder.final_body
        out = await self._settle_outcome(out)
        self._begin()
        await self._client.end(out)

    async def _end_whole(self, events: Sequence[Event]) -> None:
        request = self._request
        response, lost = replace_foreign_parts(fold([*self._events, *events]), request.codec)
        request.notices.add(*lost)
        body = self._outcome.body = request.codec.encode_response(response, self._reply)
        body = await self._settle_outcome(body)
        headers = self._headers(JSON)
        if self._record.rounds > 1:
            headers = [*headers, b"x-routecodex-rounds: %d\r\n" % self._record.rounds]
        await self._client.send(200, headers, body)

    async def _settle_outcome(self, out: bytes) -> bytes:
        """Settle the answer; return its last bytes."""
        if self._settle(self._outcome, None):
            # Several targets may have contributed: it is stored as an answer of the gateway.
            out = await self._remember(self._outcome, None, out)
        await self._before_end()
        return out

    async def fail(self, events: Sequence[Event], error: GatewayError) -> None:
        """End a stream that broke with an error event; a whole answer raises the error."""
        self._record.error, self._record.status = error, 200
        if self._encoder is None:
            raise error
        out = b"".join(map(self._encode, (*events, Failed(error))))
        self._begin()
        await self._fail(out, error)

    def _begin(self) -> None:
        if not self._client.started:
            self._client.start(200, self._headers(SSE))

    def _encode_all(self, events: Sequence[Event]) -> bytes:
        """Encode events; consecutive texts of one part cost little more than one."""
        assert self._encoder is not None
        out: list[bytes] = []
        for index, batch in groupby(events, _text_part):
            if index is None:
                out.extend(map(self._encode, batch))
            else:
                texts = [event.text for event in batch if isinstance(event, TextDelta)]
                out.append(self._encoder.add_texts(index, texts))
        return b"".join(out)

    def _encode(self, event: Event) -> bytes:
        assert self._encoder is not None
        if isinstance(event, PartStarted):
            event = replace_foreign_part(event, self._request.codec, self._outcome)
        elif isinstance(event, AnnotationDelta):
            note_lost_citation(event, self._request.codec, self._outcome)
        return self._encoder.encode(event)

    def _note(self, event: Event) -> None:
        outcome = self._outcome
        if isinstance(event, Started):
            outcome.model = event.model
        elif isinstance(event, UsageReported):
            outcome.usage = event.usage
        elif isinstance(event, Finished):
            outcome.finish = event.finish


def _text_part(event: Event) -> int | None:
    """Return the part that a plain text belongs to; None for every other event."""
    return event.index if type(event) is TextDelta and not event.logprobs else None


def answer_headers(request: ClientRequest, record: RequestRecord, kind: bytes) -> Headers:
    """Return the headers of an answer that begins now; record its time and its notices."""
    record.first_byte = record.first_byte or monotonic()
    # The gateway makes the ids itself: they hold no line end.
    headers: list[tuple[bytes, bytes] | bytes] = [
        kind,
        b"x-request-id: %b\r\n" % request.id.encode(),
        _routing_lines(record.route, record.target, record.reason, request.role.name),
    ]
    if kind is JSON:
        headers.extend(cost_lines(record))
    if record.limits is not None or record.upstream_limits:
        own = b"" if record.limits is None else record.limits.header_lines(request.codec.name)
        headers.append(own + passed_on(record.upstream_limits, own))
    notices = request.notices.lines()
    if notices:
        record.notices = notices
        headers.append((b"x-routecodex-notice", notice_text(notices)))
    return headers


def cost_lines(record: RequestRecord) -> tuple[bytes, ...]:
    """Return the header line of the cost of an answer that does not stream; nothing if it is not counted."""
    cost = record.cost
    return () if cost is None else (b"x-routecodex-cost: %b\r\n" % cost.encode(),)


def refusal_headers(message: str, routed: tuple[str, str, str] | None) -> _Fields:
    """Return the routing headers of an error; without `routed` the gateway itself refused the request."""
    route, target, reason = routed or ("gateway", "", message)
    return (
        (b"x-routecodex-route", header_text(route or "gateway")),
        (b"x-routecodex-target", header_text(target or "gateway")),
        (b"x-routecodex-reason", header_text(reason or message)),
    )


def routing_headers(record: RequestRecord) -> _Fields:
    """Return the routing headers of a record."""
    return _routing_headers(record.route, record.target, record.reason)


@functools.lru_cache(maxsize=1024)
def _routing_lines(route: str, target: Target | None, reason: str, role: str) -> bytes:
    fields = (*_routing_headers(route, target, reason), (b"x-routecodex-role", role.encode()))
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def _routing_headers(route: str, target: Target | None, reason: str) -> _Fields:
    return (
        (b"x-routecodex-route", header_text(route)),
        (b"x-routecodex-target", header_text(str(target or "gateway"))),
        (b"x-routecodex-reason", header_text(reason)),
    )


def header_text(text: str) -> bytes:
    """Return text as a header value: one line of printable ASCII, of bounded length."""
    line = "".join(character if " " <= character <= "~" else "?" for character in text)
    return line[:_LONGEST_HEADER].encode("ascii")


def notice_text(notices: Sequence[str]) -> bytes:
    """Return the notices as a header value: percent-encoded UTF-8, so that any text can be read back."""
    text = "; ".join(notices)[:_LONGEST_HEADER]
    while len(line := quote(text, safe=_PLAIN_IN_NOTICES, errors="replace")) > _LONGEST_HEADER:
        # Cut whole characters: one takes up to 12 bytes here.
        text = text[: -math.ceil((len(line) - _LONGEST_HEADER) / 12)]
    return line.encode("ascii")
