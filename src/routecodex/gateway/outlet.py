"""Where the events of an answer leave for the client: as a stream, or whole at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Protocol

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event, Failed, Finished, PartStarted, Started, TextDelta, UsageReported
from routecodex.canon.response import fold
from routecodex.gateway.ask import ClientConnection, Headers
from routecodex.gateway.keep_alive import KeepAlive
from routecodex.protocols.codec import AnswerOutcome, Codec, ReplyContext
from routecodex.protocols.foreign import replace_foreign_part, replace_foreign_parts

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
