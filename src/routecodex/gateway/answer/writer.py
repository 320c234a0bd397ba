"""The headers of an answer: what it is, which request it answers, how it was routed.

Where the events of an answer leave for the client: as a stream, or whole at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from time import monotonic
from typing import Final, Protocol

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event, Failed, Finished, PartStarted, Started, TextDelta, UsageReported
from routecodex.canon.response import fold
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.request import ClientConnection, ClientRequest, Headers, RequestRecord
from routecodex.protocols.codec import AnswerOutcome, Codec, ReplyContext
from routecodex.protocols.translation import replace_foreign_part, replace_foreign_parts
from routecodex.routing.registry import Target

JSON: Final = b"content-type: application/json\r\n"

SSE: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
"""Whole lines, for answers and for streams."""
_Fields = tuple[tuple[bytes, bytes], ...]


def answer_headers(ask: ClientRequest, record: RequestRecord, kind: bytes) -> Headers:
    """The headers of an answer that begins now; the record notes when, and the notices that were told."""
    record.first_byte = record.first_byte or monotonic()
    # Ids are our own: there is nothing in them that could forge a line.
    headers: list[tuple[bytes, bytes] | bytes] = [
        kind,
        b"x-request-id: %b\r\n" % ask.id.encode(),
        _ready_lines(record.route, record.target, record.reason),
    ]
    if ask.notices:
        record.notices = tuple(ask.notices)
        headers.append((b"x-routecodex-notice", header_text("; ".join(ask.notices))))
    return headers


def refusal_headers(message: str, routed: tuple[str, str, str] | None) -> _Fields:
    """How a request was routed that ended in an error; without a route it is the gateway that refused it."""
    route, target, reason = routed or ("gateway", "", message)
    return (
        (b"x-routecodex-route", header_text(route or "gateway")),
        (b"x-routecodex-target", header_text(target or "gateway")),
        (b"x-routecodex-reason", header_text(reason or message)),
    )


def routing_headers(record: RequestRecord) -> _Fields:
    """How a request was routed, by its record."""
    return _routing_headers(record.route, record.target, record.reason)


@functools.lru_cache(maxsize=1024)
def _ready_lines(route: str, target: Target | None, reason: str) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in _routing_headers(route, target, reason))


def _routing_headers(route: str, target: Target | None, reason: str) -> _Fields:
    return (
        (b"x-routecodex-route", header_text(route)),
        (b"x-routecodex-target", header_text(str(target or "gateway"))),
        (b"x-routecodex-reason", header_text(reason)),
    )


def header_text(text: str) -> bytes:
    """Text as a header value: one line of printable ASCII, of bounded length."""
    line = "".join(sign if " " <= sign <= "~" else "?" for sign in text)
    return line[:2000].encode("ascii")


AddTexts = Callable[[int, Sequence[str]], bytes]
Dispatched = Callable[[], Awaitable[None]]


class WatchStream(Protocol):
    """Begins to keep a stream alive, with this comment."""

    def __call__(self, *, comment: bytes) -> KeepAlive: ...


class ClientWriter:
    """Tells the client; `dispatched` is awaited before a whole answer goes, or the end of a streamed one.

    With `watch` the answer is a stream, and `keep_alive` watches over it from now on. `notices` are shown in
    the headers: what a whole answer could not tell is added to them.
    """

    def __init__(
        self,
        codec: Codec,
        client: ClientConnection,
        reply: ReplyContext,
        *,
        headers: Callable[[], Headers],
        dispatched: Dispatched,
        watch: WatchStream | None,
        notices: list[str],
    ) -> None:
        self._codec = codec
        self._client = client
        self._reply = reply
        self._headers = headers
        self._dispatched = dispatched
        self._notices = notices
        self._encoder = codec.stream_encoder(reply) if watch is not None else None
        # Where a comment would be an error, the encoder knows a frame that says nothing.
        alive: bytes = getattr(self._encoder, "keep_alive", codec.keep_alive)
        self.keep_alive = watch(comment=alive) if watch is not None else None
        self._add_texts: AddTexts | None = getattr(self._encoder, "add_texts", None)
        self._whole: list[Event] = []
        self._begun = False
        self.outcome = AnswerOutcome()

    @property
    def begun(self) -> bool:
        """Whether the client has been told anything of the answer."""
        return self._begun

    async def tell(self, events: Sequence[Event]) -> None:
        """Sends the events, or keeps them until the end."""
        for event in events:
            self._note(event)
        if self._encoder is None:
            self._whole.extend(events)
            return
        out = self._encoded(events)
        if out:
            await self._begin()
            await self._client.write(out)
            if self.keep_alive is not None:
                self.keep_alive.touch()

    def _encoded(self, events: Sequence[Event]) -> bytes:
        """The bytes of the events; texts that follow each other in one part cost little more than one."""
        assert self._encoder is not None
        out: list[bytes] = []
        for index, run in groupby(events, _text_of):
            if index is None or self._add_texts is None:
                out.extend(map(self._encode, run))
            else:
                out.append(
                    self._add_texts(index, [event.text for event in run if isinstance(event, TextDelta)])
                )
        return b"".join(out)

    def _encode(self, event: Event) -> bytes:
        assert self._encoder is not None
        return self._encoder.encode(
            replace_foreign_part(event, self._codec) if isinstance(event, PartStarted) else event
        )

    async def end(self, events: Sequence[Event], settle: Callable[[AnswerOutcome], Awaitable[None]]) -> None:
        """Sends the last events; `settle` is awaited before the client sees the end."""
        for event in events:
            self._note(event)
        if self._encoder is None:
            response, lost = replace_foreign_parts(fold([*self._whole, *events]), self._codec)
            self._notices.extend(line for line in lost if line not in self._notices)
            body = self._codec.encode_response(response, self._reply)
            self.outcome.body = body
            await settle(self.outcome)
            await self._dispatched()
            await self._client.send(200, self._headers(), body)
            return
        out = b"".join(map(self._encode, events))
        self.outcome.body = getattr(self._encoder, "final", None)
        await settle(self.outcome)
        await self._dispatched()
        await self._begin()
        await self._client.end(out)

    async def fail(self, events: Sequence[Event], error: GatewayError) -> None:
        """Ends an answer that broke off; a whole one that was never begun is the error itself."""
        if self._encoder is None:
            raise error
        self.outcome.error = error
        out = b"".join(map(self._encode, (*events, Failed(error))))
        await self._begin()
        if self._codec.abort_after_error:
            await self._client.write(out)
            self._client.abort()
        else:
            await self._client.end(out)

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if not self._client.started:
            self._client.start(200, self._headers())

    def _note(self, event: Event) -> None:
        match event:
            case Started():
                self.outcome.model = event.model
            case UsageReported():
                self.outcome.usage = event.usage
            case Finished():
                self.outcome.finish = event.finish
            case _:
                pass


def _text_of(event: Event) -> int | None:
    """The part that a plain text belongs to; None for every other event."""
    return event.index if type(event) is TextDelta and not event.logprobs else None
